"""The polynomial pipeline of the original study, as weights of products of columns: its LassoCV is linear in them.

Source: fuzzylabs, edge-vision-power-estimation (Apache-2.0).
"""

import warnings
from collections.abc import Collection

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
    scaled = scaler.fit_transform(x)
    _, first = np.unique(scaled.round(9), axis=1, return_index=True)
    used = np.sort(first)  # of equal columns, such as height and width, the first: the optimum is the same, and found sooner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is taken as it is, as the original took it
        model.fit(scaled[:, used], value)
    weights = model.coef_ / scaler.scale_[used]
    intercept = model.predict(scaled[:1, used])[0] - x[0, used] @ weights
    named = zip([terms[column] for column in used], weights, strict=True)
    return {"1": float(intercept)} | {term: float(weight) for term, weight in named if weight}


def predict(table: pd.DataFrame, weights: Rates) -> np.ndarray:
    """Return the value of each row (n,), no less than a microsecond, or a milliwatt."""
    return np.maximum(_products(table, weights) @ np.array([*weights.values()]), _LEAST)


def _products(table: pd.DataFrame, terms: Collection[str]) -> np.ndarray:
    columns = {name: table[name].to_numpy(float) for name in table.columns.intersection({*" ".join(terms).split()})}
    columns["1"] = np.ones(len(table))
    return np.column_stack([np.prod([columns[name] for name in term.split()], axis=0) for term in terms])
