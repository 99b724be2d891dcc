"""A question about a network, what is captured of the network to answer it, and the answer of one device."""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure.networks import allocator
from lib.predict import parallel, registry, scores, steps
from lib.predict.gpu import model as gpu_model
from lib.predict.gpu import rows as gpu_rows
from lib.predict.gpu.levels import Condition
from lib.predict.networks import composition, gains, resident, runtimes, work
from lib.predict.networks.composition import Composition, Estimate, Provenance
from lib.predict.networks.step import STEP_PHASES, Step
from lib.predict.networks.work import Work
from lib.predict.power import energy, limits
from lib.predict.trust import quote
from lib.work import dtypes
from lib.work.graph import capture
from lib.work.run_config import INT8, TF32, USUAL_CONDITION, DeviceCondition, RunConfig
from lib.work.runtimes import TORCH, runtime_of

COLUMNS = (*"device source predicted_ms low_ms high_ms images_per_sec predicted_gbps memory_mb bound below_roof out_of_range "
            "fits measured_ms price_per_million dtype energy_j energy_low_j energy_high_j "
            "latency_type rss_mb rss_low_mb rss_high_mb".split(), *limits.COLUMNS, "clock_mhz", *quote.COLUMNS,
           *(f"{name}_ms" for name in STEP_PHASES), "parallel_ms", "scaling_efficiency", "gradients_mb", "input_mb",
           "not_modelled", "flops_not_known")
_LEAST_BATCH = 2  # a single sample runs other kernels than a batch: no line goes through it
_WIDE = math.log(2)  # half a range in log time, above which an answer for a GPU is flagged
_LAYOUTS = {"contiguous": "nchw", "channels_last": "nhwc"}
_COUNTS = ("calls", "backward_calls", "covered")  # columns of work that do not grow with the batch
_NOT_COMPARED = {"gpus", "threads"}  # a table of networks is of one GPU, or all threads of the model's CPU
_HOST = {"loader_wait": "loader", "h2d": "copy", "optimizer": "optimizer"}  # parts of a step that may limit it


def check(config: RunConfig) -> None:
    """Raise InputError for a value that is none of its choices, what its runtime lacks, or GPUs that cannot share a batch."""
    config.check()
    if (config.runtime, config.dtype) != (TORCH, INT8):  # which advice refuses by device
        runtime_of(config)
    if config.gpus not in parallel.GPUS or config.batch_size % config.gpus:
        raise InputError(f"{config.gpus} GPUs cannot share a batch of {config.batch_size or 1}: give 1 to {parallel.GPUS[-1]}, "
                         "and a multiple of them as the batch")


def is_by_runtime(config: RunConfig) -> bool:
    """Return whether a CPU's fp32 model answers by networks in a runtime: also a type of torch whose gain is not known."""
    is_new = config.dtype != "fp32" and (config.mode, config.layout) == ("infer", "contiguous") \
        and not gains.serves(config.dtype)
    return config.is_for_cpu or (is_new and not runtimes.shipped().refusal(runtimes.condition_here(config)))


def cached_with_errors(call: Callable) -> Callable:
    """Cache a function's results and its exceptions by argument."""
    outcomes = {}

    def outcome(*given):
        if given not in outcomes:
            try:
                outcomes[given] = call(*given), None
            except Exception as error:
                outcomes[given] = None, error
        result, error = outcomes[given]
        if error:
            raise error
        return result
    return outcome


