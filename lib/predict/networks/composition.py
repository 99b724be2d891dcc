"""Whole networks: captured operators, each looked up or predicted, summed, with what their composition adds.

Composition is learned from networks that were measured whole, at non-negative rates: what the operators' sum stands for, what
calling a module costs, and what memory costs that the allocator takes anew from the system in each pass.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure.networks import allocator
from lib.predict.networks.memory import peak_bytes
from lib.predict.operators import cost_model, features
from lib.work import networks
from lib.work.graph import capture, counts, families, ops
from lib.work.graph.ops import Graph

_WITH_BACKWARD = ("conv2d", "conv3d", "attention", "pool2d", "pool3d", "batch_norm", "layer_norm", "softmax", "activation")
_MOVING = ("fill", "random", "loss")  # not swept: taken as copies of as many elements
_COPIED = 8  # bytes that a copy moves for one element
TERMS = ("sum_ms", "moved_ms", "modules", "fresh_mb")


@dataclass(frozen=True)
class Asked:
    """One distinct operator, as a model is asked about it; ``key`` is what makes two the same."""

    op: str
    passes: str
    parameters: Mapping[str, Any]
    flops: float
    bytes: float
    key: tuple

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Asked":
        """Take a row of a ``sweep`` table; what is empty is left out."""
        names = families.families()[row["op"]].parameters
        given = {name: row[name] for name in names if name in row and not _absent(row[name])}
        values = (value if isinstance(value, str) else float(value) for value in given.values())
        return cls(row["op"], row["pass"], given, float(row["flops"]), float(row["bytes"]), (row["op"], row["pass"], *values))


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True)
class Work:
    """What one pass or step of a network runs, memory in bytes.

    ``table`` has a row a distinct operator: ``sweep`` columns, ``calls``, and ``covered``, whether a family knows it.
    """

    table: pd.DataFrame
    mode: str
    batch_size: int
    modules: int
    fresh_bytes: float
    weight_bytes: float
    peak_bytes: float
    plan: allocator.Plan

    @cached_property
    def asked(self) -> list[Asked]:
        """Give the operators of the table as a model is asked about them."""
        return [Asked.of(row) for row in self.table.to_dict("records")]

    @property
    def flops(self) -> float:
        """Return the FLOPs of the pass or step."""
        return float((self.table["flops"] * self.table["calls"]).sum())

    @property
    def bytes(self) -> float:
        """Return its compulsory bytes, operator by operator."""
        return float((self.table["bytes"] * self.table["calls"]).sum())

    @property
    def memory_mb(self) -> float:
        """Return weights, inputs and the most that tensors hold at once, in 10^6 bytes."""
        return (self.weight_bytes + self.peak_bytes) / 1e6




def _row(op: ops.Op) -> dict[str, Any]:
    """Return one operator as a row of a ``sweep`` table; what no family covers counts as a copy of as many bytes, uncovered."""
    described, moved = families.describe(op), counts.compulsory_bytes(op)
    if described is None:
        elements = max(1, moved // _COPIED)
        return {"op": "copy", "kind": "clone", "outer": 1, "inner": elements, "layout": "contiguous", "pass": "forward",
                "flops": 0.0, "bytes": moved, "covered": False}
    family, params = described
    backward = family in _WITH_BACKWARD and "backward" in op.short
    if family in _MOVING:
        params = {"kind": op.short, "outer": 1, "inner": max(1, params["elements"]), "layout": "contiguous"}
        family = "copy"
    if family == "copy":
        params = {**params, "kind": "clone"}  # the one that is swept; the others copy as it does
    return {"op": family, **params, "pass": "backward" if backward else "forward", "flops": counts.flops(op), "bytes": moved,
            "covered": True}


def work(graph: Graph, mode: str, batch_size: int) -> Work:
    """Return the work of a captured graph."""
    rows, calls = {}, {}
    for op in graph.ops:
        if op.short in counts.VIEWS:
            continue
        key = (op, op.phase == "backward" and "backward" in op.short)
        if key not in rows:
            rows[key] = _row(op)
        calls[key] = calls.get(key, 0) + 1
    table = pd.DataFrame([{**rows[key], "calls": number} for key, number in calls.items()])
    inputs = {spec.storage: spec.bytes for op in graph.ops for spec in op.tensors if spec.kind == "input"}
    weights = graph.parameter_bytes + graph.buffer_bytes + sum(inputs.values())
    modules = sum(op.phase == "forward" and op.short not in counts.VIEWS for op in graph.ops)
    plan = allocator.Plan.of(graph)
    fresh = allocator.fresh_bytes(plan)
    return Work(table, mode, batch_size, modules, fresh, float(weights), peak_bytes(graph), plan)


def captured(network: networks.Network, mode: str, dtype: str = "float32", channels_last: bool = False) -> Graph:
    """Capture a network on its batch; InputError says what keeps it from being captured."""
    return capture.capture(capture.build_unfilled(network.build), network.shape, mode, dtype=dtype, channels_last=channels_last)


@dataclass(frozen=True)
class Composition:
    """What the whole costs beyond its operators, for one mode: non-negative rates of TERMS, and the interval in log time."""

    rates: Mapping[str, float]
    half: float
    networks: int
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """The predicted time of a pass or step, in ms, and the operators that it is the sum of (with ``predicted_ms``)."""

    predicted_ms: float
    low_ms: float
    high_ms: float
    outside: float  # the share of the time that lies outside of what was learned
    looked_up: float  # the share of the time that was measured before
    origins: Mapping[str, float]  # the share of the time that each other device's kernels, or the roofline, answered for
    operators: pd.DataFrame


def parts(item: Work, model: cost_model.CostModel, known: Mapping[tuple, float] | None = None) -> pd.DataFrame:
    """Return the operators of ``item`` with ``predicted_ms``, ``out_of_range``, ``looked_up``, ``half``, ``origin``.

    ``half`` is half of a GPU's interval in log time, ``origin`` of whom the prediction was learned where not of the device.

    ``known`` maps ``Asked.key`` to a measured time in ms.
    """
    if model.chip is None:
        judged = [model.judge_one(asked.op, asked.parameters, asked.flops, asked.bytes, asked.passes) for asked in item.asked]
        predicted, outside = (np.array(column) for column in zip(*judged, strict=True))
        half, origin = np.full(len(predicted), np.nan), ""
    else:
        told = model.predict(item.table)
        predicted, outside = told["predicted_ms"].to_numpy(), told["out_of_range"].to_numpy(bool)
        half, origin = np.log(told["high_ms"] / told["predicted_ms"]).to_numpy(), told["origin"].to_numpy()
    outside = outside.astype(bool) | ~item.table["covered"].to_numpy(bool)
    found = np.zeros(len(predicted), bool)
    if known:
        measured = np.array([known.get(asked.key, np.nan) for asked in item.asked])
        found = np.isfinite(measured)
        predicted = np.where(found, measured, predicted)
    return item.table.assign(predicted_ms=predicted, looked_up=found, out_of_range=outside & ~found, half=half, origin=origin)


def lookup(table: pd.DataFrame) -> dict[tuple, float]:
    """Return the measured time in ms of every usable row of a ``sweep`` table, by ``Asked.key``."""
    return dict(zip((Asked.of(row).key for row in table.to_dict("records")), table["latency_ms"], strict=True))


def terms(item: Work, table: pd.DataFrame) -> dict[str, float]:
    """Return what the time of a whole is made of; ``sum_ms`` are the operators that compute, ``moved_ms`` the others."""
    cost = table["predicted_ms"] * table["calls"]
    computing = table["op"].map(features.GROUP_OF).isin(("convolution", "product", "attention"))
    return {"sum_ms": float(cost[computing].sum()), "moved_ms": float(cost[~computing].sum()), "modules": float(item.modules),
            "fresh_mb": item.fresh_bytes / 1e6}


def compose(rows: Iterable[tuple[str, Mapping[str, float], float]], base: Composition | None = None,
            folds: int = 5) -> Composition:
    """Learn a composition from (network, terms, measured ms) of several networks; its interval from networks left out.

    Without ``base`` from a process that keeps its memory: fresh memory costs nothing. With it, that composition stays and only
    the cost of fresh memory is learned. Raises InputError for fewer than four networks.
    """
    names, given, measured = zip(*rows, strict=True)
    frame, measured = pd.DataFrame(list(given))[list(TERMS)], np.array(measured, float)
    several = sorted(set(names))
    if len(several) < 4:
        raise InputError(f"a composition is learned from four networks or more, not from {len(several)}")
    said = np.full(len(frame), np.nan)
    for fold in range(min(folds, len(several))):
        left = np.isin(names, several[fold::min(folds, len(several))])
        said[left] = frame[left].to_numpy() @ _rates(frame[~left], measured[~left], base)
    _, halves = cost_model.conformal(np.log(measured / said), said, bins=1)
    rates = _rates(frame, measured, base)
    return Composition(dict(zip(TERMS, map(float, rates), strict=True)), halves[0], len(several),
                       cost_model.score(measured, said))


def _rates(frame: pd.DataFrame, measured: np.ndarray, base: Composition | None) -> np.ndarray:
    """Return non-negative rates of TERMS by least squares of the relative error."""
    if base is None:
        return np.append(cost_model.rates(frame[list(TERMS[:-1])], measured), 0.0)
    held = np.array([base.rates[name] for name in TERMS[:-1]])
    left = (measured - frame[list(TERMS[:-1])].to_numpy() @ held) / measured
    fresh = frame[TERMS[-1]].to_numpy() / measured
    return np.append(held, max(0.0, float(left @ fresh / max(fresh @ fresh, 1e-30))))


def interval(terms: Mapping[str, float], composition: Composition, outside: float,
             half: float = 0.0) -> tuple[float, float, float]:
    """Return predicted, low and high ms from TERMS; ``half`` is used where no network was measured whole."""
    total = sum(composition.rates[name] * terms[name] for name in TERMS)
    half = (composition.half if composition.networks else half) * (1 + outside)
    return total, total * math.exp(-half), total * math.exp(half)


def time_shares(table: pd.DataFrame) -> dict[str, float]:
    """Return which shares of the operators' time (``parts``) lie outside of what was learned, and were looked up."""
    cost = (table["predicted_ms"] * table["calls"]).to_numpy()
    return {name: float(cost[table[column].to_numpy(bool)].sum() / cost.sum())
            for name, column in (("outside", "out_of_range"), ("looked_up", "looked_up"))}


def estimate(item: Work, model: cost_model.CostModel, composition: Composition,
             known: Mapping[tuple, float] | None = None) -> Estimate:
    """Predict a pass or step from its operators; the interval is that of networks unlike those it was learned from."""
    table = parts(item, model, known)
    cost, shares = table["predicted_ms"] * table["calls"], time_shares(table)
    origins = (cost / cost.sum()).groupby(table["origin"]).sum().drop("", errors="ignore").to_dict()
    half = float(cost @ table["half"] / cost.sum())
    return Estimate(*interval(terms(item, table), composition, shares["outside"], half), **shares, origins=origins,
                    operators=table)
