"""What would make a network faster on one device: the predicted gain of each change, and the gain measured on this machine."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.measure.disturbance import LoadWatch
from lib.measure.networks import allocator
from lib.measure.statistics import UNUSABLE
from lib.predict import registry
from lib.predict.advice.advise import Advice
from lib.predict.advice.query import Answer, CapturedQuery, is_by_runtime
from lib.predict.gpu import scores
from lib.predict.networks import runtimes
from lib.predict.power import limits
from lib.progress import track
from lib.work.run_config import CONDITION, INT8, RunConfig

_RUNTIMES = 3  # that are suggested
_BUDGET_S = 2.0  # of measuring one change
_BUSY = "other processes held its cores meanwhile"
RETAINING = " ".join(f"{name}={value}" for name, value in allocator.HEAPS["kept"].items())
_SLOWER, _STEP_W = 1.1, 5.0  # times as long may a step take under a suggested power limit; the distance of limits compared
_FUSED = "activation elementwise batch_norm copy cat".split()  # families that a compiler fuses into others


@dataclass(frozen=True)
class Change:
    """One thing to change, the predicted factor of images a second (NaN: not predicted), and why.

    ``settings``: new values of fields of the run, of ``memory`` or of ``num_workers``.
    """

    what: str
    predicted_gain: float
    why: str
    settings: Mapping[str, Any]
    measured_gain: float = math.nan

    @property
    def options(self) -> str:
        """Return the options of ``advise`` that ask for another runtime; empty for other changes."""
        if "runtime" not in self.settings:
            return ""
        texts = [f"--{name} {self.settings[name]}" for name in ("runtime", "dtype", "threads", "instances")
                 if self.settings[name] != getattr(RunConfig, name)]
        return " ".join(["--compile"] * self.settings["compiled"] + texts)


def suggestions(advice: Advice) -> list[Change]:
    """Return what could be changed on this machine's CPU, or else on the recommended device, the best gain first."""
    suggested = changes(advice.suggestion_target)
    if advice.captured.config.mode == "train":
        suggested += loader_changes(advice.captured.config.network)
    return sorted(suggested, key=lambda change: -np.nan_to_num(change.predicted_gain, nan=0.0))


def changes(answer: Answer) -> list[Change]:
    """Return what could be changed on one device, with the gain in images a second that its model predicts."""
    config, other_runtimes = answer.config, _runtimes(answer)
    suggested = [*filter(None, [retained_memory(answer)]), *_larger_batches(answer), *other_runtimes]
    if not config.compiled and not other_runtimes:
        operators = answer.passes.operators
        fused = operators["cost_ms"][operators["op"].isin(_FUSED)].sum() / operators["cost_ms"].sum()
        suggested.append(_learned(answer, Change("torch.compile", math.nan, "not predicted; operators that it could fuse take "
                                                  f"{fused:.0%} of the predicted time of all operators", {"compiled": True})))
    if config.layout == "contiguous" and not config.is_for_cpu and any(entry.is_picture for entry in config.loaded().batch):
        suggested.append(_learned(answer, Change("channels_last", math.nan, "not predicted: its operators were not swept in "
                                                  "this layout", {"layout": "channels_last"})))
    is_listed = other_runtimes and is_by_runtime(replace(config, dtype="bf16"))  # among the runtimes
    in_bf16 = [_half_precision(answer)] if config.dtype == "fp32" and not config.is_for_cpu and not is_listed else []
    return [*suggested, *in_bf16, *_power_limit(answer)]


def _runtimes(answer: Answer) -> list[Change]:
    """Return the best runtimes by networks measured on a CPU like this one, at least one of them not int8.

    Each runtime and element type is there once, with its best number of threads and processes.
    """
    config, best = answer.config, {}
    if not answer.is_of_fp32_model or answer.uses_gain or (config.mode, config.layout) != ("infer", "contiguous"):
        return []
    here, before_ms = runtimes.condition_here(config), answer.passes.predicted_ms / config.instances
    for condition in runtimes.known():
        if condition != here:
            learned = answer.runtime(condition)
            settings = {name: getattr(condition, name) for name in CONDITION}
            change = Change(condition.label, before_ms * condition.instances / learned.predicted_ms, learned.evidence, settings)
            kind = condition.runtime, condition.compiled, condition.dtype
            best[kind] = max(best.get(kind, change), change, key=attrgetter("predicted_gain"))
    ranked = sorted(best.values(), key=attrgetter("predicted_gain"), reverse=True)
    exact = [change for change in ranked if change.settings["dtype"] != INT8]
    return [change for change in ranked if change in (*ranked[:_RUNTIMES], *exact[:1])]


def _learned(answer: Answer, change: Change) -> Change:
    """Return a change with the gain of whole networks that ran both ways on the device; unchanged without any."""
    before = answer.config
    after = replace(before, **change.settings)
    if answer.condition:
        changed = replace(answer, captured=answer.captured.with_changes(**change.settings))
        return replace(change, predicted_gain=answer.passes.predicted_ms / changed.passes.predicted_ms,
                       why=scores.change_words(answer.condition, changed.condition))
    if not answer.is_of_fp32_model or after.compiled:
        return change  # gains are over fp32
    try:
        changed = answer.gain(after.dtype, after.layout)
        usual = answer.gain(before.dtype, before.layout).gain if answer.uses_gain else 1.0
    except InputError as error:
        return replace(change, why=f"not predicted: {error}")
    return replace(change, predicted_gain=changed.gain / usual, why=changed.evidence)


