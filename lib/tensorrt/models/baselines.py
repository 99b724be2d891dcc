"""What a layer model is compared with: the mean, the roofline, and the polynomial pipeline of the original study."""

import warnings

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, RobustScaler, StandardScaler

from lib.measure.energy.power_log import PowerLog
from lib.tensorrt.recordings.dataset import ORIGINAL

_NO_FEATURES = ("power", "runtime", "layer_name")
_FOLDS = 10


def original_window_means(start_s: np.ndarray, end_s: np.ndarray, log: PowerLog) -> np.ndarray:
    """Return mean watts of windows as the original study brought power to layers in November 2024.

    It took the samples that no window before had taken up to a window's end, also those before its start, and wrote 0 where
    there was none. Source: fuzzylabs, edge-vision-power-estimation (Apache-2.0).
    """
    last, means = 0, np.zeros(len(end_s))
    for number in np.argsort(end_s, kind="stable"):
        after = np.searchsorted(log.at_s, end_s[number], side="right")
        if after > last:
            means[number], last = log.power_w[last:after].mean(), after
    return means


def mean(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the mean of the training rows for each test row."""
    return np.full(len(test), train[target].mean())


def roofline(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the larger of FLOPs and bytes at the best rates that training rows attained, and no less than the least."""
    def work(table: pd.DataFrame) -> np.ndarray:
        return table[["flops", "bytes"]].to_numpy(float)

    rates = np.quantile(work(train) / train[target].to_numpy(float)[:, None], 0.95, axis=0)
    return np.maximum((work(test) / rates).max(axis=1), train[target].min())


def lasso(train: pd.DataFrame, test: pd.DataFrame, target: str, degree: int = 3, corrected: bool = True) -> np.ndarray:
    """Return the predictions of the original's pipeline for one kind: polynomial and special terms, scaler, LassoCV.

    ``corrected`` puts the multiply-adds and the pooling windows in place of its terms, which took the width of the output for
    its channels; and its folds keep networks together. Source: fuzzylabs, edge-vision-power-estimation (Apache-2.0).
    """
    kind = str(train["kind"].iloc[0])
    columns = [name for name in ORIGINAL[kind] if name not in _NO_FEATURES]
    special = _corrected if corrected else _original
    polynomial = PolynomialFeatures(degree).fit(train[columns])
    x, z = (np.column_stack([polynomial.transform(table[columns]), special(table, kind)]) for table in (train, test))
    groups, folds = train["network"], min(_FOLDS, train["network"].nunique())
    scaler = RobustScaler() if kind == "pooling" and target == "power" else StandardScaler()
    splits = list(GroupKFold(folds).split(x, groups=groups)) if folds > 1 else min(5, len(train))
    model = make_pipeline(scaler, LassoCV(cv=splits, random_state=42, max_iter=10_000, alphas=500,
                                          positive=not (kind == "pooling" and target == "runtime")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is taken as it is, as the original took it
        return model.fit(x, train[target].to_numpy(float)).predict(z)


def _corrected(table: pd.DataFrame, kind: str) -> np.ndarray:
    return table[["flops"]].to_numpy(float) if kind != "dense" else np.empty((len(table), 0))


def _original(table: pd.DataFrame, kind: str) -> np.ndarray:
    into = table["input_size_0"] * table["input_size_1"] * table["input_size_2"] if kind != "dense" else None
    if kind == "convolutional":
        term = into * table["kernel_0"] * table["kernel_1"] * table["output_size_2"]
        return np.column_stack([term, term * table["batch_size"]])
    if kind == "pooling":
        out = table["output_size_0"] * table["output_size_1"] * table["output_size_2"]
        terms = np.column_stack([into, out, into * table["kernel_0"] * table["kernel_1"]])
        return terms * table[["batch_size"]].to_numpy(float)
    return np.empty((len(table), 0))
