"""Advice: where a network should run, how long it takes there, and what bounds it."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.measure.networks import allocator
from lib.predict import registry, steps, transfer_cpu
from lib.predict.composed import answers
from lib.predict.composed import rows as composed_rows
from lib.predict.composed.features import Condition
from lib.predict.gains import answers as gains
from lib.predict.networks import memory, resident, step, work
from lib.predict.networks.composition import Composition, Estimate
from lib.predict.networks.step import Step
from lib.predict.networks.work import Work
from lib.predict.power import energy
from lib.predict.registry import Predictor
from lib.predict.trust import quote
from lib.work import dtypes, networks
from lib.work.graph import capture, ops

COLUMNS = ("device", "source", "predicted_ms", "low_ms", "high_ms", "images_per_sec", "memory_mb", "bound", "below_roof",
           "out_of_range", "fits", "measured_ms", "price_per_million", "dtype", "energy_j", "energy_low_j", "energy_high_j",
           "energy_share", "energy_source", "latency_type", "rss_mb", "rss_low_mb", "rss_high_mb", *quote.COLUMNS,
           *(f"{name}_ms" for name in step.PARTS))
BATCHES = (1, 4, 16, 64, 256)
_RIVALS = 3  # devices that are compared over batch sizes: this machine's CPU and the fastest
_BATCH = 2  # samples at least of a batch by which others are judged
_DTYPES = ("fp32", *dtypes.AUTOCAST)
_HOST = {"loader_wait": "loader", "h2d": "copy", "optimizer": "optimizer"}  # what bounds a step beside its passes
_MOST = 0.5  # of the time borrowed from other devices, and an answer is zero-shot
_SHARE = 0.05  # of the time out of the training range, and the network counts as out of range


@dataclass(frozen=True)
class Query:
    """A network, its batch and mode, the element type, the layout of images, and whether torch.compile compiles it."""

    model: str
    batch_size: int = 0
    input_shape: str = ""
    mode: str = "infer"
    dtype: str = "fp32"
    layout: str = "contiguous"
    compiled: bool = False

    def network(self, batch_size: int = 0) -> networks.Network:
        """Return the network with its batch; InputError for what cannot be built."""
        return networks.network(self.model, batch_size or self.batch_size, self.input_shape)


@dataclass(frozen=True)
class Advice:
    """The answer: a row a device (COLUMNS), the recommended one with its reason, and the batch sizes where that changes."""

    captured: "CapturedQuery"
    table: pd.DataFrame
    recommended: str
    reason: str
    crossovers: tuple[str, ...]
    predictors: tuple[Predictor, ...]


class CapturedQuery:
    """One query, captured once a device type (and once more at another batch size when several are compared).

    ``shipped``: what profiles gave is that of the reference alone.
    """

    def __init__(self, query: Query, shipped: bool = False):
        if query.dtype not in _DTYPES:
            raise InputError(f"no element type {query.dtype!r}; there are: {choices(_DTYPES)}")
        if query.mode not in ops.MODES:
            raise InputError(f"no mode {query.mode!r}; there are: {choices(ops.MODES)}")
        self.query, self.shipped, self._works, self._scaled = query, shipped, {}, {}
        network = query.network()
        self.batch_size = network.shape[0]
        self._built = cache(lambda: capture.prepared(network))
        self._ready = cache(lambda channels_last: capture.prepared(network, True, self._built()) if channels_last
                            else self._built())
        self._rows = cache(lambda: composed_rows.of_network(network, self._built()))
        self._of_fp32 = cache(lambda: CapturedQuery(replace(query, dtype="fp32", layout="contiguous"), shipped))
        self._usuals: dict[int, CapturedQuery] = {}

    def work(self, batch_size: int = 0, channels_last: bool = False, device_type: str = "cpu") -> Work:
        """Return the work at a batch size (0: the query's own), captured as it runs on a device type: cpu or cuda."""
        key = (batch_size or self.batch_size, channels_last, device_type)
        if key not in self._works:
            network = self.query.network(key[0])
            self._works[key] = work.captured(network, self.query.mode, dtypes.torch_name(self.query.dtype), channels_last,
                                              device_type, self._ready(channels_last))
        return self._works[key]

    def predicted(self, predictor: Predictor, network: Work | None = None, memory: str = "default") -> Estimate | Step:
        """Predict what the query asks for on a device: a forward pass, or a training step with all of its parts.

        ``network`` is the work where it is not that of the query's own batch size, ``memory`` what a pass's process does with
        freed memory, see ``Predictor.estimate``.
        """
        network = network or self.work(device_type=predictor.device_type)
        learned = self._by_gain(predictor, network, memory) if self.is_by_gain(predictor) else \
            self._of_whole_networks(predictor, network)
        if self.query.mode == "infer":
            return learned or predictor.estimate(network, memory)
        return steps.assembled(predictor, network, steps.loading(self.query.model, network),
                               learned or steps.passes_in_a_loop(predictor, network), steps.costs_of(predictor, self.shipped))

    @property
    def rows(self) -> pd.DataFrame:
        """Give the rows of work that composed models of cards take, see ``composed.rows``."""
        return self._rows()

    def under(self, **changes) -> "CapturedQuery":
        """Return the query with another batch size, layout or compiled; both share what is captured."""
        other = copy(self)
        other.query, other._scaled = replace(self.query, **changes), {}
        other.batch_size = other.query.network().shape[0]
        return other

    def condition(self, predictor: Predictor, **changes) -> Condition | None:
        """Return what was learned from whole networks that is like the query, with ``changes``; None where nothing was."""
        query = replace(self.query, **changes)
        if predictor.composed is None or len(query.network().shape) != 4:  # noqa: PLR2004 - images: batch, channels, height, width
            return None
        return answers.condition_of(predictor.composed, query.dtype, query.mode, query.layout, query.compiled)

    def quote(self, predictor: Predictor, network: Work, passes: Estimate) -> quote.Quote:
        """Return the errors on held-out networks or operators that are quoted beside the answer for a device."""
        memory = "default" if self.query.mode == "infer" else "kept"
        if self.is_by_gain(predictor):
            of_usual = quote.quote(predictor, network, passes, None, memory)
            return quote.Quote({}, f"in fp32 as laid out by default: {of_usual.words}; {passes.evidence}")
        return quote.quote(predictor, network, passes, self.condition(predictor) if passes.evidence else None, memory)

    def _of_whole_networks(self, predictor: Predictor, network: Work) -> Estimate | None:
        """Predict passes by the composed model of a card, where one was learned of whole networks run as the query says.

        What other cards say stands behind kernels of the card's own, where most of the time is theirs.
        """
        condition = self.condition(predictor)
        if condition is None:
            return None
        kernels = predictor.estimate(network)
        plain = (self.query.layout, self.query.compiled) == ("contiguous", False)
        shared = predictor.composed.under(condition).conditions[condition].basis == "others"
        if plain and shared and sum(kernels.origins.values()) <= _MOST:
            return None
        answer = answers.answer(predictor.composed, composed_rows.of_passes(self.rows), network.batch_size, condition)
        return replace(kernels, predicted_ms=answer.predicted_ms, low_ms=answer.low_ms,
                       high_ms=answer.high_ms, outside=float(answer.outside), origins=answer.origins, evidence=answer.source)

    def is_by_gain(self, predictor: Predictor) -> bool:
        """Return whether this machine's CPU answers by what the query's element type or layout gains over the usual ones."""
        usual = (self.query.dtype, self.query.layout) == ("fp32", "contiguous")
        of_fp32 = predictor.device == "cpu" and predictor.model.facts["dtype"] == "fp32"
        return of_fp32 and not usual and not self.query.compiled

    def usual(self) -> "CapturedQuery":
        """Return the query in fp32, of the same batch; its work is laid out by default."""
        if self.query.dtype == "fp32":
            return self
        if self.batch_size not in self._usuals:
            self._usuals[self.batch_size] = self._of_fp32().under(batch_size=self.batch_size)
        return self._usuals[self.batch_size]

    def gain(self, predictor: Predictor, dtype: str, layout: str) -> gains.Answer:
        """Return what an element type and layout gain over the usual ones on this machine's CPU, see ``gains.answer``."""
        return gains.answer(self.usual().work(), predictor.model, dtype, layout)

    def _by_gain(self, predictor: Predictor, network: Work, memory: str) -> Estimate:
        """Predict passes of a CPU from those in fp32 as they are laid out by default, and what the query's way gains."""
        usual = self.usual().scaled(network.batch_size)
        base = predictor.estimate(usual, memory) if self.query.mode == "infer" else steps.passes_in_a_loop(predictor, usual)
        answer = gains.answer(usual, predictor.model, self.query.dtype, self.query.layout)
        predicted_ms, of_gain = base.predicted_ms / answer.gain, math.log(answer.high / answer.gain)
        below, above = (math.exp(math.hypot(math.log(end / base.predicted_ms), of_gain)) for end in (base.low_ms, base.high_ms))
        return replace(base, predicted_ms=predicted_ms, low_ms=predicted_ms / below, high_ms=predicted_ms * above,
                       evidence=answer.evidence)

    def scaled(self, batch_size: int, device_type: str = "cpu") -> Work:
        """Return the work at another batch size, on the line through two that were captured: every size is linear in it.

        A single sample is on no line: convolutions take other kernels for it, and other memory beside their outputs.

        Where the two are not the same operators (its control flow differs), it is captured itself.
        """
        if (batch_size, device_type) not in self._scaled:
            self._scaled[batch_size, device_type] = self._on_the_line(batch_size, device_type)
        return self._scaled[batch_size, device_type]

    def look_ahead(self, batch_sizes: Sequence[int]) -> None:
        """Get the work of a CPU at several batch sizes side by side: each waits for a process that repeats its allocations."""
        *others, last = batch_sizes
        self.scaled(last, "cpu")  # captures what the others are scaled from
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda batch_size: self.scaled(batch_size, "cpu"), others))

    def _on_the_line(self, batch_size: int, device_type: str) -> Work:
        one = max(_BATCH, self.batch_size)
        if batch_size in (self.batch_size, one, 2 * one):
            return self.work(batch_size, device_type=device_type)
        first, other = (self.work(size, device_type=device_type) for size in (one, 2 * one))
        if list(first.table["op"]) != list(other.table["op"]):
            return self.work(batch_size, device_type=device_type)
        share = (batch_size - one) / one
        try:
            plan = first.plan.towards(other.plan, share)
        except ValueError:
            return self.work(batch_size, device_type=device_type)
        table = first.table.copy()
        for name in table:
            if name not in ("calls", "backward_calls", "covered") and pd.api.types.is_numeric_dtype(table[name]):
                table[name] = first.table[name] + share * (other.table[name] - first.table[name])
        line = {name: max(0.0, getattr(first, name) + share * (getattr(other, name) - getattr(first, name)))
                for name in ("weight_bytes", "input_values")}
        fresh = allocator.fresh_bytes(plan) if device_type == "cpu" else 0.0
        return replace(first, table=table, batch_size=batch_size, plan=plan, fresh_bytes=fresh,
                       peak_bytes=memory.peak_bytes(plan), **line)


