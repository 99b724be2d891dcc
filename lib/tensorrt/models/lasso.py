"""The polynomial pipeline of the original study, as weights of products of columns: its LassoCV is linear in them.

Source: fuzzylabs, edge-vision-power-estimation (Apache-2.0).
"""

import warnings
from collections.abc import Iterable

import numpy as np
import pandas as pd

from lib.tensorrt.recordings.dataset import FEATURES

_DEGREE, _FOLDS, _LEAST_ROWS, _LEAST = 3, 10, 5, 1e-3
_INPUT, _OUTPUT = ("input_size_0 input_size_1 input_size_2", "output_size_0 output_size_1 output_size_2")
_CORRECTED = {"convolutional": ("flops",), "pooling": ("flops",)}
_SPECIAL = {"convolutional": tuple(f"{_INPUT} kernel_0 kernel_1 output_size_2{batch}" for batch in ("", " batch_size")),
            "pooling": tuple(f"{term} batch_size" for term in (_INPUT, _OUTPUT, f"{_INPUT} kernel_0 kernel_1"))}

Rates = dict[str, float]  # by term


def fit(table: pd.DataFrame, target: str, corrected: bool = True) -> Rates:
    """Return the weights of a kind's terms: polynomial and special ones, scaled, LassoCV. Of fewer than 5 rows, their mean.

    A term is a product of columns, their names with blanks between; ``1`` is the intercept. ``corrected`` puts the FLOPs in
    place of the original's special terms, which took the width of the output for its channels; folds keep networks together.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import GroupKFold
    from sklearn.preprocessing import PolynomialFeatures, RobustScaler, StandardScaler

    value, kind = table[target].to_numpy(float), str(table["kind"].iloc[0])
    if len(table) < _LEAST_ROWS:
        return {"1": float(value.mean())}
    features = list(FEATURES[kind])
    powers = PolynomialFeatures(_DEGREE).fit(table[features]).powers_
    terms = [" ".join(np.repeat(features, row)) or "1" for row in powers]
    terms += (_CORRECTED if corrected else _SPECIAL).get(kind, ())
    x, groups = _products(table, terms), table["network"]
    folds = min(_FOLDS, groups.nunique())
    scaler = RobustScaler() if kind == "pooling" and target == "power" else StandardScaler()
    model = LassoCV(cv=list(GroupKFold(folds).split(x, groups=groups)) if folds > 1 else _LEAST_ROWS, random_state=42,
                    max_iter=10_000, alphas=500, positive=not (kind == "pooling" and target == "runtime"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is taken as it is, as the original took it
        model.fit(scaler.fit_transform(x), value)
    weights = model.coef_ / scaler.scale_
    intercept = model.predict(scaler.transform(x[:1]))[0] - x[0] @ weights
    return {"1": float(intercept)} | {term: float(weight) for term, weight in zip(terms, weights, strict=True) if weight}


def predict(table: pd.DataFrame, weights: Rates) -> np.ndarray:
    """Return the value of each row (n,), no less than a microsecond, or a milliwatt."""
    return np.maximum(_products(table, weights) @ np.array([*weights.values()]), _LEAST)


def _products(table: pd.DataFrame, terms: Iterable[str]) -> np.ndarray:
    factors = table.assign(**{"1": 1.0})
    return np.column_stack([factors[term.split()].to_numpy(float).prod(axis=1) for term in terms])
