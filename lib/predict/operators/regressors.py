"""Regressors of one group of operators: physical rates first, then by what factor an operator departs from their sum.

Rates are never negative. On a GPU the factor comes from boosted trees (LightGBM): tiles and waves make sharp steps, which
neural networks see worse on every published table, and a tree is bounded for every input. For a CPU trees and networks are
averaged, and one small network is distilled from both (Hinton et al., 2015), so that an answer takes microseconds and a model
is a few arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from lib.predict import model_file
from lib.predict.learners import mlp
from lib.predict.learners.trees import Trees
from lib.predict.operators.features import TEXTS

LEAST_MS = 1e-4
TREES: dict[str, Any] = {"objective": "regression_l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 5,
                         "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
                         "num_threads": 1, "deterministic": True, "force_row_wise": True}
_ROUNDS, _BAGS = 500, 2
_MANY, _LEAVES = 4_000, 63  # from so many rows on trees have so many leaves, of no fewer than 10 rows
_QUICK_ROUNDS, _QUICK_EPOCHS = 250, 80
_LEAST_SPREAD = 0.03  # a row's weight is the inverse of its relative IQR, which is not believed below this
_STEPS = ("kernel", "stride")  # numbers that are names
_BEYOND = 0.3  # in log time: how far an answer in range may go beyond the factors of the training rows
_QUANTILES = (0.01, 0.99)  # of the training rows' factors: the limits of an answer out of range
_MORE, _MOST_MORE = 3, 18_000  # augmented rows for each measured one, for distillation
_WIDTH = 64

More = Callable[[int], tuple[pd.DataFrame, pd.DataFrame]]  # how many -> terms and features of augmented rows


def nonnegative_rates(terms: pd.DataFrame, measured_ms: np.ndarray) -> np.ndarray:
    """Return what one of each term costs, in ms: least squares of the relative error without negative rates (SciPy's nnls)."""
    from scipy.optimize import nnls

    scale = terms.to_numpy().max(axis=0) + 1e-30
    costs, _ = nnls(terms.to_numpy() / scale / measured_ms[:, None], np.ones(len(terms)), maxiter=2000)
    return costs / scale


def shares(terms: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the terms' costs in ms, at least LEAST_MS, and the logarithm of each used term's share of it."""
    parts = terms * costs
    total = np.maximum(parts.sum(axis=1), LEAST_MS)
    return total, np.log2(parts[:, costs > 0] / total[:, None] + 1e-6)


@dataclass
class OneHot:
    """Turns texts and step-like numbers into columns of zeros and ones, for the networks; trees need none of it."""

    known: dict[str, list[float]]

    @classmethod
    def of(cls, x: pd.DataFrame) -> "OneHot":
        """Take down the values of the columns that are names."""
        return cls({name: sorted(float(value) for value in set(x[name])) for name in x
                    if (name in TEXTS or name in _STEPS) and x[name].nunique() <= 30})

    def __call__(self, names: list[str], x: np.ndarray) -> np.ndarray:
        """Return ``x`` (n, names) with a column for each known value; texts themselves are left out."""
        plain = [column for column, name in enumerate(names) if name not in TEXTS]
        columns = [x[:, plain]]
        for name, values in self.known.items():
            columns.append((x[:, names.index(name), None] == np.array(values)).astype(float))
        return np.concatenate(columns, axis=1)


@dataclass
class Rates:
    """Physical rates alone: the time is the sum of the terms at their costs in ms, without bound or bend."""

    terms: list[str]
    costs: np.ndarray

    names: list[str] = field(default_factory=list)  # of features: none

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms)."""
        return shares(terms, self.costs)[0]

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold."""
        return {"form": "rates", "terms": self.terms, "costs": self.costs.tolist()}


@dataclass
class Boosted:
    """Rates and trees of one group: what answers for a GPU, whose tiles and waves make many sharp steps."""

    terms: list[str]
    names: list[str]  # of the features that varied in training
    costs: np.ndarray
    trees: Trees
    known: dict[str, list[float]]  # the values of texts in training
    quantiles: tuple[float, float]  # of the training rows' log factor: the limits of an answer out of range

    @classmethod
    def of(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray, rounds: int = _ROUNDS,
           bags: int = 1, **options: Any) -> "Boosted":
        """Train on terms, features and times (or watts); ``options`` of LightGBM go before those of TREES."""
        x = x.loc[:, (x != x.iloc[0]).any()]
        costs = nonnegative_rates(terms, measured_ms)
        total, share = shares(terms.to_numpy(), costs)
        answer = np.log(measured_ms / total)
        trees = _boosted(np.concatenate([x.to_numpy(float), share], axis=1), answer, weight, rounds, bags, **options)
        return cls(list(terms), list(x), costs, trees, OneHot.of(x[[name for name in x if name in TEXTS]]).known,
                   tuple(map(float, np.quantile(answer, _QUANTILES))))

    def factors(self, share: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return log factors (n) for the terms' shares, features (n, names) and whether each row is out of range.

        Trees are bounded everywhere; out of range they stay within quantiles of the training rows. A text that no training row
        had has no branch in them: the rates answer alone.
        """
        factor = self.trees(np.concatenate([x, share], axis=1))
        factor = np.where(outside, np.clip(factor, *self.quantiles), factor)
        for name, values in self.known.items():
            factor = np.where(np.isin(x[:, self.names.index(name)], values), factor, 0.0)
        return factor

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms), features (n, names) and whether each row is out of range (n)."""
        total, share = shares(terms, self.costs)
        return total * np.exp(self.factors(share, x, outside))

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold: numbers, and arrays in base64."""
        trees = {name: model_file.Array.plain(getattr(self.trees, name)) for name in ("feature", "value", "right", "roots")}
        return {"form": "boosted", "terms": self.terms, "names": self.names, "costs": self.costs.tolist(), "known": self.known,
                "quantiles": list(self.quantiles), "trees": {**trees, "ensembles": self.trees.ensembles}}


def _boosted(x: np.ndarray, answer: np.ndarray, weight: np.ndarray, rounds: int, bags: int,
             **options: Any) -> Trees:
    import lightgbm

    data = lightgbm.Dataset(x.astype(np.float32), answer, weight=weight, free_raw_data=False)
    size = {"num_leaves": _LEAVES, "min_data_in_leaf": 10} if len(x) >= _MANY else {}
    return Trees.of([lightgbm.train({**TREES, **size, **options, "seed": seed}, data, rounds) for seed in range(bags)])


@dataclass
class Ensemble:
    """Trees and networks together: the teacher from which a student is distilled; it is not saved."""

    boosted: Boosted
    nets: mlp.Nets
    onehot: OneHot
    bounds: tuple[float, float]  # of the log factor

    @classmethod
    def of(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray, quick: bool) -> "Ensemble":
        """Train on terms, features and times; ``quick`` trains less in a fifth of the time."""
        boosted = Boosted.of(terms, x, measured_ms, weight, *((_QUICK_ROUNDS, 1) if quick else (_ROUNDS, _BAGS)))
        total, share = shares(terms.to_numpy(), boosted.costs)
        x, answer = x[boosted.names], np.log(measured_ms / total)
        onehot = OneHot.of(x)
        trained = mlp.train(np.concatenate([onehot(list(x), x.to_numpy(float)), share], axis=1), answer, weight,
                             epochs=_QUICK_EPOCHS if quick else mlp.EPOCHS)
        return cls(boosted, trained, onehot, (float(answer.min()) - _BEYOND, float(answer.max()) + _BEYOND))

    def factors(self, share: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return log factors (n) for the terms' shares and features (n, names)."""
        trees = self.boosted.factors(share, x, np.zeros(len(x), bool))
        wide = np.concatenate([self.onehot(self.boosted.names, x), share], axis=1)
        return (trees + np.clip(self.nets(wide), *self.bounds)) / 2


@dataclass
class Student:
    """Rates, and one small network distilled from an ensemble; its answers are bounded in range and out of it."""

    terms: list[str]
    names: list[str]
    costs: np.ndarray
    nets: mlp.Nets
    onehot: OneHot
    bounds: tuple[float, float]

    @classmethod
    def of(cls, teacher: Ensemble, terms: pd.DataFrame, x: pd.DataFrame, quick: bool = False,
           more: More | None = None) -> "Student":
        """Distil the teacher's answers on terms and features, and on the augmented ones that ``more`` gives."""
        names, costs = teacher.boosted.names, teacher.boosted.costs
        if more:
            more_terms, more_x = more(min(_MORE * len(x), _MOST_MORE))
            terms, x = pd.concat([terms, more_terms]), pd.concat([x, more_x])
        values = x[names].to_numpy(float)
        _, share = shares(terms.to_numpy(float), costs)
        answer = teacher.factors(share, values)
        wide = np.concatenate([teacher.onehot(names, values), share], axis=1)
        student = mlp.train(wide, answer, np.ones(len(answer)), seeds=(0,), epochs=_QUICK_EPOCHS if quick else mlp.EPOCHS,
                             width=_WIDTH)
        return cls(list(terms), names, costs, student, teacher.onehot, teacher.bounds)

    def predict(self, terms: np.ndarray, x: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms) and features (n, names)."""
        total, share = shares(terms, self.costs)
        wide = np.concatenate([self.onehot(self.names, x), share], axis=1)
        return total * np.exp(np.clip(self.nets(wide), *self.bounds))

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold: numbers, and arrays of 32-bit floats in base64."""
        return {"form": "student", "terms": self.terms, "names": self.names, "costs": self.costs.tolist(),
                "known": self.onehot.known, "bounds": list(self.bounds), "centre": self.nets.centre.tolist(),
                "scale": self.nets.scale.tolist(),
                "layers": [[model_file.Array.plain(one.astype("<f4")) for one in layer] for layer in self.nets.layers]}


Regressor = Rates | Boosted | Student


def of_file(entry: model_file.Rates | model_file.Boosted | model_file.Student) -> Regressor:
    """Take a regressor from its entry in a file; ValueError where its networks or trees are not of its features' width."""
    terms, costs = list(entry.terms), np.array(entry.costs)
    if entry.form == "rates":
        return Rates(terms, costs)
    names, known = list(entry.names), {name: list(values) for name, values in entry.known.items()}
    shares_of = int((costs > 0).sum())
    if entry.form == "boosted":
        trees = {name: getattr(entry.trees, name).array() for name in ("feature", "value", "right", "roots")}
        if trees["feature"].max() >= len(names) + shares_of:
            raise ValueError(f"trees split on column {trees['feature'].max()} of {len(names) + shares_of}")
        return Boosted(terms, names, costs, Trees(**trees, ensembles=entry.trees.ensembles), known, entry.quantiles)
    onehot = OneHot(known)
    width = onehot(names, np.zeros((1, len(names)))).shape[1] + shares_of
    if len(entry.centre) != width:
        raise ValueError(f"its networks take {len(entry.centre)} inputs, its features make {width}")
    layers = [(weights.array(), biases.array()) for weights, biases in entry.layers]
    return Student(terms, names, costs, mlp.Nets(np.array(entry.centre), np.array(entry.scale), layers), onehot, entry.bounds)


def weights(table: pd.DataFrame) -> np.ndarray:
    """Return how much each row of a ``sweep`` table counts: the less, the more its rounds disagree; 1 where none is known."""
    spread = (table["latency_iqr_ms"] / table["latency_ms"]).to_numpy(float)
    weight = 1 / np.maximum(_LEAST_SPREAD, np.nan_to_num(spread, nan=_LEAST_SPREAD))
    return weight / weight.mean()
