"""Advice in words and tables, for the command line and the notebook."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib.errors import choices
from lib.measure import load
from lib.predict import steps
from lib.predict.advice.advise import Advice, advise, without_ceilings
from lib.predict.advice.query import Query
from lib.predict.advice.suggestions import Change
from lib.predict.transfer_cpu import DOUBTFUL

_SHOWN = {"device": "device", "source": "source", "predicted_ms": "ms", "low_ms": "low", "high_ms": "high",
          "images_per_sec": "images/s", "predicted_gbps": "GB/s", "memory_mb": "MB", "rss_mb": "resident MB", "bound": "bound",
          "below_roof": "x below roof", "fits": "fits",
          "out_of_range": "outside", "measured_ms": "measured ms", "price_per_million": "price / 10^6 images",
          "energy_j": "GEMMs' J/image", "energy_low_j": "J low", "energy_high_j": "J high",
          "energy_share": "their share of time", "energy_source": "joules are", "loader_wait_ms": "loader ms",
          "h2d_ms": "copy ms", "forward_ms": "forward ms", "backward_ms": "backward ms", "optimizer_ms": "optimizer ms"}


def table(advice: Advice) -> pd.DataFrame:
    """Return the devices as people read them; columns that say nothing are left out."""
    shown = advice.table[list(_SHOWN)].rename(columns=_SHOWN)
    return shown.dropna(axis=1, how="all")


def heading(advice: Advice) -> str:
    """Say what was predicted."""
    query = advice.captured.query
    what = "a training step (loader, copy, forward, backward, Adam)" if query.mode == "train" else "a forward pass"
    samples = f"{advice.captured.batch_size} sample{'s' * (advice.captured.batch_size > 1)}"
    how = [query.dtype, *[query.layout] * (query.layout != "contiguous"), *["compiled"] * query.compiled]
    given = [one for one in query.network(1).batch if one.name or not one.is_float]
    inputs = f" of {choices(f'{one.name} {one.sample}'.strip() for one in given)}" if given else ""
    return f"{query.model}, {what} of {samples}{inputs}, {', '.join(how)}"


def text(advice: Advice) -> str:
    """Return the whole answer for a terminal."""
    body = table(advice).to_string(index=False, float_format=lambda value: f"{value:,.4g}")
    lines = [heading(advice), "", body, "", f"recommended: {advice.reason}"]
    if len(advice.crossovers) > 1:
        lines.append("by batch size: " + "; ".join(advice.crossovers))
    if advice.table["out_of_range"].any():
        lines.append("outside: more than a twentieth of the time lies out of the training range of the device's model; its "
                     "interval is widened, not proven")
    lines += _notes(advice)
    if advice.table["energy_j"].notna().any():
        lines.append("GEMMs' J/image: the power of linear, matmul and bmm kernels times their predicted time; other kernels, "
                     "idling and the host are not in it")
    return "\n".join(lines)


def _notes(advice: Advice) -> list[str]:
    """Return what to know of the times: what no model is of, and which are of kernels alone."""
    works = [advice.captured.work(device_type=kind) for kind in sorted({one.device_type for one in advice.predictors})]
    unknown = list(dict.fromkeys(name for one in works for name in one.not_modelled))
    gpus = advice.table[~advice.table["device"].str.match("cpu(@|$)")]
    kernels = gpus.loc[gpus["latency_type"] == "kernel", "device"]
    lines = [f"not modelled: {choices(unknown)}; others answer for them, of like work or those of {advice.captured.query.dtype}"
             ] if unknown else []
    if uncounted := list(dict.fromkeys(name for one in works for name in one.uncounted)):
        lines.append(f"FLOPs not known: {choices(uncounted)}; one is counted for each element, which is the least")
    if np.isinf(advice.table["high_ms"]).any():
        lines.append("inf: of some operators only the least time is known, so the interval has no upper end")
    if branches := list(dict.fromkeys(place for one in works for place in one.branches)):
        lines.append(f"its control flow depends on values ({choices(branches)}): the branch of random inputs was taken")
    lines += [f"{row.device}: resident memory of a fresh process, beyond Python and torch: {row.rss_mb:,.0f} MB "
              f"({row.rss_low_mb:,.0f} to {row.rss_high_mb:,.0f})" for row in advice.table.itertuples() if row.rss_mb > 0]
    if len(gpus) and advice.captured.query.dtype == "fp32":
        lines.append("fp32 on GPUs is computed as fp32, as everything is measured here: with TF32, which torch allows in "
                     "convolutions unless told otherwise, they may be faster")
    if len(kernels):
        lines.append(f"kernels alone, as CUDA graphs run them, without launches: {choices(kernels)}")
    if len(kernels) < len(gpus):
        launched = choices(gpus.loc[gpus["latency_type"] != "kernel", "device"])
        lines.append(f"launched one by one, end to end: {launched}; not to be compared with times of kernels alone")
    lines += [f"{row.device}, errors on what was held out: {row.held_out}" for row in advice.table.itertuples()]
    return lines + _step_notes(advice)


def _step_notes(advice: Advice) -> list[str]:
    """Return on what the parts of a training step rest, and what learners of profiles say of the whole."""
    if advice.captured.query.mode != "train":
        return []
    sources: dict[str, list[str]] = {}
    lines = []
    for predictor in advice.predictors:
        for name, costs in steps.costs_of(predictor).items():
            sources.setdefault(f"{name.replace('_', ' ')}: {costs.source}", []).append(predictor.device)
        learned = steps.of_itself(predictor) if advice.captured.query.dtype == "fp32" else None  # as all profiles are
        if learned:
            network = advice.captured.work(device_type=predictor.device_type)
            several = [f"{name} {one.predict([network])[0]:,.3g} (±{math.expm1(one.half):.0%})"
                       for name, one in learned.learners.items()]
            lines.append(f"{predictor.device}, the whole step by learners of profiles, in ms: {', '.join(several)}")
    return [f"{source} ({choices(devices)})" for source, devices in sources.items()] + lines


def answer(**query) -> tuple[pd.DataFrame, str]:
    """Return the table and the recommendation for the fields of a Query."""
    advice = advise(Query(**query), crossovers=False)
    return table(advice), f"{heading(advice)}. {advice.reason}."


def neighbours(advice: Advice, reading: load.Load | None = None, brief: bool = False) -> str:
    """Say what the CPU's times assume, and what to expect of them while others hold cores now; empty without a CPU.

    ``reading`` tells what others did lately; without one they are watched for a moment. ``brief``: in one short sentence.
    """
    if "cpu" not in set(advice.table["device"]):
        return ""
    threads, free = torch.get_num_threads(), load.cores_left(reading) if reading else load.free_cores()
    idle = f"an idle machine with {threads} thread{'s' * (threads > 1)}"
    if brief:
        return f"The CPU's time is that of {idle}." if free >= threads else \
            f"The CPU's time is that of {idle}; others hold cores now: set OMP_NUM_THREADS={free} meanwhile."
    text = f"cpu: the time is that of {idle}"
    cpu = next(one for one in advice.predictors if one.device == "cpu")
    if without_ceilings(cpu):
        why = ": the ceilings measured here are unusable, others held cores" if cpu.model.facts.get(DOUBTFUL) else ""
        text += f", {cpu.origin}, not scaled to this one{why}"
    if free >= threads:
        return text
    return (f"{text}, and others hold cores now: {free} {'are' if free > 1 else 'is'} free; threads that wait for one another "
            f"beside a busy neighbour are slower than fewer (measured 2 to 4 times with two), set OMP_NUM_THREADS={free}")


def records(advice: Advice, verified: tuple[float, Sequence[Change]] | None = None, note: str = "") -> list[dict[str, Any]]:
    """Return the table as plain values for JSON, a row a device; what is not known is null.

    ``verified``, the ms and the changes that were measured on this machine, are added to its CPU as ``verified_ms`` and
    ``changes``, and ``note`` (see ``neighbours``) as ``note``.
    """
    rows = advice.table.to_dict("records")
    for own in rows if note else ():
        if own["device"] == "cpu":
            own["note"] = note
    if verified:
        own = next(row for row in rows if row["device"] == "cpu")
        own["verified_ms"], several = verified
        own["changes"] = [{name: getattr(change, name) for name in ("what", "predicted_gain", "measured_gain", "why")}
                          for change in several]
    return plain(rows)


def plain(value: Any) -> Any:
    """Return a value with null in place of every number that JSON does not have."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)) else value


