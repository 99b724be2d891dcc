"""A model of runtime or power of one kind of layer on one device, scored on networks left out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import Field

from lib.config.base import Strict, number
from lib.errors import InputError, choices
from lib.predict.model_file import Count, Format, NotNegative, Saved, require
from lib.predict.scores import half_interval
from lib.tensorrt.engine import KINDS
from lib.tensorrt.lasso import fit_lasso, predict_lasso
from lib.tensorrt.layers import FEATURES
from lib.tensorrt.physics import TERMS, fit_physics, predict_physics

TARGETS = ("runtime", "power")
_LEAST_ROWS, _ENOUGH_ROWS = 5, 20  # of a kind: for a model, for an interval of its own


class Setting(Strict):
    """How physics is fitted: with other kinds, in relative (1) or absolute (0) error, which terms.

    The learner ``lasso`` uses none of these.
    """

    learner: Literal["physics", "lasso"] = "physics"
    together: bool = True
    relative: number(0, 1) = 1.0
    without: tuple[Literal[TERMS[1:-1]], ...] = ()


@dataclass(frozen=True)
class LayerModel(Saved):
    """Rates of terms, half the interval in log space, and the origin of a model."""

    kind: Literal[tuple(KINDS.values())]
    target: Literal[TARGETS]
    device: Annotated[str, Field(min_length=1)]
    rates: dict[str, float]
    half: NotNegative
    setting: Setting
    networks: tuple[str, ...]
    rows: dict[str, Count]
    scores: dict[str, float] = field(default_factory=dict)
    source: str = ""
    licence: str = ""

    FORMAT: ClassVar = Format("layer model", "train it again: python -m lib layer-power train")

    def __post_init__(self):
        """Refuse rates of other terms than those of the learner."""
        if self.setting.learner == "physics":
            require(set(self.rates) == set(TERMS) and min(self.rates.values()) >= 0,
                    f"rates are of {choices(TERMS)}, and none is negative")
        else:
            names = {name for term in self.rates for name in term.split()}
            require(names and names <= {"1", *FEATURES[self.kind]},
                    f"rates are of products of 1, {choices(FEATURES[self.kind])}")

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``prediction, low, high`` (ms, or W above idle); power needs ``runtime``."""
        value = _value(table, self.rates, self.target, self.setting)
        return pd.DataFrame({"prediction": value, "low": value * np.exp(-self.half),
                             "high": value * np.exp(self.half)}, index=table.index)


def fit_layer_model(table: pd.DataFrame, kind: str, target: str, device: str, setting: Setting,
                    source: str = "", licence: str = "") -> LayerModel:
    """Fit a kind of layers of several networks; interval and scores are of networks left out.

    Raises InputError where fewer than five rows of the kind have a measured value.
    """
    rows = with_measured(table, target)
    if setting.learner == "lasso":
        rows = rows[rows["kind"] == kind]
    of_kind = (rows["kind"] == kind).to_numpy()
    if of_kind.sum() < _LEAST_ROWS:
        raise InputError(f"{of_kind.sum()} of {(table['kind'] == kind).sum()} {kind} layers have a "
                         f"measured {target}; a model needs {_LEAST_ROWS}")
    predicted = predict_left_out(rows, kind, target, setting)
    errors = np.log(predicted / rows[target].to_numpy(float))
    half = half_interval(errors[of_kind] if of_kind.sum() >= _ENOUGH_ROWS else errors)
    scores = layer_scores(rows.loc[of_kind, target], predicted[of_kind])
    networks = tuple(sorted(set(rows["network"])))
    return LayerModel(kind, target, device, _rates(rows, kind, target, setting), half, setting,
                      networks, rows["kind"].value_counts().to_dict(), scores, source, licence)


def with_measured(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the rows whose work is known, and whose runtime and target were measured."""
    columns = ["flops", "bytes", "weight_bytes", "runtime", target]
    finite = np.isfinite(table[columns].to_numpy(float)).all(axis=1)
    return table[finite & (table[target] > 0)]


def leave_networks_out(table: pd.DataFrame,
                       predict: Callable[[pd.DataFrame, pd.DataFrame], ArrayLike]) -> np.ndarray:
    """Return predictions (n,) of each network by ``predict(train, test)``, trained on the others."""
    values = np.full(len(table), np.nan)
    for network in table["network"].unique():
        is_test = (table["network"] == network).to_numpy()
        train = table if is_test.all() else table[~is_test]
        values[is_test] = predict(train, table[is_test])
    return values


def predict_left_out(table: pd.DataFrame, kind: str, target: str, setting: Setting) -> np.ndarray:
    """Return the prediction of each row (n,) by a model that did not see its network."""
    return leave_networks_out(table, lambda train, test: _value(
        test, _rates(train, kind, target, setting), target, setting))


def layer_scores(measured: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return mape, median and rmspe (relative errors, 0.1 is 10 %), r2 and n."""
    from sklearn.metrics import r2_score

    relative = np.abs(np.asarray(predicted, float) / np.asarray(measured, float) - 1)
    return {"mape": float(relative.mean()), "median": float(np.median(relative)),
            "rmspe": float(np.sqrt((relative**2).mean())),
            "r2": float(r2_score(measured, predicted)), "n": float(len(relative))}


def _rates(table: pd.DataFrame, kind: str, target: str, setting: Setting) -> dict[str, float]:
    of_kind = table[table["kind"] == kind]
    if setting.learner == "lasso":
        return fit_lasso(of_kind, target)
    train = table if setting.together or of_kind.empty else of_kind
    return fit_physics(train, target, setting.relative, setting.without)


def _value(table: pd.DataFrame, rates: dict[str, float], target: str,
           setting: Setting) -> np.ndarray:
    if setting.learner == "lasso":
        return predict_lasso(table, rates)
    return predict_physics(table, rates, target)
