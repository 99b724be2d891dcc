"""Advice: where a network should run, how long it takes there, what bounds it, and what would make it faster."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.measure.networks import allocator
from lib.predict import registry
from lib.predict.networks import composition
from lib.predict.networks.composition import Estimate, Work
from lib.work import networks
from lib.work.graph import capture

COLUMNS = ("device", "source", "predicted_ms", "low_ms", "high_ms", "images_per_sec", "memory_mb", "bound", "below_roof",
           "out_of_range", "fits", "measured_ms", "price_per_million", "dtype")
BATCHES = (1, 4, 16, 64, 256)
_RIVALS = 3  # devices that are compared over batch sizes: this machine's CPU and the fastest
_TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_MOST = 0.5  # of the time borrowed from other devices, and an answer is zero-shot
_SHARE = 0.05  # of the time outside of what was learned, and the whole counts as outside


@dataclass(frozen=True)
class Question:
    """What is asked: a network, its batch and mode, and the element type."""

    model: str
    batch_size: int = 0
    input_shape: str = ""
    mode: str = "infer"
    dtype: str = "fp32"

    def network(self, batch_size: int = 0) -> networks.Network:
        """Return the network with its batch; InputError for what cannot be built."""
        return networks.network(self.model, batch_size or self.batch_size, self.input_shape)


@dataclass(frozen=True)
class Advice:
    """The answer: a row a device (COLUMNS), the recommended one with its reason, and the batch sizes where that changes."""

    question: Question
    batch_size: int
    table: pd.DataFrame
    recommended: str
    reason: str
    crossovers: tuple[str, ...]
    asked: "Asked"
    shelves: tuple[registry.Shelved, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the table as plain values for JSON; what is not known is null."""
        rows = self.table.astype(object).where(self.table.notna(), None)
        return rows.to_dict("records")


class Asked:
    """One question, captured once (and once more at another batch size when several are compared)."""

    def __init__(self, question: Question):
        if question.dtype not in _TORCH:
            raise InputError(f"no element type {question.dtype!r}; there are: {choices(_TORCH)}")
        if question.mode not in capture.MODES:
            raise InputError(f"no mode {question.mode!r}; there are: {choices(capture.MODES)}")
        self.question, self._works = question, {}
        self.batch_size = question.network().shape[0]

    def work(self, batch_size: int = 0, channels_last: bool = False) -> Work:
        """Return the captured work at a batch size (0: the asked one)."""
        key = (batch_size or self.batch_size, channels_last)
        if key not in self._works:
            net = self.question.network(key[0])
            graph = composition.captured(net, self.question.mode, _TORCH[self.question.dtype], channels_last)
            self._works[key] = composition.work(graph, self.question.mode, key[0])
        return self._works[key]

    def scaled(self, batch_size: int) -> Work:
        """Return the work at another batch size, on the line through two that were captured: every size is linear in it."""
        first = self.work()
        other = self.work(2 * self.batch_size)
        if batch_size == self.batch_size or list(first.table["op"]) != list(other.table["op"]):
            return self.work(batch_size)
        share = (batch_size - self.batch_size) / self.batch_size
        table = first.table.copy()
        for name in table:
            if name not in ("calls", "covered") and pd.api.types.is_numeric_dtype(table[name]):
                table[name] = first.table[name] + share * (other.table[name] - first.table[name])
        line = {name: getattr(first, name) + share * (getattr(other, name) - getattr(first, name))
                for name in ("weight_bytes", "peak_bytes")}
        plan = first.plan.towards(other.plan, share)
        return replace(first, table=table, batch_size=batch_size, plan=plan, fresh_bytes=allocator.fresh_bytes(plan),
                       **{name: max(0.0, value) for name, value in line.items()})


def advise(question: Question, devices: Sequence[str] = (), crossovers: bool = True) -> Advice:
    """Predict ``question`` on every device that has a model (or those named) and recommend one.

    Raises InputError for a network that cannot be built or captured, and for a device without a model (they are listed).
    """
    asked = Asked(question)
    shelves = registry.for_devices(devices, question.dtype)
    table = answers(asked, shelves)
    best = _best(table)
    rivals = ["cpu", *[name for name in table["device"] if name != "cpu"]][:_RIVALS]
    compared = [one for one in shelves if one.device in rivals]
    found = _crossovers(asked, compared) if crossovers and len(compared) > 1 else ()
    return Advice(question, asked.batch_size, table, best, _reason(table, best), found, asked, tuple(shelves))