def advise(query: Query, devices: Sequence[str] = (), crossovers: bool = True) -> Advice:
    """Predict ``query`` on every device that has a model (or those named) and recommend one.

    Raises InputError for a network that cannot be built or captured, and for a device without a model (they are listed).
    """
    captured = CapturedQuery(query)
    predictors = able(captured, for_networks(devices, query.dtype), bool(devices))
    table = predictions(captured, predictors)
    best = _best(table)
    rivals = ["cpu", *[name for name in table["device"] if name != "cpu"]][:_RIVALS]
    compared = [predictor for predictor in predictors if predictor.device in rivals]
    changes = _crossovers(captured, compared) if crossovers and len(compared) > 1 else ()
    return Advice(captured, table, best, _reason(table, best), changes, tuple(predictors))


def for_networks(devices: Sequence[str], dtype: str, **how: Any) -> list[Predictor]:
    """Return the devices that networks can be predicted on in an element type, see ``registry.for_devices``.

    This machine's CPU without a model of it answers by its fp32 model, where networks tell what the element type gains.
    """
    repeated = len(set(devices)) < len(devices)
    if repeated or (devices and "cpu" not in devices) or registry.has_cpu(dtype) or not gains.serves(dtype):
        return registry.for_devices(devices, dtype, **how)
    (cpu,) = registry.for_devices(["cpu"], "fp32", **how)
    others = [device for device in devices if device != "cpu"]
    return [replace(cpu, dtype=dtype), *(registry.for_devices(others, dtype, **how) if others or not devices else ())]