def changes(several: Sequence[Change]) -> str:
    """Return what to change as lines for a terminal; gains are factors of images a second."""
    lines = ["", "what to change (factor of images a second):"]
    for change in several:
        gain = "  ? " if np.isnan(change.predicted_gain) else f"{change.predicted_gain:.2f}"
        measured = "" if np.isnan(change.measured_gain) else f", measured {change.measured_gain:.2f}"
        lines.append(f"  {gain}{measured}  {change.what}: {change.why}")
    return "\n".join(lines)


def changes_table(several: Sequence[Change]) -> pd.DataFrame:
    """Return what to change as a table."""
    return pd.DataFrame([{"change": change.what, "predicted gain": change.predicted_gain, "measured gain": change.measured_gain,
                          "why": change.why} for change in several])


def verdict(advice: Advice, measured_ms: float) -> str:
    """Say whether the interval of this machine's CPU covers what was measured: of a training step forward and backward."""
    what = "forward and backward measured" if advice.captured.query.mode == "train" else "measured"
    cpu = next((predictor for predictor in advice.predictors if predictor.device == "cpu"), None)
    if cpu is None:
        return f"\n{what} on this machine's CPU: {measured_ms:,.4g} ms"
    passes = cpu.estimate(advice.captured.work())
    covered = "inside" if passes.low_ms <= measured_ms <= passes.high_ms else "OUTSIDE"
    return (f"\n{what} on this machine's CPU: {measured_ms:,.4g} ms, {covered} the interval {passes.low_ms:,.4g} to "
            f"{passes.high_ms:,.4g}; the prediction was off by {passes.predicted_ms / measured_ms - 1:+.1%}")
