"""Advice: where a network should run, how long it takes there, and what bounds it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.predict import registry, steps, transfer_cpu
from lib.predict.advice.query import MOST_BORROWED, CapturedQuery, Query
from lib.predict.cards import answers
from lib.predict.networks import gains, resident, step
from lib.predict.networks.composition import Composition, Estimate
from lib.predict.networks.step import Step
from lib.predict.networks.work import Work
from lib.predict.power import energy
from lib.predict.registry import Predictor
from lib.predict.scores import OUTSIDE
from lib.predict.trust import quote

COLUMNS = ("device", "source", "predicted_ms", "low_ms", "high_ms", "images_per_sec", "predicted_gbps", "memory_mb", "bound",
           "below_roof", "out_of_range", "fits", "measured_ms", "price_per_million", "dtype", "energy_j", "energy_low_j",
           "energy_high_j", "energy_share", "energy_source", "latency_type", "rss_mb", "rss_low_mb", "rss_high_mb",
           *quote.COLUMNS, *(f"{name}_ms" for name in step.PARTS), "not_modelled", "flops_not_known")
BATCHES = (1, 4, 16, 64, 256)
_COMPARED = 3  # devices that are compared over batch sizes: this machine's CPU and the fastest
_HOST = {"loader_wait": "loader", "h2d": "copy", "optimizer": "optimizer"}  # parts of a step that may limit it


@dataclass(frozen=True)
class Advice:
    """The answer: one row per device (COLUMNS), the recommended device, why, and the batch sizes where that changes."""

    captured: CapturedQuery
    table: pd.DataFrame
    recommended: str
    reason: str
    crossovers: tuple[str, ...]
    predictors: tuple[Predictor, ...]


def advise(query: Query, devices: Sequence[str] = (), crossovers: bool = True) -> Advice:
    """Predict ``query`` on the named devices, or on all that have a model, and recommend one.

    Raises InputError for a network that cannot be built or captured, and for a device without a model (they are listed).
    """
    captured = CapturedQuery(query)
    predictors = with_condition(captured, for_networks(devices, query.dtype), bool(devices))
    table = predictions(captured, predictors)
    best = _best(table)
    fastest = ["cpu", *[name for name in table["device"] if name != "cpu"]][:_COMPARED]
    compared = [predictor for predictor in predictors if predictor.device in fastest]
    changes = _crossovers(captured, compared) if crossovers and len(compared) > 1 else ()
    return Advice(captured, table, best, _reason(table, best), changes, tuple(predictors))


def for_networks(devices: Sequence[str], dtype: str, **how: Any) -> list[Predictor]:
    """Return the devices that networks can be predicted on in an element type, see ``registry.for_devices``.

    This machine's CPU answers from its fp32 model and a learned gain if it has no model of the element type.
    """
    repeated = len(set(devices)) < len(devices)
    if repeated or (devices and "cpu" not in devices) or registry.has_cpu(dtype) or not gains.serves(dtype):
        return registry.for_devices(devices, dtype, **how)
    (cpu,) = registry.for_devices(["cpu"], "fp32", **how)
    others = [device for device in devices if device != "cpu"]
    return [replace(cpu, dtype=dtype), *(registry.for_devices(others, dtype, **how) if others or not devices else ())]


def with_condition(captured: CapturedQuery, predictors: Sequence[Predictor], named: bool) -> list[Predictor]:
    """Return the devices that can be predicted in the query's layout, compiled or not.

    Raises InputError if there is none, or if a device that was ``named`` is not among them.
    """
    query = captured.query
    if query.layout not in answers.LAYOUTS:
        raise InputError(f"no layout {query.layout!r}; there are: {choices(answers.LAYOUTS)}")
    if (query.layout, query.compiled) == ("contiguous", False):
        return list(predictors)
    able = [predictor for predictor in predictors if captured.condition(predictor) or captured.uses_gain(predictor)]
    if not able or (named and len(able) < len(predictors)):
        unable = choices(predictor.device for predictor in predictors if predictor not in able)
        condition = " ".join([query.layout, *["compiled"] * query.compiled, query.dtype, query.mode])
        raise InputError(f"no networks were measured in this condition ({condition}) for: {unable}")
    return able


def without_ceilings(cpu: Predictor | None) -> bool:
    """Return whether this machine's CPU is predicted from another CPU, unscaled for want of usable ceilings."""
    return bool(cpu and cpu.origin and not cpu.model.scaling)


def predictions(captured: CapturedQuery, predictors: Sequence[Predictor]) -> pd.DataFrame:
    """Return one row per device (COLUMNS), the fastest first."""
    device_types = {predictor.device_type: None for predictor in predictors}
    works = {device_type: captured.work(device_type=device_type) for device_type in device_types}
    rows = [row(predictor, captured, works[predictor.device_type]) for predictor in predictors]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("predicted_ms", ignore_index=True)