class CapturedQuery:
    """A run that is asked about, and captures of its network: one per device type and batch size, reused by every answer.

    Raises InputError for an unknown element type, mode or runtime, and for a network that cannot be built.
    """

    def __init__(self, config: RunConfig):
        check(config)
        self.config, network = config, config.loaded()
        self.batch_size, self.dimensions = network.shape[0], len(network.shape)
        module = cache(lambda: capture.prepared(network))
        self._captured = cached_with_errors(lambda batch_size, device_type: work.captured(
            config.loaded(batch_size), config.mode, dtypes.torch_name("fp32" if config.dtype == INT8 else config.dtype),
            device=device_type, ready=module(), with_autocast=config.autocast))
        self._scaled = cache(lambda *case: _interpolated(self._captured, *case))
        self._rows = cache(lambda: gpu_rows.of_network(network, module()))
        self.rows_batch = gpu_rows.batch_of(self.batch_size)  # whatever the batch of a changed question
        self._in_fp32 = cache(lambda: CapturedQuery(RunConfig(config.network, config.batch_size, config.input_shape,
                                                              config.mode)))

    def with_changes(self, **changes) -> "CapturedQuery":
        """Return the question with another batch size or layout, compiled or in a runtime; both share their captures."""
        other = copy(self)
        other.config = replace(self.config, **changes)
        other.batch_size = other.config.batch_per_gpu or other.config.loaded().shape[0]
        return other

    def work(self, batch_size: int = 0, device_type: str = "cpu") -> Work:
        """Return the work at a batch size (0: the query's), captured as a device type (cpu, cuda) runs it."""
        return self._captured(batch_size or self.batch_size, device_type)

    def scaled(self, batch_size: int = 0, device_type: str = "cpu") -> Work:
        """Return the work at another batch size, interpolated between two captures: sizes are linear in the batch.

        A network is captured at the batch size itself where the two captures fail, or have different operators.
        """
        return self._scaled(self.batch_size, batch_size or self.batch_size, device_type)

    @property
    def kernel_rows(self) -> pd.DataFrame:
        """Give the network as rows of kernels of a GPU (``gpu.rows``), at ``rows_batch``."""
        return self._rows()

    def in_fp32(self) -> "CapturedQuery":
        """Return the query in fp32 and the default layout, at the same batch size."""
        if self.config.dtype in ("fp32", TF32, INT8):
            return self
        return self._in_fp32().with_changes(batch_size=self.batch_size, gpus=1)


def _interpolated(captured: Callable, usual: int, batch_size: int, device_type: str) -> Work:
    base = max(_LEAST_BATCH, usual)
    if batch_size in (usual, base, 2 * base):
        return captured(batch_size, device_type)
    share = (batch_size - base) / base
    try:
        first, second = (captured(size, device_type) for size in (base, 2 * base))
        plan = first.plan.towards(second.plan, share)
    except ValueError:
        return captured(batch_size, device_type)
    if list(first.table["op"]) != list(second.table["op"]):
        return captured(batch_size, device_type)

    def line(start, end):
        return start + share * (end - start)

    sizes = [name for name in first.table.select_dtypes("number") if name not in _COUNTS]
    table = first.table.assign(**{name: line(first.table[name], second.table[name]) for name in sizes})
    totals = {name: max(0.0, line(getattr(first, name), getattr(second, name))) for name in ("weight_bytes", "input_values")}
    return replace(first, table=table, batch_size=batch_size, plan=plan, **totals)


