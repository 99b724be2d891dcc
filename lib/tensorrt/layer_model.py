"""Runtime and energy of a layer from its counted work: non-negative rates, fitted in relative error over all kinds of layers.

Runtime (ms) is a sum of a launch, FLOPs at the rate of each unit, bytes of activations and of weights at theirs, and the length
of the reduction, which no parallelism shortens. Energy (mJ above idle) is a sum of the same work at energies of its own and of
the runtime at a static power; power is their quotient. One model serves the three kinds, so that few rows of one are helped by
many of another.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from lib import store
from lib.config.base import Strict, load
from lib.errors import InputError, choices
from lib.tensorrt.engine import KINDS

TARGETS = ("runtime", "power")
TERMS = ("launch", "half_gemm_gflop", "float_gemm_gflop", "grouped_gflop", "activation_mb", "weight_mb", "half_reduction",
         "float_reduction", "runtime_ms")
_RUNTIME = TERMS[:-1]
_COVERAGE = 0.9
_LEAST_ROWS = 5
Finite = Annotated[float, Field(allow_inf_nan=False)]


def work(table: pd.DataFrame) -> np.ndarray:
    """Return the terms of layers (n, TERMS); ``runtime`` of the table is the last, NaN where it has none.

    ``table`` has the features of ``lib.tensorrt.dataset.layer_table``.
    """
    half = (table["dtype"] != "FP32").to_numpy(float)
    pooled, grouped = (table["kind"] == "pooling").to_numpy(float), (table["groups"] > 1).to_numpy(float)
    gemm, gflop = (1 - pooled) * (1 - grouped), table["flops"].to_numpy(float) / 1e9
    weights, moved = table["weight_bytes"].to_numpy(float) / 1e6, table["bytes"].to_numpy(float) / 1e6
    reduction = gemm * table["flops"].to_numpy(float) / (2 * table["output_size"].to_numpy(float)) / 1e3
    runtime = table["runtime"].to_numpy(float) if "runtime" in table else np.full(len(table), np.nan)
    return np.column_stack([np.ones(len(table)), gflop * half * gemm, gflop * (1 - half) * gemm, gflop * grouped,
                            moved - weights, weights, reduction * half, reduction * (1 - half), runtime])


@dataclass(frozen=True)
class LayerModel:
    """The rates of one target on one device, half intervals in log space by kind, and where it comes from."""

    target: str
    device: str
    rates: dict[str, float]
    halves: dict[str, float]
    networks: tuple[str, ...]
    rows: dict[str, int]
    source: str = ""
    licence: str = ""
    scores: dict[str, float] = field(default_factory=dict)

    def of_kind(self, kind: str, scores: dict[str, float]) -> "LayerModel":
        """Return this model for one kind of layer, with its scores on networks that were left out."""
        return replace(self, halves={kind: self.halves[kind]}, scores=scores)

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``predicted, low, high`` (ms, or W above idle) for layers; of power, ``runtime`` must be in the table."""
        terms, rates = work(table), np.array([self.rates[name] for name in TERMS])
        if self.target == "runtime":
            terms[:, -1] = 0.0
        value = terms @ rates
        value = value if self.target == "runtime" else value / table["runtime"].to_numpy(float)
        half = table["kind"].map(self.halves).to_numpy(float)
        return pd.DataFrame({"predicted": value, "low": value * np.exp(-half), "high": value * np.exp(half)}, index=table.index)

    def save(self, path: Path) -> Path:
        """Write the model as JSON."""
        return store.write_json({"schema": 1, **vars(self), "networks": list(self.networks)}, path)


class _Stored(Strict):
    """A model's file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    target: Literal["runtime", "power"]
    device: Annotated[str, Field(min_length=1)]
    rates: dict[str, Annotated[Finite, Field(ge=0)]]
    halves: dict[str, Annotated[Finite, Field(ge=0)]]
    networks: tuple[str, ...]
    rows: dict[str, Annotated[int, Field(ge=0)]]
    source: str = ""
    licence: str = ""
    scores: dict[str, Finite] = {}


def read(path: Path) -> LayerModel:
    """Read a model; InputError for another or a damaged file. Nothing of it is executed."""
    stored = load(_Stored, path)
    if set(stored.rates) != set(TERMS) or not set(stored.halves) <= set(KINDS.values()) or not stored.halves:
        raise InputError(f"{path}: rates are of {choices(TERMS)}, halves of {choices(KINDS.values())}")
    return LayerModel(**{name: value for name, value in stored if name != "schema_"})


def fit(table: pd.DataFrame, target: str, device: str, source: str = "", licence: str = "") -> LayerModel:
    """Fit runtime or power on layers of several networks (column ``network``); intervals are of networks left out in turn.

    Raises InputError where fewer than five rows have a measured value: power is never made of anything else.
    """
    good = measured(table, target)
    if len(good) < _LEAST_ROWS:
        raise InputError(f"{len(good)} of {len(table)} layers have a measured {target}; a model needs {_LEAST_ROWS}")
    rates = _rates(good, target)
    left_out = held_out(good, target)
    error = np.abs(np.log(left_out) - np.log(good[target].to_numpy(float)))
    halves = {kind: _conformal(error[(good["kind"] == kind).to_numpy()], error) for kind in sorted(set(good["kind"]))}
    return LayerModel(target, device, dict(zip(TERMS, map(float, rates), strict=True)), halves,
                      tuple(sorted(set(good["network"]))), good["kind"].value_counts().to_dict(), source, licence)


def measured(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the rows whose runtime and target were measured."""
    return table[np.isfinite(table[target]) & (table[target] > 0) & np.isfinite(table["runtime"])]


def _conformal(errors: np.ndarray, all_errors: np.ndarray) -> float:
    """Return the half interval that holds 90 % of held-out rows (with the finite-sample correction), of few rows at least."""
    own = errors if len(errors) >= 20 else np.concatenate([errors, all_errors])
    return float(np.quantile(own, min(1.0, _COVERAGE * (1 + 1 / len(own)))))


def held_out(table: pd.DataFrame, target: str) -> np.ndarray:
    """Return the prediction of each row (n,) by a model that did not see its network; of one network alone, by its own."""
    names = table["network"].to_numpy()
    predicted = np.full(len(table), np.nan)
    for name in np.unique(names):
        test = names == name
        train = ~test if not test.all() else test
        value = work(table[test])
        value[:, -1] = value[:, -1] if target == "power" else 0.0
        predicted[test] = value @ _rates(table[train], target)
    return predicted / (table["runtime"].to_numpy(float) if target == "power" else 1.0)


def _rates(table: pd.DataFrame, target: str) -> np.ndarray:
    """Return the non-negative rates (TERMS) with the least sum of squared relative errors."""
    from scipy.optimize import nnls

    terms, value = work(table), table[target].to_numpy(float)
    if target == "power":
        value = value * terms[:, -1]
    else:
        terms[:, -1] = 0.0
    rates, _ = nnls(terms / value[:, None], np.ones(len(value)))
    return rates