def answers(asked: Asked, shelves: Sequence[registry.Shelved]) -> pd.DataFrame:
    """Return a row a device (COLUMNS), the fastest first."""
    item = asked.work()
    rows = [_row(one, item, asked.question) for one in shelves]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("predicted_ms", ignore_index=True)


def _row(one: registry.Shelved, item: Work, question: Question) -> dict[str, Any]:
    said = one.estimate(item)
    rate = item.batch_size / said.predicted_ms * 1e3
    bound, below = one.bound(item, said)
    outside = said.outside > _SHARE or bool(one.origin)
    measured = _measured(one, question, item.batch_size)
    return {"device": one.device, "source": source_of(one, said), "predicted_ms": said.predicted_ms,
            "low_ms": said.low_ms, "high_ms": said.high_ms, "images_per_sec": rate, "memory_mb": item.memory_mb, "bound": bound,
            "below_roof": below, "out_of_range": bool(outside), "fits": bool(item.memory_mb < one.memory_mb),
            "measured_ms": measured, "dtype": question.dtype,
            "price_per_million": one.price_per_hour / rate * 1e6 / 3600 if one.price_per_hour else math.nan}


def source_of(one: registry.Shelved, said: Estimate) -> str:
    """Say on what an answer rests: zero-shot where most of its time was predicted from kernels of other devices."""
    if one.origin:
        return f"zero-shot from {one.origin}"
    borrowed = sum(said.origins.values())
    if borrowed <= _SHARE:
        return "predicted"
    most = max(said.origins, key=said.origins.get)
    return f"zero-shot from {most}" if borrowed > _MOST else f"predicted, {borrowed:.0%} from {most}"


