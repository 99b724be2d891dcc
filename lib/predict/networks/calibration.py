"""Compositions of another machine, corrected by a few networks that were measured end to end on this one.

Few networks say little each: what they say is weighed against what the other machine's compositions say, by how far networks
scatter (empirical Bayes: Efron and Morris, 1975).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from lib.predict.networks.composition import SUM, TERMS, Composition
from lib.predict.operators.validation import COVER, score

LEAST_NETWORKS = 2
_BETWEEN = 0.3  # spread, in log time, of the factor between machines: what is expected before anything is measured
_FRESH_BETWEEN = 0.7  # and, as a share, of the rate of fresh memory
_SPREAD = 0.2  # of networks about their prediction, where the other machine has none measured
_WEIGHT = 3.0  # of the other machine's spread: as of so many networks
_TURNS = 5  # factor and rate of fresh memory are found in turns
HEAPS = ("kept", "default")
Compositions = Mapping[str, Composition]


def calibrated(base: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the compositions of ``base`` (by mode and heap) corrected by measured networks: factor, fresh memory, interval.

    ``rows``: ``network, mode, memory, latency_ms, outside`` and TERMS of each. A mode with fewer than LEAST_NETWORKS networks
    keeps its own. Intervals come from networks left out in turn, and from the base's.
    """
    corrected = dict(base)
    for mode, several in rows.groupby("mode"):
        own = {heap: base.get(f"{mode} {heap}", SUM) for heap in HEAPS}
        if several["network"].nunique() >= LEAST_NETWORKS:
            fitted = _fit(own, several)
            left_out = left_one_out(base, several)
            for heap in HEAPS:
                residuals = left_out[left_out["memory"] == heap]
                corrected[f"{mode} {heap}"] = replace(
                    fitted[heap], half=_half(own[heap], residuals), networks=int(several["network"].nunique()),
                    scores=score(residuals["latency_ms"].to_numpy(), residuals["predicted_ms"].to_numpy())
                    if len(residuals) else {})
    return corrected


def left_one_out(base: Compositions, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``predicted_ms`` by compositions that were corrected without the row's network."""
    predicted = pd.Series(np.nan, index=rows.index)
    for mode, several in rows.groupby("mode"):
        own = {heap: base.get(f"{mode} {heap}", SUM) for heap in HEAPS}
        for network in several["network"].unique():
            rest = several[several["network"] != network]
            fitted = _fit(own, rest) if rest["network"].nunique() else own
            test = several[several["network"] == network]
            predicted[test.index] = _predicted(fitted, test)
    return rows.assign(predicted_ms=predicted)


def _fit(own: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the compositions of one mode by heap: one factor of all rates, and the rate of fresh memory, found in turns."""
    start = own["default"].rates["fresh_mb"]
    measured, default = rows["latency_ms"].to_numpy(float), (rows["memory"] == "default").to_numpy()
    fresh = np.where(default, rows["fresh_mb"].to_numpy(float), 0.0)
    other_ms = _predicted(own, rows) - start * fresh
    _, network = np.unique(rows["network"].to_numpy(str), return_inverse=True)
    factor, rate, spread = 1.0, start, min(map(_spread, own.values()))
    for _ in range(_TURNS):
        if start and default.any():
            rate = _fresh_rate(measured, factor * other_ms, fresh, start, spread)
        factor = _factor(np.log(measured / (other_ms + rate / factor * fresh)), network, spread)
    return {heap: replace(one, rates={name: rate if name == "fresh_mb" and heap == "default" else factor * value
                                      for name, value in one.rates.items()}) for heap, one in own.items()}


def _predicted(several: Compositions, rows: pd.DataFrame) -> np.ndarray:
    """Return what each row's heap's composition predicts, in ms."""
    rates = np.array([[several[heap].rates[name] for name in TERMS] for heap in rows["memory"]]).reshape(-1, len(TERMS))
    return (rates * rows[list(TERMS)].to_numpy(float)).sum(axis=1)


def _factor(ratio: np.ndarray, network: np.ndarray, spread: float) -> float:
    """Return the factor of all times: the networks' mean in log time, drawn towards 1 as their spread demands."""
    means = np.bincount(network, ratio) / np.bincount(network)
    scatter = (_WEIGHT * spread**2 + float(((means - means.mean())**2).sum())) / (_WEIGHT + len(means) - 1)
    return float(np.exp(means.mean() * len(means) / (len(means) + scatter / _BETWEEN**2)))


def _fresh_rate(measured: np.ndarray, other_ms: np.ndarray, fresh: np.ndarray, start: float, spread: float) -> float:
    """Return the rate of fresh memory by least squares of the relative error, drawn towards ``start``."""
    share = fresh / measured
    stiff = (spread / (_FRESH_BETWEEN * start))**2
    return float(max(0.0, ((1 - other_ms / measured) @ share + stiff * start) / (share @ share + stiff)))


def _spread(one: Composition) -> float:
    """Return the standard deviation that an interval stands for, in log time."""
    return one.half / float(stats.norm.ppf((1 + COVER) / 2)) if one.networks and one.half else _SPREAD


def _half(base: Composition, residuals: pd.DataFrame) -> float:
    """Return half of the interval of networks that were not measured: from those left out, and the base's spread."""
    error = np.log(residuals["latency_ms"] / residuals["predicted_ms"]) / (1 + residuals["outside"])
    squares = (error**2).groupby(residuals["network"]).mean()
    freedom = _WEIGHT + len(squares)
    variance = (_WEIGHT * _spread(base)**2 + float(squares.sum())) / freedom
    return float(stats.t.ppf((1 + COVER) / 2, freedom) * np.sqrt(variance))