def able(captured: CapturedQuery, predictors: Sequence[Predictor], named: bool) -> list[Predictor]:
    """Return the devices that can be predicted in the layout and compiled as the query says; all of them where it says neither.

    Raises InputError where none can, or one that was ``named`` cannot.
    """
    query = captured.query
    if query.layout not in answers.LAYOUTS:
        raise InputError(f"no layout {query.layout!r}; there are: {choices(answers.LAYOUTS)}")
    if (query.layout, query.compiled) == ("contiguous", False):
        return list(predictors)
    able = [one for one in predictors if captured.condition(one) or captured.is_by_gain(one)]
    if not able or (named and len(able) < len(predictors)):
        unable = choices(one.device for one in predictors if one not in able)
        how = " ".join([query.layout, *["compiled"] * query.compiled, query.dtype, query.mode])
        raise InputError(f"no networks that ran so ({how}) were learned from on: {unable}")
    return able


def without_ceilings(cpu: Predictor | None) -> bool:
    """Return whether this machine's CPU is predicted by another one's model, without ceilings that can be trusted."""
    return bool(cpu and cpu.origin and (not cpu.model.scaling or cpu.model.facts.get(transfer_cpu.DOUBTFUL)))


def predictions(captured: CapturedQuery, predictors: Sequence[Predictor]) -> pd.DataFrame:
    """Return a row a device (COLUMNS), the fastest first."""
    rows = [row(predictor, captured, captured.work(device_type=predictor.device_type)) for predictor in predictors]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("predicted_ms", ignore_index=True)


