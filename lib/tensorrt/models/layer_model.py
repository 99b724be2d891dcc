"""Runtime and energy of a layer from its counted work: non-negative rates, fitted in relative error over all kinds of layers.

Runtime (ms) is a sum of a launch, FLOPs at the rate of each unit, reads of pooling windows, bytes of activations and of weights
at theirs, and the length of the reduction, which no parallelism shortens. Energy (mJ above idle) is a sum of the same work at
energies of its own and of the runtime at a static power; power is their quotient. One set of rates may serve the three kinds:
few rows of one are then helped by many of another. In place of all this ``learner: lasso`` is the original study's pipeline.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import Field

from lib.config.base import Strict, number
from lib.errors import InputError, choices
from lib.predict.model_file import Count, Format, NotNegative, Saved, require
from lib.predict.networks import sums
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models import lasso
from lib.tensorrt.models.lasso import Rates
from lib.tensorrt.recordings.dataset import FEATURES

TARGETS = ("runtime", "power")
LEARNERS = PHYSICS, LASSO = ("physics", "lasso")
TERMS = ("launch", "half_gemm_gflop", "float_gemm_gflop", "grouped_gflop", "pooling_gread", "activation_mb", "weight_mb",
         "half_reduction", "float_reduction", "runtime_ms")
_COVERAGE = 0.9
_LEAST_ROWS, _ENOUGH_ROWS = 5, 20  # of a kind: for a model, for an interval of its own


def work(table: pd.DataFrame) -> np.ndarray:
    """Return the terms of layers (n, TERMS); ``runtime`` of the table is the last, NaN where it has none.

    ``table`` has the features of ``lib.tensorrt.recordings.dataset.layer_table``.
    """
    is_half, is_pooling, is_grouped = table["dtype"] != "FP32", table["kind"] == "pooling", table["groups"] > 1
    is_gemm, gflop, weight_mb = ~is_pooling & ~is_grouped, table["flops"] / 1e9, table["weight_bytes"] / 1e6
    reduction = is_gemm * table["flops"] / (2 * table["output_size"]) / 1e3
    return np.column_stack([np.ones(len(table)), gflop * (is_half & is_gemm), gflop * (~is_half & is_gemm), gflop * is_grouped,
                            gflop * is_pooling, table["bytes"] / 1e6 - weight_mb, weight_mb, reduction * is_half,
                            reduction * ~is_half, table.get("runtime", np.full(len(table), np.nan))])


class Setting(Strict):
    """How a model of one kind of layer is fitted: with the other kinds or alone, in relative (1) or absolute (0) error.

    ``without`` are terms that are left out. ``lasso`` takes none of these: it learns from its own kind alone.
    """

    learner: Literal[LEARNERS] = PHYSICS
    together: bool = True
    relative: number(0, 1) = 1.0
    without: tuple[Literal[TERMS[1:-1]], ...] = ()


PLAIN = Setting()


def score(measured: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return ``mape``, ``median`` and ``rmspe`` (absolute relative errors, 0.1 is 10 %), ``r2``, ``n``."""
    from sklearn.metrics import r2_score

    value, guess = np.asarray(measured, float), np.asarray(predicted, float)
    relative = np.abs(guess / value - 1)
    return {"mape": float(relative.mean()), "median": float(np.median(relative)), "rmspe": float(np.sqrt((relative**2).mean())),
            "r2": r2_score(value, guess), "n": float(len(value))}


