"""Advice about one operator: its time on each device, what bandwidth and rate that is, what bounds it, and how sure it is."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.predict import boards, registry
from lib.predict.advice.advise_text import NUMBER, SHOWN
from lib.predict.networks import composition, work
from lib.tables import PARAMETERS
from lib.work.graph import families, spaces
from lib.work.graph.spaces import Config

_AXES = ("kernel", "stride", "padding", "dilation")  # short: of all axes
_TEXTS = {name for name, column in PARAMETERS.items() if column.kind == "str"}
_TIMED = {"kernel": "kernels alone", "end_to_end": "end to end, launch included"}
_LARGEST_DIGITS = 9


def config(op: str, assignments: Sequence[str], dtype: str = "fp32", passes: str = "forward") -> Config:
    """Return the operator that NAME=VALUE texts describe; ``kernel=3`` stands for all axes, likewise stride, padding, dilation.

    Raises InputError for an unknown family, a parameter that is unknown, missing, given twice or no number, and for a shape
    that is impossible.
    """
    takes, values = families.family(op).parameters, {}
    for text in assignments:
        name, equals, value = text.partition("=")
        names = [axis for axis in takes if name in _AXES and axis.startswith(f"{name}_")] or [name]
        if not equals or not value:
            raise InputError(f"{text[:60]!r} is no NAME=VALUE; {op} takes: {choices(takes)}")
        if doubled := values.keys() & set(names):
            raise InputError(f"{choices(sorted(doubled))} is given twice")
        if name not in _TEXTS and not re.fullmatch(rf"[0-9]{{1,{_LARGEST_DIGITS}}}", value):
            raise InputError(f"{text[:60]!r}: {name} is a whole number of at most {_LARGEST_DIGITS} digits")
        values |= dict.fromkeys(names, value if name in _TEXTS else int(value))
    return spaces.config(op, values, dtype, passes)


def advise(wanted: Config, devices: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row a device, the fastest first: those named, or all that have a model of the element type.

    Devices whose model does not know the family are left out, and named in ``attrs["left_out"]`` with the reason;
    ``attrs["work"]`` says what a device type computes and moves. Raises InputError for an impossible operator, and where no
    device is left.
    """
    predictors = registry.for_devices(devices, wanted.dtype)
    rows, left_out = [], {}
    of_types = {kind: described(wanted, kind) for kind in sorted({predictor.device_type for predictor in predictors})}
    for predictor in predictors:
        try:
            rows.append(_row(predictor, of_types[predictor.device_type]))
        except InputError as error:
            left_out[predictor.device] = str(error)
    if not rows:
        raise InputError("; ".join(left_out.values()))
    table = pd.DataFrame(rows).sort_values("predicted_ms", ignore_index=True)
    words = {kind: f"{row['flops']:,.4g} FLOPs, {row['bytes']:,.4g} compulsory bytes" for kind, row in of_types.items()}
    alike = len(set(words.values())) == 1
    table.attrs |= {"left_out": left_out, "work": next(iter(words.values())) if alike else
                    "; ".join(f"{kind}: {text}" for kind, text in words.items())}
    return table


def described(wanted: Config, device_type: str) -> dict[str, Any]:
    """Return an operator as a row of a ``sweep`` table, with FLOPs and bytes of what the device type runs for it."""
    flops, moved = spaces.work(wanted.ops(device_type))
    return {"op": wanted.op, "pass": wanted.passes, **dict(wanted.parameters), "flops": flops, "bytes": moved}


def _row(predictor: registry.Predictor, row: Mapping[str, Any]) -> dict[str, Any]:
    answer, facts, roof = predictor.model.predict(pd.DataFrame([row])).iloc[0], predictor.model.facts, predictor.roof
    origin, flops, moved = predictor.origin or str(answer["origin"]), row["flops"], row["bytes"]
    launch_ms = roof.launch_us / 1e3
    times = {name: float(answer[name]) for name in ("predicted_ms", "low_ms", "high_ms")}
    times = predictor.widened(times, boards.kernel_kind(row["op"], row["pass"]))
    predicted_ms, roof_ms = times["predicted_ms"], max(flops / roof.peak_gflops, moved / roof.gbps()) / 1e6
    table = predictor.measured_operators
    measured = composition.lookup(table[(table["flops"] == flops) & (table["bytes"] == moved)])
    return {"device": predictor.device, "source": f"zero-shot from {origin}" if origin else "predicted", **times,
            "gflops": flops / predicted_ms / 1e6, "gbps": moved / predicted_ms / 1e6,
            "pct_of_attainable": roof_ms / predicted_ms * 100, "bound": "launch" if launch_ms > roof_ms else
            predictor.bound_of(np.array([[flops, moved]]), launch_ms, predicted_ms),
            "out_of_range": bool(answer["out_of_range"] or origin), "measured_ms": measured.get(work.key_of(row), math.nan),
            "latency_type": facts["latency_type"], "cache": facts.get("cache", "warm")}


def text(wanted: Config, table: pd.DataFrame) -> str:
    """Return the answer for a terminal: a table for each way of timing, as times of one way do not rank those of another."""
    names = SHOWN | {"gflops": "GFLOP/s", "gbps": "GB/s", "pct_of_attainable": "% of attainable"}
    parameters = ", ".join(f"{name} {value}" for name, value in wanted.parameters)
    lines = [f"{wanted.op} {wanted.passes}, {wanted.dtype}: {parameters}", table.attrs["work"]]
    for (latency_type, cache), part in table.groupby(["latency_type", "cache"], sort=False):
        shown = part.rename(columns=names).drop(columns=["latency_type", "cache"]).dropna(axis=1, how="all")
        lines += ["", f"{_TIMED[latency_type]}, {cache} caches:",
                  shown.to_string(index=False, float_format=NUMBER)]
    if table["out_of_range"].any():
        lines.append("outside: beyond the training range of the device's model; its interval is widened, not proven")
    return "\n".join([*lines, *(f"left out: {why}" for why in table.attrs["left_out"].values())])
