"""What a layer model is compared with: the mean, the roofline, and the original study's mapping of power."""

import numpy as np
import pandas as pd

from lib.measure.energy.power_log import PowerLog


def original_window_means(end_s: np.ndarray, log: PowerLog) -> np.ndarray:
    """Return mean watts of windows, by their ends, as the original study brought power to layers in November 2024.

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
    work = ["flops", "bytes"]
    rates = train[work].div(train[target], axis=0).quantile(0.95)
    return (test[work] / rates).max(axis=1).clip(lower=train[target].min()).to_numpy()