def row(predictor: Predictor, captured: CapturedQuery, network: Work) -> dict[str, Any]:
    """Return what a device does (COLUMNS) with the work of a query at one of its batch sizes."""
    answer = captured.predicted(predictor, network)
    estimate = passes_of(answer)
    rate = network.batch_size / answer.predicted_ms * 1e3
    memory_mb = memory_of(answer, network)
    resident_mb, by_gain = resident_of(predictor, answer, network), captured.is_by_gain(predictor)
    price = predictor.price_per_hour / rate * 1e6 / 3600 if predictor.price_per_hour else math.nan
    return {"device": predictor.device, "source": source_of(predictor, estimate), "predicted_ms": answer.predicted_ms,
            "low_ms": answer.low_ms, "high_ms": answer.high_ms, "images_per_sec": rate, "memory_mb": memory_mb,
            "bound": _bound(predictor, captured.usual().scaled(network.batch_size) if by_gain else network, answer),
            "below_roof": math.nan if by_gain else estimate.predicted_ms / predictor.roof_ms(network),
            "out_of_range": bool(estimate.outside > _SHARE or predictor.origin),
            "fits": bool(max(memory_mb, resident_mb.get("rss_mb", 0.0)) < predictor.memory_mb),
            "measured_ms": _measured(predictor, captured, network.batch_size), "dtype": captured.query.dtype,
            "latency_type": "end_to_end" if predictor.device_type == "cpu" or estimate.evidence else
            predictor.model.facts["latency_type"],
            **captured.quote(predictor, network, estimate).columns,
            "price_per_million": price, **resident_mb, **energy.per_image(predictor.power, estimate, network.batch_size),
            **(answer.columns if isinstance(answer, Step) else {})}


def passes_of(answer: Estimate | Step) -> Estimate:
    """Return the estimate of the passes that an answer rests on: of a step, forward and backward."""
    return answer.passes if isinstance(answer, Step) else answer


def memory_of(answer: Estimate | Step, network: Work) -> float:
    """Return the MB that an answer needs: of a training step with the optimizer's state."""
    return answer.memory_mb if isinstance(answer, Step) else network.memory_mb


def resident_of(predictor: Predictor, answer: Estimate | Step, network: Work) -> dict[str, float]:
    """Return the resident MB that a fresh process grows by for an answer, with an interval; empty where nothing was learned."""
    fitted = predictor.model.resident.get("default")
    if not fitted:
        return {}
    mb = resident.answer(Composition(**fitted), network, memory_of(answer, network) - network.memory_mb)
    return dict(zip(("rss_mb", "rss_low_mb", "rss_high_mb"), mb, strict=True))