def retained_memory(answer: Answer) -> Change | None:
    """Return the change to a heap that retains freed memory; None if passes take no fresh memory, as in a training loop."""
    fresh_mb, composition = answer.work.fresh_bytes / 1e6, answer.predictor.composition("infer")
    if answer.config.mode == "train" or answer.uses_runtime or not (composition.rates.get("fresh_mb") and fresh_mb):
        return None
    retained_ms = replace(answer, device_condition=replace(answer.device_condition, memory="kept")).estimate.predicted_ms
    return Change(f"retain freed memory ({RETAINING})", answer.estimate.predicted_ms / retained_ms,
                  f"{fresh_mb:,.0f} MB a pass come fresh from the system, a page fault each 4 KiB", {"memory": "kept"})


def _larger_batches(answer: Answer) -> Iterator[Change]:
    for factor in (2, 4):
        larger = replace(answer, batch_size=answer.captured.batch_size * factor)
        if larger.fits:
            gain = factor * answer.estimate.predicted_ms / larger.estimate.predicted_ms
            together = larger.batch_size * answer.config.gpus
            yield Change(f"batch size {together}", gain, f"images a second; needs {larger.memory_mb:,.0f} MB",
                         {"batch_size": together})


def _power_limit(answer: Answer) -> Iterator[Change]:
    """Yield the limit that saves most energy at a small cost of time, if its whole range saves energy."""
    card = load_devices().get(answer.predictor.kind)
    condition = answer.device_condition
    if card and not limits.refusal(card.id, card.power_w) and not condition.power_limit_w and not condition.clock_mhz:
        saving = [ratios for ratios in map(answer.ratios, np.arange(card.least_power_w, card.power_w, _STEP_W))
                  if ratios["time_ratio"] <= _SLOWER and ratios["energy_ratio_high"] < 1]
        for best in sorted(saving, key=itemgetter("energy_ratio"))[:1]:
            limit_w = best["power_limit_w"]
            yield Change(f"nvidia-smi -pl {limit_w:g}", 1 / best["time_ratio"], limits.text(best), {"power_limit_w": limit_w})


def _half_precision(answer: Answer) -> Change:
    change = Change("bf16 (autocast)", math.nan, "", {"dtype": "bf16"})
    if answer.predictor.device == "cpu" and not registry.has_cpu("bf16"):
        return _learned(answer, change)
    try:
        (other,) = registry.for_devices([answer.predictor.device], "bf16", answer.predictor.shipped)
    except InputError as error:
        return replace(change, why=f"not predicted: {str(error).partition(';')[0]}")
    batch_size = answer.captured.batch_size * answer.config.gpus
    in_bf16 = Answer(CapturedQuery(replace(answer.config, dtype="bf16", batch_size=batch_size)), other,
                     device_condition=answer.device_condition)
    return replace(change, predicted_gain=answer.estimate.predicted_ms / in_bf16.estimate.predicted_ms,
                   why=f"by the bf16 model, {other.source(in_bf16.passes)}")


def verified(advice: Advice, suggested: Sequence[Change]) -> tuple[float, list[Change]]:
    """Measure the query and each change on this machine's CPU, a fresh process each; return the ms and the changes with gains.

    A gain is in images a second. Of a training step, forward and backward are measured and the rest is predicted. A change that
    cannot be measured says so in ``why``. While others hold its cores nothing is compared: the ms are NaN.
    Raises InputError if the query cannot be measured, or is not about the CPU.
    """
    answer = advice.of("cpu")
    if answer is None:
        raise InputError(f"--verify measures this machine's cpu; the query is about {choices(advice.table['device'])}: "
                         "add --device cpu")
    base_ms = _median_ms(answer, {})
    if base_ms == _BUSY:
        return math.nan, [*suggested]
    if isinstance(base_ms, str):
        raise InputError(f"{answer.config.network} cannot be measured on cpu: {base_ms}")
    return base_ms, [_verified(answer, change, base_ms) for change in track(suggested, "verify")]


def _verified(answer: Answer, change: Change, base_ms: float) -> Change:
    if "num_workers" in change.settings:
        return replace(change, why=f"{change.why}; 02_profile measures it with -p num_workers 2")
    measured_ms = _median_ms(answer, change.settings)
    if isinstance(measured_ms, str):
        return replace(change, why=f"{change.why}; could not be measured: {measured_ms}")
    batch_size = answer.captured.batch_size
    changed = replace(answer, batch_size=change.settings.get("batch_size", batch_size))
    before_ms, after_ms = base_ms + answer.beside_ms, measured_ms + changed.beside_ms
    instances = answer.config.instances
    at_once = changed.batch_size / batch_size * change.settings.get("instances", instances) / instances
    return replace(change, measured_gain=before_ms / after_ms * at_once)


def _median_ms(answer: Answer, settings: Mapping[str, Any]) -> float | str:
    """Return the median time of a changed query in a process of its own, or the reason why there is none."""
    from lib.measure.networks import end_to_end

    fields = {"batch_size": answer.captured.batch_size, "memory": "default", **settings}
    memory = fields.pop("memory")
    config, watch = replace(answer.config, **fields), LoadWatch()
    visit = end_to_end.in_a_process([config], "cpu", end_to_end.MeasureOptions(_BUDGET_S), memory)[0][0]
    if watch.reading().verdict(config.instances * (config.threads or torch.get_num_threads())) == UNUSABLE:
        return _BUSY
    return visit.reason or float(np.median(visit.samples_ms))


def loader_changes(workload: str) -> list[Change]:
    """Return what loader workers would give a workload, from its newest profile on this machine or in the reference."""
    for source in ("measure", "replay"):
        runs = archive.runs(source).query("workload_id == @workload")
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
