"""Regressors of one group of operators: physical rates first, then by what factor an operator departs.

Rates are never negative. The factor comes from boosted trees (LightGBM): the blocks of a library on a
CPU and the tiles and waves of a GPU make sharp steps, and a tree is bounded for every input.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from lib.predict.model_file import Limits, NotNegative, require, vector
from lib.predict.operators.features import TEXTS
from lib.predict.operators.trees import Trees

LEAST_MS = 1e-4
TREES: dict[str, Any] = {
    "objective": "huber", "alpha": 0.1,  # log factors: squared below 10 %, absolute beyond
    "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 5, "feature_fraction": 0.5,
    "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
    "num_threads": 1, "deterministic": True, "force_row_wise": True}
_ROUNDS = 500
_MANY = 3_000  # rows from which on trees are larger
_OF_MANY = {"num_leaves": 63, "min_data_in_leaf": 10}
_LEAST_SPREAD = 0.03  # a row's weight is its inverse relative IQR, not believed below this
_MOST_VALUES = 30  # of a text in the training rows, for an unknown text to be recognised
_QUANTILES = (0.01, 0.99)  # of the training rows' factors: the limits of an answer out of range


def nonnegative_rates(terms: pd.DataFrame, measured_ms: np.ndarray,
                      known_ms: np.ndarray | float = 0.0) -> np.ndarray:
    """Return what one of each term costs, in ms, by least squares of the relative error.

    No rate is negative (SciPy's nnls). ``known_ms`` is known of the measured times, beside the terms.
    """
    from scipy.optimize import nnls

    scale = terms.to_numpy().max(axis=0) + 1e-30
    relative = terms.to_numpy() / scale / measured_ms[:, None]
    costs, _ = nnls(relative, (measured_ms - known_ms) / measured_ms, maxiter=2000)
    return costs / scale


def shares(terms: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the terms' costs in ms, and the logarithm of each used term's share of it.

    The sum is at least LEAST_MS.
    """
    parts = terms * costs
    total = np.maximum(parts.sum(axis=1), LEAST_MS)
    return total, np.log2(parts[:, costs > 0] / total[:, None] + 1e-6)


def known_texts(x: pd.DataFrame) -> dict[str, list[float]]:
    """Return the values of the columns that are texts."""
    return {name: sorted(set(x[name])) for name in x
            if name in TEXTS and x[name].nunique() <= _MOST_VALUES}


@dataclass
class Rates:
    """Physical rates alone, the costs of terms in ms: the time is the sum of the terms."""

    terms: list[str]
    costs: vector(NotNegative)
    form: Literal["rates"] = field(default="rates", kw_only=True)
    names: ClassVar[list[str]] = []  # of features: none

    def __post_init__(self):
        """Refuse costs that are not those of the terms."""
        require(len(self.terms) == len(self.costs) > 0,
                f"{len(self.terms)} terms have {len(self.costs)} costs")

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms (n) for terms (n, terms)."""
        return shares(terms, self.costs)[0]


@dataclass
class Boosted:
    """Rates, and trees of the log factor by which the time departs from their sum.

    ``names`` are the features that varied in training, ``known`` the values of texts in training.
    ``quantiles`` of the training rows' log factor are the limits of an answer out of range.
    """

    terms: list[str]
    costs: vector(NotNegative)
    names: list[str]
    known: dict[str, list[float]]
    quantiles: Limits
    trees: Trees
    form: Literal["boosted"] = field(default="boosted", kw_only=True)

    def __post_init__(self):
        """Refuse costs of other terms, known values of no feature, and trees of other columns."""
        require(len(self.terms) == len(self.costs) > 0,
                f"{len(self.terms)} terms have {len(self.costs)} costs")
        require(set(self.known) <= set(self.names), "known values of no feature")
        width, last = len(self.names) + int((self.costs > 0).sum()), self.trees.feature.max()
        require(last < width, f"trees split on column {last} of {width}")

    @classmethod
    def fit(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray,
            weight: np.ndarray) -> "Boosted":
        """Train on terms, features and times."""
        import lightgbm

        x = x.loc[:, (x != x.iloc[0]).any()]
        costs = nonnegative_rates(terms, measured_ms)
        total, share = shares(terms.to_numpy(), costs)
        factor = np.log(measured_ms / total)
        columns = np.concatenate([x.to_numpy(float), share], axis=1).astype(np.float32)
        data = lightgbm.Dataset(columns, factor, weight=weight, free_raw_data=False)
        options = {**TREES, "seed": 0, **(_OF_MANY if len(x) >= _MANY else {})}
        quantiles = tuple(np.quantile(factor, _QUANTILES).tolist())
        trees = Trees.from_boosters([lightgbm.train(options, data, _ROUNDS)])
        return cls(list(terms), costs, list(x), known_texts(x), quantiles, trees)

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms (n).

        Args:
            terms: (n, terms).
            x: features (n, names).
            outside: whether each row is out of range (n); its factor stays within the quantiles.

        A text that no training row had has no branch in the trees: the rates answer alone.
        """
        total, share = shares(terms, self.costs)
        factor = self.trees(np.concatenate([x, share], axis=1))
        factor = np.where(outside, np.clip(factor, *self.quantiles), factor)
        for name, values in self.known.items():
            factor = np.where(np.isin(x[:, self.names.index(name)], values), factor, 0.0)
        return total * np.exp(factor)


def weights(table: pd.DataFrame) -> np.ndarray:
    """Return how much each row of a ``sweep`` table counts: the less, the more its rounds disagree.

    A row without a known spread counts as one with the least.
    """
    spread = (table["latency_iqr_ms"] / table["latency_ms"]).to_numpy(float)
    weight = 1 / np.maximum(_LEAST_SPREAD, np.nan_to_num(spread, nan=_LEAST_SPREAD))
    return weight / weight.mean()
