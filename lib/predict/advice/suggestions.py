"""What would make a network faster on one device: the predicted gain of each change, and the gain measured on this machine."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.predict import registry
from lib.predict.advice.advise import Advice, memory_of, passes_of, source_of
from lib.predict.advice.query import CapturedQuery
from lib.predict.cards import answers
from lib.predict.networks.composition import Estimate
from lib.predict.networks.step import Step
from lib.predict.registry import Predictor
from lib.progress import track

_FUSED = ("activation", "elementwise", "batch_norm", "copy", "cat")  # families that a compiler fuses into others


@dataclass(frozen=True)
class Change:
    """One thing to change, the factor by which it is predicted to be faster (NaN: not predicted), and why.

    ``apply`` names what a measured run has to change: memory, dtype, channels_last, compiled, batch_size or num_workers.
    """

    what: str
    predicted_gain: float
    why: str
    apply: Mapping[str, Any]
    measured_gain: float = math.nan


def suggestions(advice: Advice) -> list[Change]:
    """Return what could be changed on this machine's CPU, or else on the recommended device, the best gain first."""
    by_device = {predictor.device: predictor for predictor in advice.predictors}
    predictor = by_device.get("cpu") or by_device.get(advice.recommended) or advice.predictors[0]
    several = changes(advice.captured, predictor)
    if advice.captured.query.mode == "train":
        several += loader_changes(advice.captured.query.model)
    return sorted(several, key=lambda change: -np.nan_to_num(change.predicted_gain, nan=0.0))


def changes(captured: CapturedQuery, predictor: Predictor) -> list[Change]:
    """Return what could be changed on one device, with the gain in images a second that its model predicts."""
    base = captured.predict(predictor)
    several = [*_retained_memory(captured, predictor, base), *_larger_batches(captured, predictor, base)]
    operators = passes_of(base).operators
    cost = operators["predicted_ms"] * operators["calls"]
    fused = cost[operators["op"].isin(_FUSED)].sum() / cost.sum()
    text = f"not predicted; operators that it could fuse take {fused:.0%} of the predicted time of all operators"
    if not captured.query.compiled:
        usual = Change("torch.compile", math.nan, text, {"compiled": True})
        several.append(_learned(captured, predictor, usual, compiled=True))
    if any(one.is_picture for one in captured.query.network().batch) and captured.query.layout == "contiguous":
        usual = Change("channels_last", math.nan, "not predicted: its operators were not swept in this layout",
                       {"channels_last": True})
        of_cpu = predictor.device == "cpu"
        several.append(_on_cpu(captured, predictor, usual, captured.query.dtype, "channels_last") if of_cpu else
                       _learned(captured, predictor, usual, layout="channels_last"))
    return several + ([_half_precision(captured, predictor, base)] if captured.query.dtype == "fp32" else [])


def _learned(captured: CapturedQuery, predictor: Predictor, change: Change, **how: Any) -> Change:
    """Return a change with the gain that whole networks tell, which ran both ways on the device; else as it is."""
    if captured.condition(predictor) is None:
        return change
    before = {name: getattr(captured.query, name) for name in ("dtype", "mode", "layout", "compiled")}
    gain = answers.gain(predictor.card, captured.rows, captured.batch_size, before, {**before, **how})
    return replace(change, predicted_gain=gain[0], why=gain[1]) if gain else change


def _on_cpu(captured: CapturedQuery, predictor: Predictor, change: Change, dtype: str, layout: str) -> Change:
    """Return a change of this machine's CPU with the gain that networks tell which ran both ways, or why there is none."""
    if predictor.model.facts["dtype"] != "fp32":
        return change  # gains are over fp32
    try:
        answer = captured.gain(predictor, dtype, layout)
        query, changed = captured.query, captured.uses_gain(predictor)
        before = captured.gain(predictor, query.dtype, query.layout).gain if changed else 1.0
    except InputError as error:
        return replace(change, why=f"not predicted: {error}")
    return replace(change, predicted_gain=answer.gain / before, why=answer.evidence)


def _retained_memory(captured: CapturedQuery, predictor: Predictor, base: Estimate | Step) -> Iterable[Change]:
    if captured.query.mode == "train":
        return  # a loop retains it, see ``steps.passes_in_a_loop``
    network = captured.work(device_type=predictor.device_type)
    if predictor.composition(network.mode).rates.get("fresh_mb") and network.fresh_bytes:
        gain = base.predicted_ms / captured.predict(predictor, memory="kept").predicted_ms
        text = f"{network.fresh_bytes / 1e6:,.0f} MB a pass come fresh from the system, a page fault each 4 KiB"
        yield Change("retain freed memory (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647)", gain, text,
                     {"memory": "kept"})