@dataclass(frozen=True)
class LayerModel(Saved):
    """The rates of one target for one kind of layer on one device, its interval in log space, and where it comes from."""

    kind: Literal[tuple(KINDS.values())]
    target: Literal[TARGETS]
    device: Annotated[str, Field(min_length=1)]
    rates: Rates
    half: NotNegative
    setting: Setting
    networks: tuple[str, ...]
    rows: dict[str, Count]
    scores: dict[str, float] = field(default_factory=dict)
    source: str = ""
    licence: str = ""

    FORMAT: ClassVar = Format("layer model", "train it again with: python -m lib layer-power train")

    def __post_init__(self):
        """Refuse rates of other terms than those of the learner."""
        if self.setting.learner == PHYSICS:
            require(set(self.rates) == set(TERMS) and min(self.rates.values()) >= 0,
                    f"rates are of {choices(TERMS)}, and none is negative")
        else:
            names = ["1", "flops", *FEATURES[self.kind]]
            require(self.rates and {*" ".join(self.rates).split()} <= {*names}, f"rates are of products of {choices(names)}")

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``prediction, low, high`` (ms, or W above idle) for layers; of power, ``runtime`` must be in the table."""
        value = _value(table, self.rates, self.target, self.setting)
        return pd.DataFrame({"prediction": value, "low": value * np.exp(-self.half), "high": value * np.exp(self.half)},
                            index=table.index)


def fit(table: pd.DataFrame, kind: str, target: str, device: str, setting: Setting = PLAIN, source: str = "",
        licence: str = "") -> LayerModel:
    """Fit runtime or power of a kind of layers of several networks (column ``network``).

    The interval, and the scores, are of networks left out in turn. Raises InputError where fewer than five rows have a
    measured value: power is never made of anything else.
    """
    good = measured(table, target)
    if setting.learner == LASSO:
        good = good[good["kind"] == kind]
    of_kind = (good["kind"] == kind).to_numpy()
    if of_kind.sum() < _LEAST_ROWS:
        raise InputError(f"{of_kind.sum()} of {(table['kind'] == kind).sum()} {kind} layers have a measured {target}; "
                         f"a model needs {_LEAST_ROWS}")
    left_out = held_out(good, kind, target, setting)
    every_error = np.abs(np.log(left_out) - np.log(good[target].to_numpy(float)))
    errors = every_error[of_kind]
    if len(errors) < _ENOUGH_ROWS:
        errors = np.concatenate([errors, every_error])
    half = float(np.quantile(errors, min(1.0, _COVERAGE * (1 + 1 / len(errors)))))  # with the finite-sample correction
    rates = _rates(_taught(good, kind, setting), target, setting)
    return LayerModel(kind, target, device, rates, half, setting,
                      tuple(sorted(set(good["network"]))), good["kind"].value_counts().to_dict(),
                      score(good.loc[of_kind, target], left_out[of_kind]), source, licence)


def measured(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the rows whose work is known, and whose runtime and target were measured."""
    finite = np.isfinite(table[["flops", "bytes", "weight_bytes", "runtime", target]].to_numpy(float)).all(axis=1)
    return table[finite & (table[target] > 0)]


def held_out(table: pd.DataFrame, kind: str, target: str, setting: Setting) -> np.ndarray:
    """Return the prediction of each row (n,) by a model that did not see its network; of one network alone, by its own."""
    def predict(test: np.ndarray) -> np.ndarray:
        train = _taught(table[test if test.all() else ~test], kind, setting)
        return _value(table[test], _rates(train, target, setting), target, setting)

    return sums.cross_predicted(sums.each(table["network"]), predict)


def _taught(table: pd.DataFrame, kind: str, setting: Setting) -> pd.DataFrame:
    """Return the rows that a model of one kind learns from: those of all kinds where they are taken together."""
    of_kind = table[table["kind"] == kind]
    return table if setting.together or of_kind.empty else of_kind


def _value(table: pd.DataFrame, rates: Rates, target: str, setting: Setting) -> np.ndarray:
    if setting.learner == LASSO:
        return lasso.predict(table, rates)
    terms, values = work(table), np.array([rates[name] for name in TERMS])
    if target == "runtime":
        return terms[:, :-1] @ values[:-1]
    return terms @ values / terms[:, -1]


def _rates(table: pd.DataFrame, target: str, setting: Setting) -> Rates:
    """Return the non-negative rates of TERMS with the least sum of squared errors, each over its value ** ``relative``."""
    from scipy.optimize import nnls

    if setting.learner == LASSO:
        return lasso.fit(table, target)
    terms, value = work(table), table[target].to_numpy(float)
    if target == "power":
        value = value * terms[:, -1]
    else:
        terms[:, -1] = 0.0
    used = np.array([name not in setting.without for name in TERMS], float)
    weight = value**-setting.relative
    rates, _ = nnls(terms * used * weight[:, None], value * weight)
    return dict(zip(TERMS, map(float, rates), strict=True))
