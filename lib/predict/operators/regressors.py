"""Regressors of one group of operators: physical rates first, then by what factor an operator departs from their sum.

Rates are never negative. On a GPU the factor comes from boosted trees (LightGBM): tiles and waves make sharp steps, which
neural networks see worse on every published table, and a tree is bounded for every input. For a CPU trees and networks are
averaged, and one small network is distilled from both (Hinton et al., 2015), so that an answer takes microseconds and a model
is a few arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from lib.predict.learners import mlp
from lib.predict.learners.trees import Trees
from lib.predict.model_file import Limits, NotNegative, Positive, array, require, vector
from lib.predict.operators.features import TEXTS

LEAST_MS = 1e-4
TREES: dict[str, Any] = {"objective": "regression_l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 5,
                         "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
                         "num_threads": 1, "deterministic": True, "force_row_wise": True}
_MANY, _OF_MANY = 4_000, {"num_leaves": 63, "min_data_in_leaf": 10}  # from so many rows on trees are so large
_FULL, _QUICK = (500, 2, mlp.EPOCHS), (250, 1, 80)  # rounds and bags of trees, epochs of networks
_LEAST_SPREAD = 0.03  # a row's weight is the inverse of its relative IQR, which is not believed below this
_STEPS = ("kernel", "stride")  # numbers that are names
_MOST_VALUES = 30  # of a name that has a column for each
_BEYOND = 0.3  # in log time: how far an answer in range may go beyond the factors of the training rows
_QUANTILES = (0.01, 0.99)  # of the training rows' factors: the limits of an answer out of range
_AUGMENTED_PER_ROW, _MOST_AUGMENTED = 3, 18_000  # augmented rows for each measured one, for distillation
_WIDTH = 64

More = Callable[[int], list[pd.DataFrame]]  # how many -> terms and features of augmented rows


def nonnegative_rates(terms: pd.DataFrame, measured_ms: np.ndarray, known_ms: np.ndarray | float = 0.0) -> np.ndarray:
    """Return what one of each term costs, in ms: least squares of the relative error without negative rates (SciPy's nnls).

    ``known_ms``: what is known of the measured times, beside the terms.
    """
    from scipy.optimize import nnls

    scale = terms.to_numpy().max(axis=0) + 1e-30
    costs, _ = nnls(terms.to_numpy() / scale / measured_ms[:, None], (measured_ms - known_ms) / measured_ms, maxiter=2000)
    return costs / scale


def shares(terms: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the terms' costs in ms, at least LEAST_MS, and the logarithm of each used term's share of it."""
    parts = terms * costs
    total = np.maximum(parts.sum(axis=1), LEAST_MS)
    return total, np.log2(parts[:, costs > 0] / total[:, None] + 1e-6)


def known_values(x: pd.DataFrame, names: tuple[str, ...] = ()) -> dict[str, list[float]]:
    """Return the values of the columns that are texts, or among ``names``: step-like numbers."""
    return {name: sorted(set(x[name])) for name in x if (name in TEXTS or name in names) and x[name].nunique() <= _MOST_VALUES}


def one_hot(known: dict[str, list[float]], names: list[str], x: np.ndarray) -> np.ndarray:
    """Return ``x`` (n, names) with a column of zeros and ones for each known value; texts themselves are left out."""
    numbers = x[:, [column for column, name in enumerate(names) if name not in TEXTS]]
    return np.concatenate([numbers, *(x[:, names.index(name), None] == values for name, values in known.items())], axis=1)


@dataclass
class Regressor:
    """Physical rates, the costs of terms in ms, and by what factor the time departs from their sum."""

    terms: list[str]
    costs: vector(NotNegative)

    def __post_init__(self):
        """Refuse costs that are not those of the terms."""
        require(len(self.terms) == len(self.costs) > 0, f"{len(self.terms)} terms have {len(self.costs)} costs")

    def factors(self, share: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray | float:
        """Return log factors (n) for the terms' shares, features (n, names) and whether each row is out of range."""
        return 0.0

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms), features (n, names) and whether each row is out of range (n)."""
        total, share = shares(terms, self.costs)
        return total * np.exp(self.factors(share, x, outside))


@dataclass
class Rates(Regressor):
    """Physical rates alone: the time is the sum of the terms, without bound or bend."""

    form: Literal["rates"] = field(default="rates", kw_only=True)
    names: ClassVar[list[str]] = []  # of features: none


@dataclass
class _Learned(Regressor):
    """What learns from features: ``names`` are those that varied in training, ``known`` the values of names in training."""

    names: list[str]
    known: dict[str, list[float]]

    def __post_init__(self):
        """Refuse known values of no feature, and what no row of the features could be given to."""
        super().__post_init__()
        require(set(self.known) <= set(self.names), "known values of no feature")
        factor = self.factors(np.zeros((1, (self.costs > 0).sum())), np.zeros((1, len(self.names))), np.zeros(1, bool))
        require(np.isfinite(factor) & (np.shape(factor) == (1,)), "its learner gives no factor")


@dataclass
class Boosted(_Learned):
    """Rates and trees of one group: what answers for a GPU, whose tiles and waves make many sharp steps.

    ``quantiles`` of the training rows' log factor are the limits of an answer out of range.
    """

    quantiles: Limits
    trees: Trees
    form: Literal["boosted"] = field(default="boosted", kw_only=True)

    def __post_init__(self):
        """Refuse trees that split on other columns than those of the features and shares."""
        width = len(self.names) + int((self.costs > 0).sum())
        require(self.trees.feature.max() < width, f"trees split on column {self.trees.feature.max()} of {width}")
        super().__post_init__()

    @classmethod
    def fit(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray, rounds: int = _FULL[0],
            bags: int = 1) -> "Boosted":
        """Train on terms, features and times."""
        import lightgbm

        x = x.loc[:, (x != x.iloc[0]).any()]
        costs = nonnegative_rates(terms, measured_ms)
        total, share = shares(terms.to_numpy(), costs)
        answer = np.log(measured_ms / total)
        wide = np.concatenate([x.to_numpy(float), share], axis=1).astype(np.float32)
        data = lightgbm.Dataset(wide, answer, weight=weight, free_raw_data=False)
        options = {**TREES, **(_OF_MANY if len(x) >= _MANY else {})}
        boosters = [lightgbm.train({**options, "seed": seed}, data, rounds) for seed in range(bags)]
        return cls(list(terms), costs, list(x), known_values(x), tuple(np.quantile(answer, _QUANTILES).tolist()),
                   Trees.from_boosters(boosters))

    def factors(self, share: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return log factors; out of range they stay within quantiles of the training rows.

        A text that no training row had has no branch in the trees: the rates answer alone.
        """
        factor = self.trees(np.concatenate([x, share], axis=1))
        factor = np.where(outside, np.clip(factor, *self.quantiles), factor)
        for name, values in self.known.items():
            factor = np.where(np.isin(x[:, self.names.index(name)], values), factor, 0.0)
        return factor


@dataclass
class Student(_Learned):
    """Rates, and one small network of standardised inputs; its log factors lie within ``bounds``, in range and out of it."""

    bounds: Limits
    centre: vector()
    scale: vector(Positive)
    layers: Annotated[list[tuple[array(file="<f4", axes=3), array(file="<f4", axes=3)]],
                      Field(min_length=2)]  # weights, biases: see mlp.Nets
    form: Literal["student"] = field(default="student", kw_only=True)

    @cached_property
    def _nets(self) -> mlp.Nets:
        return mlp.Nets(self.centre, self.scale, self.layers)

    def factors(self, share: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return the log factors of the networks."""
        wide = np.concatenate([one_hot(self.known, self.names, x), share], axis=1)
        require(wide.shape[1] == len(self.centre) == len(self.scale),
                f"its networks take {len(self.centre)} inputs, its features make {wide.shape[1]}")
        return np.clip(self._nets(wide), *self.bounds)

    @classmethod
    def distilled(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray, quick: bool = False,
                  more: More | None = None) -> "Student":
        """Train trees and networks, and distil their mean on terms and features, and on the augmented ones of ``more``.

        ``quick`` trains less in a fifth of the time.
        """
        rounds, bags, epochs = _QUICK if quick else _FULL
        boosted = Boosted.fit(terms, x, measured_ms, weight, rounds, bags)
        names, costs, known = boosted.names, boosted.costs, known_values(x[boosted.names], _STEPS)

        def inputs(terms: pd.DataFrame, x: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            values, share = x[names].to_numpy(float), shares(terms.to_numpy(float), costs)[1]
            return share, values, np.concatenate([one_hot(known, names, values), share], axis=1)

        answer = np.log(measured_ms / shares(terms.to_numpy(), costs)[0])
        bounds = (float(answer.min()) - _BEYOND, float(answer.max()) + _BEYOND)
        teacher = mlp.train(inputs(terms, x)[2], answer, weight, epochs=epochs)
        if more:
            terms, x = map(pd.concat, zip((terms, x), more(min(_AUGMENTED_PER_ROW * len(x), _MOST_AUGMENTED)), strict=True))
        share, values, wide = inputs(terms, x)
        answer = (boosted.factors(share, values, np.zeros(len(x), bool)) + np.clip(teacher(wide), *bounds)) / 2
        nets = mlp.train(wide, answer, np.ones(len(answer)), seeds=(0,), epochs=epochs, width=_WIDTH)
        return cls(list(terms), costs, names, known, bounds, nets.centre, nets.scale, nets.layers)


def weights(table: pd.DataFrame) -> np.ndarray:
    """Return how much each row of a ``sweep`` table counts: the less, the more its rounds disagree; 1 where none is known."""
    spread = (table["latency_iqr_ms"] / table["latency_ms"]).to_numpy(float)
    weight = 1 / np.maximum(_LEAST_SPREAD, np.nan_to_num(spread, nan=_LEAST_SPREAD))
    return weight / weight.mean()