def _larger_batches(captured: CapturedQuery, predictor: Predictor, base: Estimate | Step) -> Iterable[Change]:
    for factor in (2, 4):
        batch = captured.batch_size * factor
        larger = captured.scaled(batch, predictor.device_type)
        answer = captured.predict(predictor, larger)
        if (memory_mb := memory_of(answer, larger)) < predictor.memory_mb:
            gain = factor * base.predicted_ms / answer.predicted_ms
            yield Change(f"batch size {batch}", gain, f"images a second; needs {memory_mb:,.0f} MB",
                         {"batch_size": batch})


def _half_precision(captured: CapturedQuery, predictor: Predictor, base: Estimate | Step) -> Change:
    if predictor.device == "cpu" and not registry.has_cpu("bf16"):
        change = Change("bf16 (autocast)", math.nan, "", {"dtype": "bf16"})
        return _on_cpu(captured, predictor, change, "bf16", captured.query.layout)
    try:
        (other,) = registry.for_devices([predictor.device], "bf16", captured.shipped)
    except InputError as error:
        return Change("bf16 (autocast)", math.nan, f"not predicted: {error}", {"dtype": "bf16"})
    half = CapturedQuery(replace(captured.query, dtype="bf16", batch_size=captured.batch_size), captured.shipped)
    answer = half.predict(other)
    return Change("bf16 (autocast)", base.predicted_ms / answer.predicted_ms,
                  f"by the bf16 model, {source_of(other, passes_of(answer))}", {"dtype": "bf16"})


def verified(advice: Advice, several: Iterable[Change], device: str = "cpu",
             budget_s: float = 2.0) -> tuple[float, list[Change]]:
    """Measure the query and each change on this machine, a fresh process each; return the ms and the changes with gains.

    A gain is in images a second. Of a training step forward and backward are measured, the rest is as predicted. What cannot be
    measured says so in ``why``. Raises InputError where the query itself cannot be measured, or was not about ``device``.
    """
    from lib.measure.networks.case import Case

    devices = [predictor.device for predictor in advice.predictors]
    if device not in devices:
        raise InputError(f"what is measured here is {device}, and the query was about {choices(devices)}: add {device}")
    query = advice.captured.query
    base = Case(query.model, query.mode, advice.captured.batch_size, query.input_shape, query.dtype,
                query.layout == "channels_last", query.compiled)
    base_ms = _median_ms(base, device, budget_s)
    if isinstance(base_ms, str):
        raise InputError(f"{query.model} cannot be measured on {device}: {base_ms}")
    own = next(one for one in advice.predictors if one.device == device)
    beside = partial(_beside_ms, advice.captured, own)
    return base_ms, [_verified(change, base, base_ms, beside, device, budget_s) for change in track(list(several), "verify")]


def _beside_ms(captured: CapturedQuery, predictor: Predictor, batch_size: int) -> float:
    """Return what a training step of a batch is predicted to take beside forward and backward; 0 in inference."""
    if captured.query.mode == "infer":
        return 0.0
    return captured.predict(predictor, captured.scaled(batch_size, predictor.device_type)).beside_ms


def _verified(change: Change, base: Any, base_ms: float, beside: Callable[[int], float], device: str,
              budget_s: float) -> Change:
    apply = dict(change.apply)
    if "num_workers" in apply:
        return replace(change, why=f"{change.why}; 02_profile measures it with -p num_workers 2")
    memory = apply.pop("memory", "default")
    case = replace(base, **apply)
    measured_ms = _median_ms(case, device, budget_s, memory)
    if isinstance(measured_ms, str):
        return replace(change, why=f"{change.why}; could not be measured: {measured_ms}")
    before_ms, after_ms = base_ms + beside(base.batch_size), measured_ms + beside(case.batch_size)
    return replace(change, measured_gain=before_ms / after_ms * case.batch_size / base.batch_size)


def _median_ms(case: Any, device: str, budget_s: float, memory: str = "default") -> float | str:
    """Return the median time of a case in a process of its own, or the reason why there is none."""
    from lib.measure.networks import end_to_end

    visit = end_to_end.in_a_process([case], device, budget_s, memory)[0][0]
    return visit.reason or float(np.median(visit.samples_ms))


def loader_changes(workload: str) -> list[Change]:
    """Return what loader workers would give a workload, from its newest profile on this machine or in the reference."""
    for source in ("measure", "replay"):
        runs = archive.runs(source)
        runs = runs[runs["workload_id"] == workload]
        if source == "measure":
            runs = runs[runs["hardware_id"] == machine.ids()["hardware_id"]]
        if len(runs):
            rows = archive.rows(runs.iloc[[-1]], source)
            rows = rows[(rows["task_type"] == "train") & ~rows["warmup"].astype(bool)]
            wait, step = rows["loader_wait_ms"].median(), rows["step_time_ms"].median()
            return [Change("loader workers: 2", float(step / (step - wait)),
                           f"the loader makes a step wait {wait:.2f} of {step:.2f} ms (measured in {runs.iloc[-1]['run_id']}); "
                           "hidden at best", {"num_workers": 2})]
    return []
