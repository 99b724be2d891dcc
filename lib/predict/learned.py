"""What is learned of one group of operators: physical rates first, then by what factor an operator departs from their sum.

Rates are never negative. The factor is the mean of boosted trees (LightGBM), which see thresholds, and of small neural
networks, which see slopes; both learn its logarithm.
"""

import base64
import ctypes
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict import nets
from lib.predict.features import TEXTS

LEAST_MS = 1e-4
TREES: dict[str, Any] = {"objective": "regression_l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 5,
                         "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
                         "num_threads": 2, "deterministic": True, "force_row_wise": True}
_ROUNDS, _BAGS = 600, 3
_MANY, _MANY_LEAVES = 6000, 127  # from so many rows on, trees may be larger
_QUICK_ROUNDS, _QUICK_EPOCHS = 250, 80
_NEEDLESS = ("tree_sizes", "split_gain", "leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count")
_DIGITS = {"threshold": 9, "leaf_value": 5}
_RAW, _DOUBLE = 1, 1  # C_API_PREDICT_RAW_SCORE, C_API_DTYPE_FLOAT64
_LEAST_SPREAD = 0.03  # a row's weight is the inverse of its relative IQR, which is not believed below this
_STEPS = ("kernel", "stride")  # numbers that are names


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


def _kept_lines(booster) -> list[str]:
    lines = []
    for line in booster.model_to_string(num_iteration=-1).split("\n\nend of trees")[0].split("\n"):
        name, _, values = line.partition("=")
        if name in _DIGITS:
            lines.append(f"{name}=" + " ".join(f"{float(value):.{_DIGITS[name]}g}" for value in values.split()))
        elif name not in _NEEDLESS:
            lines.append(line)
    return lines


class _Single:
    """Asks a booster about one row after another by LightGBM's C interface, made for that: no arrays, no checks."""

    def __init__(self, booster, columns: int):
        lightgbm = lightgbm_alone()
        self._library, self._booster, self._columns = lightgbm.basic._LIB, booster, columns  # the booster must stay alive
        self._fast, self._row, self._out, self._count = ctypes.c_void_p(), (ctypes.c_double * columns)(), ctypes.c_double(), \
            ctypes.c_int64()
        failed = self._library.LGBM_BoosterPredictForMatSingleRowFastInit(
            booster._handle, ctypes.c_int(_RAW), ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(_DOUBLE),
            ctypes.c_int32(columns), b"num_threads=1", ctypes.byref(self._fast))
        if failed:
            raise RuntimeError(self._library.LGBM_GetLastError())

    def __call__(self, x: list[float]) -> float:
        """Return what the booster says of one row."""
        self._row[:] = x
        self._library.LGBM_BoosterPredictForMatSingleRowFast(self._fast, self._row, ctypes.byref(self._count),
                                                             ctypes.byref(self._out))
        return self._out.value


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
class Learned:
    """Rates, trees and networks of one group."""

    terms: list[str]
    names: list[str]
    costs: np.ndarray
    trees: list[str]  # LightGBM's text
    nets: nets.Nets
    spread: Spread

    @classmethod
    def of(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, weight: np.ndarray | None = None,
           quick: bool = False) -> "Learned":
        """Learn from terms, features and times; ``quick`` learns less in a fifth of the time."""
        lightgbm = lightgbm_alone()
        weight = np.ones(len(x)) if weight is None else weight
        costs = rates(terms, measured_ms)
        total, known = shares(terms.to_numpy(), costs)
        given, answer = np.concatenate([x.to_numpy(float), known], axis=1), np.log(measured_ms / total)
        data = lightgbm.Dataset(given, answer, weight=weight, free_raw_data=False)
        rounds, bags = (_QUICK_ROUNDS, 1) if quick else (_ROUNDS, _BAGS)
        size = {"num_leaves": _MANY_LEAVES, "min_data_in_leaf": 10} if len(x) >= _MANY else {}
        trees = [_text(lightgbm.train({**TREES, **size, "seed": seed}, data, rounds)) for seed in range(bags)]
        spread = Spread.of(x)
        wide = np.concatenate([spread(list(x), x.to_numpy(float)), known], axis=1)
        trained = nets.train(wide, answer, weight, epochs=_QUICK_EPOCHS) if quick else nets.train(wide, answer, weight)
        return cls(list(terms), list(x), costs, trees, trained, spread)

    def _base(self, terms: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        total, known = shares(terms, self.costs)
        return total, known, np.concatenate([self.spread(self.names, x), known], axis=1)

    def predict(self, terms: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return times in ms for terms (n, terms) and features (n, names)."""
        total, known, wide = self._base(terms, x)
        given = np.concatenate([x, known], axis=1)
        trees = np.mean([booster.predict(given) for booster in self.boosters], axis=0)
        return total * np.exp((trees + self.nets(wide)) / 2)

    @cached_property
    def boosters(self) -> list:
        """Give the trees, read when they are first asked; InputError for a text that is none."""
        lightgbm = lightgbm_alone()
        try:
            return [lightgbm.Booster(model_str=text) for text in self.trees]
        except lightgbm.basic.LightGBMError as error:
            raise InputError(f"the trees of a model are damaged: {error}") from None

    @cached_property
    def _singles(self) -> list[_Single]:
        columns = len(self.names) + int((self.costs > 0).sum())
        return [_Single(booster, columns) for booster in self.boosters]

    def one(self, terms: list[float], x: list[float]) -> float:
        """Return the time in ms of one operator."""
        total, known, wide = self._base(np.array([terms]), np.array([x]))
        given = [*x, *known[0].tolist()]
        trees = sum(single(given) for single in self._singles) / len(self._singles)
        return float(total[0] * np.exp((trees + self.nets(wide)[0]) / 2))

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold: LightGBM's own text, and arrays of 32-bit floats in base64."""
        return {"terms": self.terms, "names": self.names, "costs": self.costs.tolist(), "known": self.spread.known,
                "trees": self.trees,
                "centre": self.nets.centre.tolist(), "scale": self.nets.scale.tolist(),
                "layers": [[_packed(w), _packed(b)] for w, b in self.nets.layers]}

    @classmethod
    def of_plain(cls, content: dict[str, Any]) -> "Learned":
        """Read what ``plain`` gave."""
        layers = [(_unpacked(w), _unpacked(b)) for w, b in content["layers"]]
        return cls(content["terms"], content["names"], np.array(content["costs"]),
                   list(content["trees"]),
                   nets.Nets(np.array(content["centre"]), np.array(content["scale"]), layers), Spread(content["known"]))


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
