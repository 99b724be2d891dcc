"""How right predicted gains are: factors by which a change makes networks faster, on cards and on a CPU, scored alike."""

import math

import numpy as np

SCORES = ("sign", "sign_large", "n_large", "mape", "median", "bias", "constant_mape", "n")
LARGE = math.log(1.05)  # of a log gain, either way, from which on its sign matters


def scores(log_predicted: np.ndarray, log_measured: np.ndarray, log_constant: np.ndarray) -> dict[str, float]:
    """Return SCORES of log gains: signs that are right, in %, of all and of those that are LARGE, and how many these are.

    And MAPE, median and bias of the factor in %, beside the MAPE of ``log_constant``, one factor for all networks, which knows
    no more of each than the prediction does: the median gain of the families of other folds.
    """
    right, large = np.sign(log_predicted) == np.sign(log_measured), np.abs(log_measured) > LARGE
    error, constant = (np.expm1(one - log_measured) * 100 for one in (log_predicted, log_constant))
    return {"sign": float(right.mean() * 100), "sign_large": float(right[large].mean() * 100) if large.any() else math.nan,
            "n_large": int(large.sum()), "mape": float(np.abs(error).mean()), "median": float(np.median(np.abs(error))),
            "bias": float(error.mean()), "constant_mape": float(np.abs(constant).mean()), "n": len(error)}


def constants(log_measured: np.ndarray, fold: np.ndarray, usable: np.ndarray | None = None) -> np.ndarray:
    """Return for each network the median log gain of the ``usable`` ones (default: all) of other folds; NaN: there is none."""
    usable, constant = np.full(len(fold), True) if usable is None else usable, np.full(len(fold), math.nan)
    for number in np.unique(fold):
        others = log_measured[(fold != number) & usable]
        constant[fold == number] = np.median(others) if len(others) else math.nan
    return constant
