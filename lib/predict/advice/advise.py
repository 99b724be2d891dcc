"""Advice: where a network should run, how long it takes there, and what bounds it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.predict import registry, steps, transfer_cpu
from lib.predict.advice.query import MOST_BORROWED, CapturedQuery, Query
from lib.predict.composed import answers
from lib.predict.gains import answers as gains
from lib.predict.networks import resident, step
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
_RIVALS = 3  # devices that are compared over batch sizes: this machine's CPU and the fastest
_HOST = {"loader_wait": "loader", "h2d": "copy", "optimizer": "optimizer"}  # what bounds a step beside its passes


@dataclass(frozen=True)
class Advice:
    """The answer: a row a device (COLUMNS), the recommended one with its reason, and the batch sizes where that changes."""

    captured: CapturedQuery
    table: pd.DataFrame
    recommended: str
    reason: str
    crossovers: tuple[str, ...]
    predictors: tuple[Predictor, ...]


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
    return bool(cpu and cpu.origin and not cpu.model.scaling)


def predictions(captured: CapturedQuery, predictors: Sequence[Predictor]) -> pd.DataFrame:
    """Return a row a device (COLUMNS), the fastest first."""
    works = {kind: captured.work(device_type=kind) for kind in {predictor.device_type: None for predictor in predictors}}
    rows = [row(predictor, captured, works[predictor.device_type]) for predictor in predictors]
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
            "predicted_gbps": network.bytes / answer.predicted_ms / 1e6,
            "bound": _bound(predictor, captured.usual().scaled(network.batch_size) if by_gain else network, answer),
            "below_roof": math.nan if by_gain else estimate.predicted_ms / predictor.roof_ms(network),
            "out_of_range": bool(estimate.outside > OUTSIDE or predictor.origin),
            "fits": bool(max(memory_mb, resident_mb.get("rss_mb", 0.0)) < predictor.memory_mb),
            "measured_ms": _measured(predictor, captured, network.batch_size), "dtype": captured.query.dtype,
            "latency_type": "end_to_end" if predictor.device_type == "cpu" or estimate.evidence else
            predictor.model.facts["latency_type"],
            **captured.quote(predictor, network, estimate).columns,
            "price_per_million": price, **resident_mb, **energy.per_image(predictor.power, estimate, network.batch_size),
            **(answer.columns if isinstance(answer, Step) else {}), **notes(network)}


def notes(network: Work) -> dict[str, str]:
    """Return what no model is of, values that its control flow depends on among it, and whose FLOPs are not known."""
    branches = [f"values at {place} (those of random inputs)" for place in network.branches]
    return {"not_modelled": choices([*network.not_modelled, *branches]), "flops_not_known": choices(network.uncounted)}


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
        how = f", scaled by ceilings measured here ({scaling})" if scaling else ", not scaled: busy here" if doubtful else ""
        return f"zero-shot from {predictor.origin}{how}"
    borrowed = sum(estimate.origins.values())
    if borrowed <= OUTSIDE:
        return "learned from whole networks" if estimate.evidence else "predicted"
    most = max(estimate.origins, key=estimate.origins.get)
    return f"zero-shot from {most}" if borrowed > MOST_BORROWED else f"predicted, {borrowed:.0%} from {most}"


def _measured(predictor: Predictor, captured: CapturedQuery, batch_size: int) -> float:
    """Return what was measured of this very query on the device, NaN if it was not; of a training step by its profile."""
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
    """Say at which batch sizes another device becomes the fastest."""
    changes, last = [], ""
    for batch, works in [(batch, [captured.scaled(batch, predictor.device_type) for predictor in predictors])
                         for batch in BATCHES]:
        answers = [(captured.predicted(predictor, network), network, predictor)
                   for predictor, network in zip(predictors, works, strict=True)]
        times = [(answer.predicted_ms, predictor.device) for answer, network, predictor in answers
                 if memory_of(answer, network) < predictor.memory_mb]
        best = min(times)[1] if times else "none (memory)"
        if best != last:
            changes.append(f"from batch {batch}: {best}")
        last = best
    return tuple(changes)
