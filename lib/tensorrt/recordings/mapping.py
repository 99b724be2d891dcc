"""How long the layers of an engine took, and its power: the mean of the samples within each window, idle removed."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from lib import store
from lib.config.base import error_line
from lib.errors import InputError, choices
from lib.measure.energy.power_log import PowerLog, seconds
from lib.tensorrt.engine import OTHER, Engine, profile_number

COLUMNS = ("cycle", "layer_name", "layer_type", "layer_power_including_idle_power_micro_watt",
           "layer_power_excluding_idle_power_micro_watt", "layer_run_time")
_TIMES = ["layer_name", "cycle", "layer_run_time", "end_s"]
_MICRO = 1e6
_Milliseconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
_Run = Annotated[tuple[_Milliseconds, Annotated[float, BeforeValidator(seconds)] | None],
                 BeforeValidator(lambda run: run if isinstance(run, list) else (run, None))]
_RUNS = TypeAdapter(Annotated[dict[str, list[_Run]], Field(min_length=1)])


def read_times(path: Path, engine: Engine) -> pd.DataFrame:
    """Return a row a layer and cycle: ``layer_name, cycle, layer_run_time`` (ms), ``start_s, end_s`` (NaN: no time stamp).

    The file holds ``{layer: [ms, ...]}`` or ``{layer: [[ms, "YYYYMMDD-HH:MM:SS.ffffff"], ...]}``, or is trtexec's
    ``--exportProfile``; of the latter, one value a layer: its median, or its mean in files of older versions. A name that
    several layers of the engine share has their runs in turn. Raises InputError naming the layer and what is wrong.
    """
    content = store.read_json(path)
    if isinstance(content, list):
        content = _of_trtexec(content, engine, path)
    try:
        runs = _RUNS.validate_python(content)
    except ValidationError as error:
        raise InputError(error_line(error, f"{path} holds no latencies of layers", ())) from None
    rows = [(name, cycle, *run) for name, cycles in runs.items() for cycle, run in enumerate(cycles, start=1)]
    table = _in_turn(pd.DataFrame(rows, columns=_TIMES).astype({"end_s": float}), engine)
    return table.assign(start_s=table["end_s"] - table["layer_run_time"] / 1e3)


def _of_trtexec(entries: list, engine: Engine, path: Path) -> dict[str, list]:
    """Return the times of trtexec's profile by name: a name that several layers share has several."""
    times, layers = {}, Counter(layer.reported for layer in engine.layers)
    for fields in entries:
        if not isinstance(fields, dict) or ("count" not in fields and not isinstance(fields.get("name"), str)):
            raise InputError(f"{path}: an entry is no layer of trtexec's profile, which has a name and medianMs or averageMs")
        if "count" not in fields:
            times.setdefault(fields["name"], []).append(fields.get("medianMs", fields.get("averageMs")))
    for number, (name, values) in enumerate(times.items()):  # trtexec takes a second layer of the first name for the next run
        if len(values) > max(layers[name], 1) or (number == 0 and len(values) < layers[name]):
            raise InputError(f"{path} has {name!r} {len(values)} times, the engine {layers[name]} times: trtexec mixes times "
                             "where layers share the first layer's name; use params/profile_layers.py")
    return times


def _in_turn(times: pd.DataFrame, engine: Engine) -> pd.DataFrame:
    """Give the runs of a name that several layers share to these layers in turn.

    Where a pass has fewer runs of it than layers, the first layers have them, as long as no model is made of such a layer;
    else the runs are left out: whose they are is not known.
    """
    layers = pd.DataFrame([(layer.reported, layer.name, layer.kind) for layer in engine.layers], columns=["by", "name", "kind"])
    shared = {name: rows for name, rows in layers.groupby("by") if len(rows) > 1 and name in set(times["layer_name"])}
    runs = times["layer_name"].value_counts()
    alone = runs[runs.index.isin({*layers["name"]} - {*shared})]
    passes = alone.max() if len(alone) else min(runs[name] // len(rows) for name, rows in shared.items()) if shared else 1
    for name, rows in shared.items():
        here = times["layer_name"] == name
        count, rest = divmod(runs[name], max(passes, 1))
        if rest or count > len(rows) or (count < len(rows) and (rows["kind"] != OTHER).any()):
            times = times[~here]
            continue
        order = np.arange(runs[name])
        times.loc[here, "layer_name"] = rows["name"].to_numpy()[order % count]
        times.loc[here, "cycle"] = order // count + 1
    return times.reset_index(drop=True)


def window_means(start_s: np.ndarray, end_s: np.ndarray, log: PowerLog) -> tuple[np.ndarray, np.ndarray]:
    """Return mean watts and number of samples with start <= t <= end, for windows (n,) in any order; NaN where there are none.

    A window without a time stamp (NaN) has none either.
    """
    first, last = np.searchsorted(log.at_s, start_s, side="left"), np.searchsorted(log.at_s, end_s, side="right")
    total = np.concatenate([[0.0], np.cumsum(log.power_w)])
    count = np.where(np.isfinite(start_s) & np.isfinite(end_s), last - first, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, (total[last] - total[first]) / count, np.nan), count


def layerwise(engine: Engine, times: pd.DataFrame, log: PowerLog | None = None,
              idle_w: float = np.nan) -> tuple[pd.DataFrame, list[str]]:
    """Return a row a cycle and layer in ``COLUMNS`` (µW, ms; empty where no sample fell into the window), and notes.

    A layer's window ends at its time stamp and is as long as its latency. Raises InputError for latencies of no layer of the
    engine and, with a log, for those without time stamps, and for a log that does not overlap the run.
    """
    layers = pd.DataFrame([(layer.name, layer.layer_type) for layer in engine.layers], columns=["layer_name", "layer_type"])
    table = layers.merge(times, on="layer_name").sort_values(["cycle", "start_s"], ignore_index=True)
    named, timed = set(layers["layer_name"]), set(times["layer_name"])
    unknown, silent = timed - named, named - timed
    notes = [f"{len(unknown)} latencies are of no layer of the engine"] * bool(unknown)
    notes += [f"{len(silent)} of {len(layers)} layers have no latency"] * bool(silent)
    shared = sorted({layer.reported for layer in engine.layers if layer.name in silent and layer.reported != layer.name})
    if shared:
        notes.append(f"layers share a name, and the latencies are not one per layer: {choices(shared[:5])}")
    if table.empty:
        others = sorted({profile_number(name) for name in unknown} - {engine.profile})
        hint = f"the latencies are of optimisation profile {choices(others)} (--profile)" if others else "; ".join(notes)
        raise InputError(f"{engine.path}: none of its layers has latencies; the two are not of one engine: {hint}")
    mean_w = np.nan
    if log:
        stamped = table["end_s"].notna().sum()
        if not stamped:
            raise InputError(f"{engine.path}: its latencies have no time stamps, so that no power can be brought to them")
        outside = ((table["end_s"] < log.at_s[0]) | (table["start_s"] > log.at_s[-1])).sum()
        if outside == stamped:
            raise InputError(f"{engine.path}: the power log ({len(log.at_s)} samples) does not overlap the run")
        mean_w, samples = window_means(table["start_s"].to_numpy(), table["end_s"].to_numpy(), log)
        notes += [*log.notes, f"{(samples > 0).sum()} of {len(table)} windows hold a power sample, {outside} lie outside of "
                              "the log"]
    table[COLUMNS[3]], table[COLUMNS[4]] = mean_w * _MICRO, (mean_w - idle_w) * _MICRO
    return table[list(COLUMNS)], notes