@dataclass(frozen=True)
class Answer:
    """The prediction of a run on one device, and its reasons.

    ``batch_size``: instead of the run's (0: the run's).
    """

    captured: CapturedQuery
    predictor: registry.Predictor
    batch_size: int = 0
    device_condition: DeviceCondition = USUAL_CONDITION

    @property
    def config(self) -> RunConfig:
        """Return the run that is asked about."""
        return self.captured.config

    @cached_property
    def work(self) -> Work:
        """Give what the device runs."""
        return self.captured.scaled(self.batch_size, self.predictor.device_type)

    @property
    def condition(self) -> Condition | None:
        """Return how a GPU runs the query; None on a CPU."""
        config = self.config
        if self.predictor.device_type == "cpu":
            return None
        is_amp = config.dtype in dtypes.AUTOCAST and config.autocast
        precision = f"amp_{config.dtype}" if is_amp else config.dtype
        return Condition(config.mode, precision, _LAYOUTS[config.layout], config.compiled)

    @property
    def is_of_fp32_model(self) -> bool:
        """Return whether this machine's CPU answers by its fp32 model."""
        return self.predictor.device == "cpu" and self.predictor.model.facts["dtype"] == "fp32"

    @property
    def uses_gain(self) -> bool:
        """Return whether this CPU's answer is its fp32 time divided by the gain of an element type or layout."""
        config = self.config
        is_default = (config.dtype, config.layout) == ("fp32", "contiguous") or config.compiled or is_by_runtime(config)
        return self.is_of_fp32_model and not is_default

    @property
    def uses_runtime(self) -> bool:
        """Return whether this CPU's answer is that of another runtime, int8, torch.compile, threads or instances."""
        config = self.config
        return self.is_of_fp32_model and (config.compiled or is_by_runtime(config)) and \
            (config.mode, config.layout) == ("infer", "contiguous")

    @property
    def _scales_fp32_time(self) -> bool:
        return self.uses_gain or self.uses_runtime

    @cached_property
    def estimate(self) -> Estimate | Step:
        """Predict a forward pass, or a training step with all of its parts, under the query's power limit or clock."""
        usual, condition = self._without_power_limit, self.device_condition
        if not (condition.power_limit_w or condition.clock_mhz):
            return usual
        return limits.limited(usual, self._changes, of_gpu=bool(condition.clock_mhz))

    @cached_property
    def load(self) -> energy.Load:
        """Give what the passes ask of a GPU, at its boost clock."""
        estimate = self._without_power_limit
        return energy.Load.of(self.work, getattr(estimate, "passes", estimate), self.predictor)

    def ratios(self, limit_w: float) -> dict[str, float]:
        """Return what a power limit that the device takes (``limits.refusal``) changes; nothing for 0."""
        if not limit_w:
            return {}
        drawn_w = energy.shipped().watts(self.load, self.predictor.kind, self._without_power_limit.predicted_ms)
        return limits.shipped().ratios(self.predictor.kind, limit_w, drawn_w)

    @cached_property
    def _changes(self) -> dict[str, float]:
        """Give what the query's power limit or clock changes."""
        clock_mhz = self.device_condition.clock_mhz
        if clock_mhz:
            return energy.shipped().ratios(self.load, self.predictor.kind, clock_mhz)
        return self.ratios(self.device_condition.power_limit_w)

    @cached_property
    def _without_power_limit(self) -> Estimate | Step:
        config = self.config
        if self.condition:
            passes = self._on_gpu()
        else:
            passes = self._by_gain() if self.uses_gain else self._by_runtime() if self.uses_runtime else None
        if config.gpus > 1:
            passes = parallel.estimate(passes, self.work, self.predictor.kind, config.gpus)
        if config.mode == "infer":
            return passes or self._operator_sum
        return steps.predict(self.predictor, self.work, steps.loading(config.network, self.work), passes=passes)

    @property
    def passes(self) -> Estimate:
        """Return the estimate of the passes: of a step, forward and backward."""
        return getattr(self.estimate, "passes", self.estimate)

    @property
    def memory_mb(self) -> float:
        """Return the MB that a device needs; a training step's include the optimizer's state and DDP's buckets of gradients."""
        buckets_mb = parallel.gradients_mb(self.work) if self.config.gpus > 1 else 0.0
        return getattr(self.estimate, "memory_mb", self.work.memory_mb) + buckets_mb

    @property
    def beside_ms(self) -> float:
        """Return what a training step is predicted to take beside forward and backward; 0 in inference."""
        return getattr(self.estimate, "beside_ms", 0.0)

    @property
    def fits(self) -> bool:
        """Return whether its tensors fit into the memory of the device."""
        return self.memory_mb < self.predictor.memory_mb

    @property
    def heap(self) -> str:
        """Return the heap of a CPU's passes: a training loop retains freed memory."""
        return "kept" if self.config.mode == "train" else self.device_condition.memory

    @property
    def composition(self) -> Composition:
        """Return what networks on this device add to the sum of their operators."""
        return self.predictor.composition(self.config.mode, self.heap)

    @cached_property
    def _operator_sum(self) -> Estimate:
        return self._called(self.predictor.estimate(self.work, self.device_condition.memory), self.work)

    def _called(self, passes: Estimate, work: Work) -> Estimate:
        """Return eager passes; to inference of a small network on this CPU, the cost of a call is added."""
        if self.predictor.device != "cpu" or self.config.mode == "train" or not runtimes.shipped().is_smaller(work):
            return passes
        call_ms, machines = runtimes.call_cost(runtimes.EAGER)
        words = f"a call costs {call_ms * 1e3:.3g} us of it (an empty network on {machines})"
        return passes.scaled(1 + call_ms / passes.predicted_ms, 0.0, launches_ms=call_ms + self.predictor.launches_ms(work),
                             provenance=replace(passes.provenance, call=words))

    def _on_gpu(self) -> Estimate:
        """Predict passes by the model of GPUs, which learned from whole networks, modules and operators."""
        work, predictor, captured = self.work, self.predictor, self.captured
        rows = gpu_rows.of_passes(captured.kernel_rows)
        answer = gpu_model.shipped().predict(load_devices()[predictor.kind], self.condition, rows,
                                             work.batch_size / captured.rows_batch, self.device_condition.host_us,
                                             predictor.calibration)
        times = answer.times | ({"high_ms": math.inf} if work.uncounted else {})
        return Estimate(**times, outside=float(answer.half > _WIDE), provenance=Provenance(gpu=answer),
                        predict_operators=lambda: self._operator_sum.operators, launches_ms=answer.launches_ms)

    @cached_property
    def _in_fp32(self) -> Work:
        return self.captured.in_fp32().scaled(self.work.batch_size)

    def gain(self, dtype: str, layout: str) -> gains.GainAnswer:
        """Return the gain of an element type and layout over fp32 in the default layout on this CPU."""
        return gains.answer(self._in_fp32, self.predictor.model, dtype, layout)

    @cached_property
    def eager(self) -> dict[str, Estimate]:
        """Give a pass in eager fp32 on this CPU, by heap: ``kept`` and ``default``."""
        return {heap: self.predictor.estimate(self._in_fp32, heap) for heap in allocator.HEAPS}

    @cached_property
    def _runtime_terms(self) -> dict[str, float]:
        return runtimes.terms(self._in_fp32, composition.predicted_operators(self._in_fp32, self.predictor.model))

    def runtime(self, condition: RunConfig) -> runtimes.RuntimeAnswer:
        """Return the time of a pass under another condition on this CPU."""
        return runtimes.answer(self._in_fp32, self._runtime_terms, self.eager, condition)

    def _by_runtime(self) -> Estimate:
        runtime, base = self.runtime(runtimes.condition_here(self.config)), self.eager["default"]
        return replace(base, predicted_ms=runtime.predicted_ms, low_ms=runtime.low_ms, high_ms=runtime.high_ms,
                       provenance=replace(base.provenance, runtime=runtime))

    def _by_gain(self) -> Estimate:
        base = self.predictor.estimate(self._in_fp32, self.device_condition.memory) if self.config.mode == "infer" else \
            steps.passes_in_a_loop(self.predictor, self._in_fp32)
        gain = self.gain(self.config.dtype, self.config.layout)
        gained = base.scaled(1 / gain.gain, gain.half, provenance=replace(base.provenance, gain=gain))
        return self._called(gained, self._in_fp32)

    @property
    def columns(self) -> dict[str, Any]:
        """Return the answer as a row (COLUMNS)."""
        estimate, passes, predictor, work = self.estimate, self.passes, self.predictor, self.work
        gpus, runtime = self.config.gpus, passes.provenance.runtime
        rate = gpus * self.config.instances * work.batch_size / estimate.predicted_ms * 1e3
        price, resident_mb = predictor.price_per_hour, self._resident_mb()
        branches = [f"values at {place} (those of random inputs)" for place in work.branches]
        return {"device": predictor.device, "source": predictor.source(passes), **estimate.times, "images_per_sec": rate,
                "memory_mb": self.memory_mb,
                "predicted_gbps": work.bytes / estimate.predicted_ms / 1e6, "bound": self._bound(),
                "below_roof": math.nan if self._scales_fp32_time else passes.predicted_ms / self._roof_ms(),
                "out_of_range": bool(passes.outside > scores.OUTSIDE or predictor.origin or gpus > 1
                                     or (runtime and (runtime.is_borrowed or runtime.is_outside))),
                "fits": bool(max(self.memory_mb, resident_mb.get("rss_mb", 0.0)) < predictor.memory_mb),
                "measured_ms": self._measured_ms(), "dtype": self.config.dtype,
                "latency_type": "end_to_end",
                **quote.quote(self).columns,
                "price_per_million": price * gpus / rate * 1e6 / 3600 if price else math.nan, **resident_mb,
                **self._joules(), **self._changes, **getattr(estimate, "columns", {}),
                "gradients_mb": parallel.gradients_mb(work), "input_mb": work.input_values * 4 / 1e6,
                "parallel_ms": passes.parallel_ms,
                "scaling_efficiency": 1 - passes.parallel_ms / passes.predicted_ms,
                "not_modelled": choices([*work.not_modelled, *branches]), "flops_not_known": choices(work.uncounted)}

    def _roof_ms(self) -> float:
        """Return the ms of the passes at the device's roofs, one operator after another."""
        on_gpu = self.passes.provenance.gpu
        return on_gpu.roof_ms if on_gpu else self.predictor.roof_ms(self.work)

    def _joules(self) -> dict[str, float]:
        """Return the joules per sample with an interval."""
        clock_mhz = self.device_condition.clock_mhz
        times = (self.estimate if clock_mhz else self._without_power_limit).times
        joules = energy.shipped().per_sample(self.load, self.predictor.kind, times, self.work.batch_size, clock_mhz)
        ratio = 1.0 if clock_mhz else self._changes.get("energy_ratio", 1.0)
        return {name: value * ratio for name, value in joules.items()}

    def _resident_mb(self) -> dict[str, float]:
        """Return the resident MB that a fresh process grows by, with an interval; empty if none was learned."""
        fitted = self.predictor.model.resident.get("default")
        if not fitted:
            return {}
        mb = resident.answer(fitted, self.work, self.memory_mb - self.work.memory_mb)
        return dict(zip(("rss_mb", "rss_low_mb", "rss_high_mb"), mb, strict=True))

    def _bound(self) -> str:
        """Return what limits the answer: loader, copy, optimizer, other GPUs, or the passes (``Predictor.bound_of``)."""
        dominant_ms = registry.DOMINANT_SHARE * self.estimate.predicted_ms
        if self.passes.parallel_ms > dominant_ms:
            return "gradient exchange"
        longest = getattr(self.estimate, "longest", "")
        if longest in _HOST and self.estimate.parts[longest].predicted_ms > dominant_ms:
            return _HOST[longest]
        work, passes = self._in_fp32 if self._scales_fp32_time else self.work, self.passes
        launches_ms = self.predictor.launches_ms(work) if passes.launches_ms is None else passes.launches_ms
        return self.predictor.bound_of(work.flops_and_bytes, launches_ms, passes.predicted_ms - passes.parallel_ms)

    def _measured_ms(self) -> float:
        """Return the measured ms of this very query on the device, NaN without one; a training step's is from its profile."""
        config, batch_size = self.config, self.work.batch_size
        condition = self.device_condition
        if condition.power_limit_w or condition.clock_mhz or config.gpus > 1 or config.threads:
            return math.nan
        if config.mode == "train":
            return steps.measured_step_ms(self.predictor, config.network, batch_size) if config.dtype == "fp32" else math.nan
        table = self.predictor.measured_networks
        if table is None:
            return math.nan
        wanted = replace(config, batch_size=batch_size).columns | {"status": "ok", "memory": "default"}
        compared = wanted.keys() - _NOT_COMPARED
        same = table[np.logical_and.reduce([table[name] == wanted[name] for name in compared])]
        return float(same["latency_ms"].iloc[-1]) if len(same) else math.nan