def row(predictor: Predictor, captured: CapturedQuery, network: Work) -> dict[str, Any]:
    """Return the row (COLUMNS) of a device for the work of a query at one batch size."""
    answer = captured.predict(predictor, network)
    estimate = passes_of(answer)
    rate = network.batch_size / answer.predicted_ms * 1e3
    memory_mb = memory_of(answer, network)
    resident_mb, by_gain = resident_of(predictor, answer, network), captured.uses_gain(predictor)
    price = predictor.price_per_hour / rate * 1e6 / 3600 if predictor.price_per_hour else math.nan
    return {"device": predictor.device, "source": source_of(predictor, estimate), "predicted_ms": answer.predicted_ms,
            "low_ms": answer.low_ms, "high_ms": answer.high_ms, "images_per_sec": rate, "memory_mb": memory_mb,
            "predicted_gbps": network.bytes / answer.predicted_ms / 1e6,
            "bound": _bound(predictor, captured.in_fp32().scaled(network.batch_size) if by_gain else network, answer),
            "below_roof": math.nan if by_gain else estimate.predicted_ms / predictor.roof_ms(network),
            "out_of_range": bool(estimate.outside > OUTSIDE or predictor.origin),
            "fits": bool(max(memory_mb, resident_mb.get("rss_mb", 0.0)) < predictor.memory_mb),
            "measured_ms": _measured(predictor, captured, network.batch_size), "dtype": captured.query.dtype,
            "latency_type": "end_to_end" if predictor.device_type == "cpu" or estimate.provenance.of_networks else
            predictor.model.facts["latency_type"],
            **captured.quote(predictor, network, estimate).columns,
            "price_per_million": price, **resident_mb, **energy.per_image(predictor.power, estimate, network.batch_size),
            **(answer.columns if isinstance(answer, Step) else {}), **notes(network)}


def notes(network: Work) -> dict[str, str]:
    """Return what is not modelled, values that steer control flow included, and operators of unknown FLOPs."""
    branches = [f"values at {place} (those of random inputs)" for place in network.branches]
    return {"not_modelled": choices([*network.not_modelled, *branches]), "flops_not_known": choices(network.uncounted)}


def passes_of(answer: Estimate | Step) -> Estimate:
    """Return the estimate of the passes in an answer: of a step, forward and backward."""
    return answer.passes if isinstance(answer, Step) else answer


def memory_of(answer: Estimate | Step, network: Work) -> float:
    """Return the MB that an answer needs; a training step's include the optimizer's state."""
    return answer.memory_mb if isinstance(answer, Step) else network.memory_mb


def resident_of(predictor: Predictor, answer: Estimate | Step, network: Work) -> dict[str, float]:
    """Return the resident MB that a fresh process grows by, with an interval; empty if none was learned."""
    fitted = predictor.model.resident.get("default")
    if not fitted:
        return {}
    mb = resident.answer(Composition(**fitted), network, memory_of(answer, network) - network.memory_mb)
    return dict(zip(("rss_mb", "rss_low_mb", "rss_high_mb"), mb, strict=True))


def _bound(predictor: Predictor, network: Work, answer: Estimate | Step) -> str:
    """Return what limits the answer: loader, copy or optimizer, or the passes (``Predictor.bound``)."""
    if isinstance(answer, Step) and answer.longest in _HOST and \
            answer.parts[answer.longest].predicted_ms > registry.MOST * answer.predicted_ms:
        return _HOST[answer.longest]
    return predictor.bound(network, passes_of(answer).predicted_ms)


def source_of(predictor: Predictor, estimate: Estimate) -> str:
    """Return where an answer comes from in words; zero-shot if other devices' kernels predicted most of its time."""
    if predictor.origin:
        scaling, doubtful = predictor.model.scaling, predictor.model.facts.get(transfer_cpu.DOUBTFUL)
        how = f", scaled by ceilings measured here ({scaling})" if scaling else ", not scaled: busy here" if doubtful else ""
        return f"zero-shot from {predictor.origin}{how}"
    provenance = estimate.provenance
    if (borrowed := provenance.borrowed) <= OUTSIDE:
        return "learned from whole networks" if provenance.of_networks else "predicted"
    most = max(provenance.origins, key=provenance.origins.get)
    return f"zero-shot from {most}" if borrowed > MOST_BORROWED else f"predicted, {borrowed:.0%} from {most}"


def _measured(predictor: Predictor, captured: CapturedQuery, batch_size: int) -> float:
    """Return the measured ms of this very query on the device, NaN without one; a training step's is from its profile."""
    query = captured.query
    if query.mode == "train" and query.dtype != "fp32":
        return math.nan
    if query.mode == "train":
        return steps.measured_step_ms(predictor, query.model, batch_size, captured.shipped)
    table = predictor.measured_networks
    if table is None:
        return math.nan
    same = table[(table["network"] == query.model) & (table["mode"] == query.mode) & (table["batch_size"] == batch_size)
                 & (table["dtype"] == query.dtype) & (table["input_shape"].fillna("") == query.input_shape)
                 & (table["channels_last"] == (query.layout == "channels_last")) & (table["compiled"] == query.compiled)
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
    high = "or more" if math.isinf(row["high_ms"]) else f"to {row['high_ms']:,.3g}"
    text = f"{best}: {row['predicted_ms']:,.3g} ms ({row['low_ms']:,.3g} {high})"
    if len(others):
        next_one = others.iloc[0]
        text += f", {next_one['predicted_ms'] / row['predicted_ms']:.2g} times as fast as {next_one['device']}"
        if next_one["low_ms"] < row["high_ms"]:
            text += ", but their intervals overlap: measure both"
    if row["out_of_range"]:
        text += "; it lies out of its model's training range"
    return text


def _crossovers(captured: CapturedQuery, predictors: Sequence[Predictor]) -> tuple[str, ...]:
    """Return the batch sizes at which another device becomes the fastest, in words."""
    changes, last = [], ""
    for batch, works in [(batch, [captured.scaled(batch, predictor.device_type) for predictor in predictors])
                         for batch in BATCHES]:
        answers = [(captured.predict(predictor, network), network, predictor)
                   for predictor, network in zip(predictors, works, strict=True)]
        times = [(answer.predicted_ms, predictor.device) for answer, network, predictor in answers
                 if memory_of(answer, network) < predictor.memory_mb]
        best = min(times)[1] if times else "none (memory)"
        if best != last:
            changes.append(f"from batch {batch}: {best}")
        last = best
    return tuple(changes)
