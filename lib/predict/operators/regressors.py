"""What is learned of one group of operators: physical rates first, then by what factor an operator departs from their sum.

Rates are never negative. The factor is learned by boosted trees (LightGBM), which see thresholds, and by small neural networks,
which see slopes. For a CPU one small network then learns what they say together, of the measured operators and of many that lie
between them (distillation: Hinton et al., 2015), so that an answer takes microseconds and a model is a few arrays. GPUs keep
trees and networks: their tiles and waves make many sharp steps, of which a small network loses some.
"""

import base64
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import exp, log2
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.operators import mlp
from lib.predict.operators.features import TEXTS

LEAST_MS = 1e-4
TREES: dict[str, Any] = {"objective": "regression_l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 5,
                         "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
                         "num_threads": 2, "deterministic": True, "force_row_wise": True}
_ROUNDS, _BAGS = 500, 2
_LEAVES = ((10_000, 127), (4_000, 63))  # from so many rows on, trees may be larger
_QUICK_ROUNDS, _QUICK_EPOCHS = 250, 80
_NEEDLESS = ("tree_sizes", "split_gain", "leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count")
_DIGITS = {"threshold": 9, "leaf_value": 5}
_LEAST_SPREAD = 0.03  # a row's weight is the inverse of its relative IQR, which is not believed below this
_STEPS = ("kernel", "stride")  # numbers that are names
_BEYOND = 0.3  # in log time: how far an answer may go beyond those that were measured
_BETWEEN, _MOST_BETWEEN = 3, 18_000  # questions between measured ones, for each of them, that teach the small network
_WIDTH = 64

More = Callable[[int], tuple[np.ndarray, np.ndarray]]  # how many -> terms and features of questions that were not measured


def lightgbm_alone():
    """Import LightGBM without scikit-learn, whose import takes it a second and of which nothing is asked here."""
    if "lightgbm" not in sys.modules and "sklearn" not in sys.modules:
        sys.modules["sklearn"] = None
        try:
            import lightgbm
        finally:
            del sys.modules["sklearn"]
    import lightgbm

    return lightgbm


def rates(terms: pd.DataFrame, measured_ms: np.ndarray) -> np.ndarray:
    """Return what one of each term costs, in ms: least squares of the relative error without negative rates (SciPy's nnls)."""
    from scipy.optimize import nnls

    scale = terms.to_numpy().max(axis=0) + 1e-30
    found, _ = nnls(terms.to_numpy() / scale / measured_ms[:, None], np.ones(len(terms)), maxiter=2000)
    return found / scale