def _measured(one: registry.Shelved, question: Question, batch_size: int) -> float:
    """Return what was measured for this very question on the device, NaN if it was not."""
    table = one.networks
    if table is None:
        return math.nan
    same = table[(table["network"] == question.model) & (table["mode"] == question.mode) & (table["batch_size"] == batch_size)
                 & (table["dtype"] == question.dtype) & (table["input_shape"].fillna("") == question.input_shape)
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
        text += "; it lies outside of what its model learned"
    return text


def _crossovers(asked: Asked, shelves: Sequence[registry.Shelved]) -> tuple[str, ...]:
    """Say at which batch sizes another device becomes the fastest."""
    found, last = [], ""
    for batch in BATCHES:
        item = asked.scaled(batch)
        fits = [(one.estimate(item).predicted_ms, one.device) for one in shelves if item.memory_mb < one.memory_mb]
        best = min(fits)[1] if fits else "none (memory)"
        if best != last:
            found.append(f"from batch {batch}: {best}")
        last = best
    return tuple(found)


# ---------------------------------------------------------------------------------------------- what to change


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


def suggestions(found: Advice) -> list[Change]:
    """Return what could be changed on this machine's CPU, or else on the recommended device, for the best gain first."""
    one = next((one for one in found.shelves if one.device == "cpu"), None) or \
        next(one for one in found.shelves if one.device == found.recommended or not found.recommended)
    several = changes(found.asked, one)
    loader = loader_change(found.question.model) if found.question.mode == "train" else None
    several += [loader] if loader else []
    return sorted(several, key=lambda change: -np.nan_to_num(change.predicted_gain, nan=0.0))


def changes(asked: Asked, one: registry.Shelved) -> list[Change]:
    """Return what could be changed on one device, with the gain in images a second that its model predicts."""
    item = asked.work()
    base = one.estimate(item)
    found = []
    if one.composition(item.mode).rates.get("fresh_mb") and item.fresh_bytes:
        spared = one.estimate(item, "kept").predicted_ms
        text = f"{item.fresh_bytes / 1e6:,.0f} MB a pass come fresh from the system, a page fault each 4 KiB"
        found.append(Change("keep freed memory (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647)",
                            base.predicted_ms / spared, text, {"memory": "kept"}))
    for factor in (2, 4):
        batch = asked.batch_size * factor
        more = asked.scaled(batch)
        if more.memory_mb < one.memory_mb:
            gain = factor * base.predicted_ms / one.estimate(more).predicted_ms
            found.append(Change(f"batch size {batch}", gain, f"images a second; needs {more.memory_mb:,.0f} MB",
                                {"batch_size": batch}))
    fused = float((base.operators["predicted_ms"] * base.operators["calls"])[
        base.operators["op"].isin(("activation", "elementwise", "batch_norm", "copy", "cat"))].sum()) / base.predicted_ms
    text = f"not predicted; operators that it could fuse take {fused:.0%} of the predicted time"
    found.append(Change("torch.compile", math.nan, text, {"compiled": True}))
    if len(asked.question.network().shape) == 4:
        found.append(Change("channels_last", math.nan, "not predicted: its operators were not swept in this layout",
                            {"channels_last": True}))
    if asked.question.dtype == "fp32":
        found.append(_half(asked, one, base.predicted_ms))
    return found


def _half(asked: Asked, one: registry.Shelved, base_ms: float) -> Change:
    try:
        other = registry.for_devices([one.device], "bf16")[0]
    except InputError:
        return Change("bf16 (autocast)", math.nan, f"not predicted: no bf16 model of {one.device}", {"dtype": "bf16"})
    half = Asked(replace(asked.question, dtype="bf16", batch_size=asked.batch_size))
    said = other.estimate(half.work())
    return Change("bf16 (autocast)", base_ms / said.predicted_ms, f"by the bf16 model, {source_of(other, said)}",
                  {"dtype": "bf16"})


def verified(advice: Advice, several: Iterable[Change], device: str = "cpu", budget_s: float = 2.0,
             progress: archive.Progress = lambda items, _: items) -> tuple[float, list[Change]]:
    """Measure the question and each change on this machine, a fresh process each; return the ms and the changes with gains.

    A gain is in images a second. What cannot be measured says so in ``why``.
    """
    from lib.measure.networks import end_to_end
    from lib.measure.networks.case import Case

    if device not in [one.device for one in advice.shelves]:
        raise InputError(f"what is measured here is {device}, and the question was about "
                         f"{choices(one.device for one in advice.shelves)}: ask about {device} too")
    question = advice.question
    base_case = Case(question.model, question.mode, advice.batch_size, question.input_shape, question.dtype)
    base_ms = _median_ms(end_to_end.in_a_process([base_case], device, budget_s)[0][0])
    if isinstance(base_ms, str):
        raise InputError(f"{question.model} cannot be measured on {device}: {base_ms}")
    done = []
    for change in progress(list(several), "verify"):
        apply = dict(change.apply)
        memory = apply.pop("memory", "default")
        if "num_workers" in apply:
            done.append(replace(change, why=f"{change.why}; 02_profile measures it with -p num_workers 2"))
            continue
        case = replace(base_case, **apply)
        taken = _median_ms(end_to_end.in_a_process([case], device, budget_s, memory)[0][0])
        if isinstance(taken, str):
            done.append(replace(change, why=f"{change.why}; could not be measured: {taken}"))
            continue
        done.append(replace(change, measured_gain=base_ms / taken * case.batch_size / base_case.batch_size))
    return base_ms, done


def _median_ms(found: Mapping[str, Any]) -> float | str:
    return found["reason"] or float(np.median(found["samples_ms"]))


def loader_change(workload: str) -> Change | None:
    """Return what loader workers would give a workload, from its newest profile on this machine or in the reference."""
    for source in ("measure", "replay"):
        table = archive.runs(source)
        mine = table[table["workload_id"] == workload]
        here = mine[mine["hardware_id"] == machine.ids()["hardware_id"]] if source == "measure" else mine
        if not len(here):
            continue
        run = here.iloc[-1]
        rows = archive.rows(here.iloc[[-1]], source)
        rows = rows[(rows["task_type"] == "train") & ~rows["warmup"].astype(bool)]
        wait, step = rows["loader_wait_ms"].median(), rows["step_time_ms"].median()
        return Change("loader workers: 2", float(step / (step - wait)),
                      f"the loader makes a step wait {wait:.2f} of {step:.2f} ms (measured in {run['run_id']}); hidden at best",
                      {"num_workers": 2})
    return None
