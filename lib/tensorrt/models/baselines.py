"""What a layer model is compared with: the mean of the training rows, and the roofline."""

import numpy as np
import pandas as pd


def mean(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the mean of the training rows for each test row."""
    return np.full(len(test), train[target].mean())


def roofline(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the larger of FLOPs and bytes at the best rates that training rows attained, and no less than the least."""
    work = ["flops", "bytes"]
    rates = train[work].div(train[target], axis=0).quantile(0.95)
    return (test[work] / rates).max(axis=1).clip(lower=train[target].min()).to_numpy()