def shares(terms: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the terms' costs in ms, at least LEAST_MS, and the logarithm of each used term's share of it."""
    parts = terms * costs
    total = np.maximum(parts.sum(axis=1), LEAST_MS)
    return total, np.log2(parts[:, costs > 0] / total[:, None] + 1e-6)


@dataclass
class Spread:
    """Turns texts and step-like numbers into columns of zeros and ones, for the networks; trees need none of it."""

    known: dict[str, list[float]]

    @classmethod
    def of(cls, x: pd.DataFrame) -> "Spread":
        """Take down the values of the columns that are names."""
        return cls({name: sorted(float(value) for value in set(x[name])) for name in x
                    if (name in TEXTS or name in _STEPS) and x[name].nunique() <= 30})

    def __call__(self, names: list[str], x: np.ndarray) -> np.ndarray:
        """Return ``x`` (n, names) with a column for each known value; texts themselves are left out."""
        plain = [place for place, name in enumerate(names) if name not in TEXTS]
        found = [x[:, plain]]
        for name, values in self.known.items():
            found.append((x[:, names.index(name), None] == np.array(values)).astype(float))
        return np.concatenate(found, axis=1)


@dataclass
class Teacher:
    """Rates, trees and networks of one group: what is learned from measurements."""

    terms: list[str]
    names: list[str]
    costs: np.ndarray
    trees: list[str]  # LightGBM's text
    nets: mlp.Nets
    spread: Spread
    bounds: tuple[float, float]  # of the log factor

    @classmethod
    def of(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray, quick: bool) -> "Teacher":
        """Learn from terms, features and times; ``quick`` learns less in a fifth of the time."""
        lightgbm = lightgbm_alone()
        costs = rates(terms, measured_ms)
        total, known = shares(terms.to_numpy(), costs)
        given, answer = np.concatenate([x.to_numpy(float), known], axis=1), np.log(measured_ms / total)
        data = lightgbm.Dataset(given, answer, weight=weight, free_raw_data=False)
        rounds, bags = (_QUICK_ROUNDS, 1) if quick else (_ROUNDS, _BAGS)
        leaves = next((leaves for rows, leaves in _LEAVES if len(x) >= rows), None)
        size = {"num_leaves": leaves, "min_data_in_leaf": 10} if leaves else {}
        trees = [_text(lightgbm.train({**TREES, **size, "seed": seed}, data, rounds)) for seed in range(bags)]
        spread = Spread.of(x)
        wide = np.concatenate([spread(list(x), x.to_numpy(float)), known], axis=1)
        trained = mlp.train(wide, answer, weight, epochs=_QUICK_EPOCHS if quick else mlp.EPOCHS)
        return cls(list(terms), list(x), costs, trees, trained, spread,
                   (float(answer.min()) - _BEYOND, float(answer.max()) + _BEYOND))

    @cached_property
    def boosters(self) -> list:
        """Give the trees, read when they are first asked; InputError for a text that is none."""
        lightgbm = lightgbm_alone()
        try:
            return [lightgbm.Booster(model_str=text) for text in self.trees]
        except lightgbm.basic.LightGBMError as error:
            raise InputError(f"the trees of a model are damaged: {error}") from None

    def factors(self, known: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return log factors for the terms' shares and features (n, names)."""
        given = np.concatenate([x, known], axis=1)
        trees = np.mean([booster.predict(given) for booster in self.boosters], axis=0)
        wide = np.concatenate([self.spread(self.names, x), known], axis=1)
        return (trees + np.clip(self.nets(wide), *self.bounds)) / 2

    def predict(self, terms: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms) and features (n, names)."""
        total, known = shares(terms, self.costs)
        return total * np.exp(self.factors(known, x))

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold: LightGBM's own text, and arrays of 32-bit floats in base64."""
        return {**_plain(self), "trees": self.trees}


@dataclass
class Learned:
    """What answers: rates, and one small network that holds what the teacher says."""

    terms: list[str]
    names: list[str]
    costs: np.ndarray
    nets: mlp.Nets
    spread: Spread
    bounds: tuple[float, float]

    @classmethod
    def of(cls, teacher: Teacher, terms: pd.DataFrame, x: pd.DataFrame, quick: bool = False,
           more: More | None = None) -> "Learned":
        """Learn what the teacher says of terms and features, and of those between them that ``more`` gives."""
        parts, values = [terms.to_numpy(float)], [x.to_numpy(float)]
        for source in (more,) if more else ():
            other_terms, other_x = source(min(_BETWEEN * len(x), _MOST_BETWEEN))
            parts.append(other_terms)
            values.append(other_x)
        values = np.concatenate(values)
        _, known = shares(np.concatenate(parts), teacher.costs)
        said = teacher.factors(known, values)
        wide = np.concatenate([teacher.spread(list(x), values), known], axis=1)
        student = mlp.train(wide, said, np.ones(len(said)), seeds=(0,), epochs=_QUICK_EPOCHS if quick else mlp.EPOCHS,
                             width=_WIDTH)
        return cls(list(terms), list(x), teacher.costs, student, teacher.spread, teacher.bounds)

    def predict(self, terms: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms) and features (n, names)."""
        total, known = shares(terms, self.costs)
        wide = np.concatenate([self.spread(self.names, x), known], axis=1)
        return total * np.exp(np.clip(self.nets(wide), *self.bounds))

    @cached_property
    def _plan(self) -> tuple[list[int], list[tuple[int, list[float]]], list[tuple[int, float]]]:
        """Give the places of plain features, of those that are names with their values, and of used terms with their costs."""
        plain = [place for place, name in enumerate(self.names) if name not in TEXTS]
        named = [(self.names.index(name), values) for name, values in self.spread.known.items()]
        return plain, named, [(place, cost) for place, cost in enumerate(self.costs.tolist()) if cost > 0]

    def one(self, terms: list[float], x: list[float]) -> float:
        """Return the time in ms of one operator."""
        plain, named, used = self._plan
        parts = [terms[place] * cost for place, cost in used]
        total = max(sum(parts), LEAST_MS)
        wide = [x[place] for place in plain]
        for place, values in named:
            value = x[place]
            wide += [1.0 if value == known else 0.0 for known in values]
        wide += [log2(part / total + 1e-6) for part in parts]
        factor = float(self.nets(np.array([wide]))[0])
        low, high = self.bounds
        return total * exp(min(max(factor, low), high))

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold: numbers, and arrays of 32-bit floats in base64."""
        return _plain(self)


def _plain(one: Teacher | Learned) -> dict[str, Any]:
    return {"terms": one.terms, "names": one.names, "costs": one.costs.tolist(), "known": one.spread.known,
            "bounds": list(one.bounds), "centre": one.nets.centre.tolist(), "scale": one.nets.scale.tolist(),
            "layers": [[_packed(w), _packed(b)] for w, b in one.nets.layers]}


def of_plain(content: dict[str, Any]) -> Teacher | Learned:
    """Read what ``plain`` of either gave; files of version 1 have no bounds."""
    layers = [(_unpacked(w), _unpacked(b)) for w, b in content["layers"]]
    low, high = content.get("bounds", (-np.inf, np.inf))
    facts = {"terms": content["terms"], "names": content["names"], "costs": np.array(content["costs"]),
             "nets": mlp.Nets(np.array(content["centre"]), np.array(content["scale"]), layers),
             "spread": Spread(content["known"]), "bounds": (float(low), float(high))}
    return Teacher(**facts, trees=list(content["trees"])) if "trees" in content else Learned(**facts)


def _kept_lines(booster) -> list[str]:
    lines = []
    for line in booster.model_to_string(num_iteration=-1).split("\n\nend of trees")[0].split("\n"):
        name, _, values = line.partition("=")
        if name in _DIGITS:
            lines.append(f"{name}=" + " ".join(f"{float(value):.{_DIGITS[name]}g}" for value in values.split()))
        elif name not in _NEEDLESS:
            lines.append(line)
    return lines


def _text(booster) -> str:
    """Return a booster's text without what only training needs, numbers rounded: a quarter of it."""
    return "\n".join(_kept_lines(booster)) + "\n\nend of trees\n"


def _packed(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def _unpacked(content: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(content["float32"]), "<f4").reshape(content["shape"]).copy()


def weights(table: pd.DataFrame) -> np.ndarray:
    """Return how much each row of a ``sweep`` table counts: the less, the more its rounds disagree; 1 where none is known."""
    spread = (table["latency_iqr_ms"] / table["latency_ms"]).to_numpy(float)
    found = 1 / np.maximum(_LEAST_SPREAD, np.nan_to_num(spread, nan=_LEAST_SPREAD))
    return found / found.mean()