def _bound(predictor: Predictor, network: Work, answer: Estimate | Step) -> str:
    """Return what most of the time goes to: a part beside the passes, or what bounds these (``Predictor.bound``)."""
    if isinstance(answer, Step) and answer.longest in _HOST and \
            answer.parts[answer.longest].predicted_ms > registry.MOST * answer.predicted_ms:
        return _HOST[answer.longest]
    return predictor.bound(network, passes_of(answer).predicted_ms)


def source_of(predictor: Predictor, estimate: Estimate) -> str:
    """Say on what an answer rests: zero-shot where most of its time was predicted from kernels of other devices."""
    if predictor.origin:
        scaling, doubtful = predictor.model.scaling, predictor.model.facts.get(transfer_cpu.DOUBTFUL)
        where = f"here{', on a busy machine,' if doubtful else ''}"
        return f"zero-shot from {predictor.origin}" + (f", scaled by ceilings measured {where} ({scaling})" if scaling else "")
    borrowed = sum(estimate.origins.values())
    if borrowed <= _SHARE:
        return "learned from whole networks" if estimate.evidence else "predicted"
    most = max(estimate.origins, key=estimate.origins.get)
    return f"zero-shot from {most}" if borrowed > _MOST else f"predicted, {borrowed:.0%} from {most}"


def _measured(predictor: Predictor, captured: CapturedQuery, batch_size: int) -> float:
    """Return what was measured of this very query on the device, NaN if it was not; of a training step by its profile."""
    query = captured.query
    if query.mode == "train" and query.dtype != "fp32":
        return math.nan
    if query.mode == "train":
        return steps.measured_step_ms(predictor, query.model, batch_size, captured.shipped)
    table = predictor.measured_networks
    if table is None or query.compiled:
        return math.nan
    same = table[(table["network"] == query.model) & (table["mode"] == query.mode) & (table["batch_size"] == batch_size)
                 & (table["dtype"] == query.dtype) & (table["input_shape"].fillna("") == query.input_shape)
                 & (table["channels_last"] == (query.layout == "channels_last"))
                 & (table["status"] == "ok") & (table["memory"] == "default")]
    return float(same["latency_ms"].iloc[-1]) if len(same) else math.nan


def _best(table: pd.DataFrame) -> str:
    fitting = table[table["fits"]]
    return str(fitting["device"].iloc[0]) if len(fitting) else ""


def _reason(table: pd.DataFrame, best: str) -> str:
    if not best:
        return f"none: {table['memory_mb'].iloc[0]:,.0f} MB fit into no known device"
    row = table[table["device"] == best].iloc[0]
    others = table[table["fits"] & (table["device"] != best)]
    text = f"{best}: {row['predicted_ms']:,.3g} ms ({row['low_ms']:,.3g} to {row['high_ms']:,.3g})"
    if len(others):
        next_one = others.iloc[0]
        text += f", {next_one['predicted_ms'] / row['predicted_ms']:.2g} times as fast as {next_one['device']}"
        if next_one["low_ms"] < row["high_ms"]:
            text += ", but their intervals overlap: measure both"
    if row["out_of_range"]:
        text += "; it lies out of its model's training range"
    return text


def _crossovers(captured: CapturedQuery, predictors: Sequence[Predictor]) -> tuple[str, ...]:
    """Say at which batch sizes another device becomes the fastest."""
    changes, last = [], ""
    if any(predictor.device_type == "cpu" for predictor in predictors):
        captured.look_ahead(BATCHES)
    for batch in BATCHES:
        works = [(predictor, captured.scaled(batch, predictor.device_type)) for predictor in predictors]
        answers = [(captured.predicted(predictor, network), network, predictor) for predictor, network in works]
        times = [(answer.predicted_ms, predictor.device) for answer, network, predictor in answers
                 if memory_of(answer, network) < predictor.memory_mb]
        best = min(times)[1] if times else "none (memory)"
        if best != last:
            changes.append(f"from batch {batch}: {best}")
        last = best
    return tuple(changes)
