"""The original study's pipeline, polynomial features and LassoCV, stored as weights of terms.

Source: fuzzylabs, edge-vision-power-estimation (Apache-2.0), with its special terms as they are.
"""

import warnings
from collections.abc import Iterable

import numpy as np
import pandas as pd

from lib.tensorrt.layers import FEATURES

_DEGREE, _FOLDS, _LEAST_ROWS, _LEAST = 3, 10, 5, 1e-3
_INPUT = "input_size_0 input_size_1 input_size_2"
_KERNEL = f"{_INPUT} kernel_0 kernel_1"
_SPECIAL = {
    "convolutional": [f"{_KERNEL} output_size_2", f"{_KERNEL} output_size_2 batch_size"],
    "pooling": [f"{_INPUT} batch_size", "output_size_0 output_size_1 output_size_2 batch_size",
                f"{_KERNEL} batch_size"]}


def fit_lasso(table: pd.DataFrame, target: str) -> dict[str, float]:
    """Return the weights of the terms of one kind of layer; of fewer than 5 rows, their mean.

    A term is a product of columns, written as their names with spaces between; ``1`` is the
    intercept. Cross-validation keeps the layers of a network in one fold.
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
    terms = np.array([*terms, *_SPECIAL.get(kind, [])])
    x, groups = _products(table, terms), table["network"]
    folds = min(_FOLDS, groups.nunique())
    splits = list(GroupKFold(folds).split(x, groups=groups)) if folds > 1 else _LEAST_ROWS
    scaler = RobustScaler() if kind == "pooling" and target == "power" else StandardScaler()
    scaled = scaler.fit_transform(x)
    _, used = np.unique(scaled.round(9), axis=1, return_index=True)
    used = np.sort(used)  # of equal columns, such as height and width, the first: the same optimum
    model = LassoCV(cv=splits, random_state=42, max_iter=10_000, alphas=500,
                    positive=not (kind == "pooling" and target == "runtime"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as the original takes it
        model.fit(scaled[:, used], value)
    weights = model.coef_ / scaler.scale_[used]
    intercept = model.predict(scaled[:1, used])[0] - x[0, used] @ weights
    named = zip(terms[used].tolist(), weights.tolist(), strict=True)
    return {"1": float(intercept)} | {term: weight for term, weight in named if weight}


def predict_lasso(table: pd.DataFrame, weights: dict[str, float]) -> np.ndarray:
    """Return the value of each row (n,), at least a microsecond or a milliwatt."""
    return np.maximum(_products(table, weights) @ np.array(list(weights.values())), _LEAST)


def _products(table: pd.DataFrame, terms: Iterable[str]) -> np.ndarray:
    with_one = table.assign(**{"1": 1.0})
    return np.column_stack([with_one[term.split()].to_numpy(float).prod(axis=1) for term in terms])
