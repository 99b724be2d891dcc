"""Compositions of another machine, corrected by a few networks that were measured end to end on this one.

Few networks are weighed against the other machine's compositions by how far networks scatter (empirical Bayes: Efron and
Morris, 1975).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import optimize, stats

from lib.measure.networks.allocator import HEAPS
from lib.predict.networks.composition import SUM, TERMS, Composition
from lib.predict.operators.validation import COVER
from lib.predict.scores import score
from lib.work.graph.ops import MODES

LEAST_NETWORKS = 2
_BETWEEN = 0.3  # prior spread, in log time, of the factor between machines
_MODES = 0.1  # of a mode's factor about its machine's
_FRESH = 0.5  # of the page-fault cost
_SPREAD = 0.2  # of networks about their prediction, if the other machine measured none
_WEIGHT = 3.0  # weight of the other machine's spread, in networks
Compositions = Mapping[str, Composition]


def calibrated(base: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the compositions of ``base`` (by mode and heap) corrected by measured networks: factor, page faults, interval.

    ``rows``: ``network, mode, memory, latency_ms, outside`` and TERMS. A mode with fewer than LEAST_NETWORKS networks is not
    corrected. Intervals come from networks left out in turn and from the base.
    """
    fitted, left_out = _fit(base, rows), left_one_out(base, rows)
    corrected = dict(base)
    for mode, several in rows.groupby("mode"):
        for heap in HEAPS if several["network"].nunique() >= LEAST_NETWORKS else ():
            case = f"{mode} {heap}"
            own = left_out[(left_out["mode"] == mode) & (left_out["memory"] == heap)]
            corrected[case] = replace(
                fitted[case], half=_half(base.get(case, SUM), own), networks=int(several["network"].nunique()),
                scores=score(own["latency_ms"].to_numpy(), own["predicted_ms"].to_numpy()) if len(own) else {},
                interval_of="" if len(own) else fitted[case].interval_of)
    return corrected


def left_one_out(base: Compositions, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``predicted_ms`` by compositions that were corrected without the row's network."""
    predicted = pd.Series(np.nan, index=rows.index)
    for network in rows["network"].unique():
        of_it = rows["network"] == network
        predicted[of_it] = _predicted(_fit(base, rows[~of_it]), rows[of_it])
    return rows.assign(predicted_ms=predicted)


def _fit(base: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the most probable compositions with one factor per mode for all rates and one for page faults.

    The log of the machine's factor has spread _BETWEEN, a mode's about it _MODES, the page faults' _FRESH. Each network counts
    once, with the scatter of the base's networks.
    """
    own = {f"{mode} {heap}": base.get(f"{mode} {heap}", SUM) for mode in MODES for heap in HEAPS}
    if rows.empty:
        return own
    cases, mode = rows["mode"] + " " + rows["memory"], pd.Categorical(rows["mode"], MODES).codes
    fresh_ms = np.array([own[case].rates["fresh_mb"] for case in cases]) * rows["fresh_mb"].to_numpy(float)
    other_ms, measured = _predicted(own, rows) - fresh_ms, np.log(rows["latency_ms"].to_numpy(float))
    doubt = min(map(_spread, own.values())) * np.sqrt(rows.groupby("network")["mode"].transform("size").to_numpy())
    expected = np.array([_BETWEEN, *[_MODES] * len(MODES), *[_FRESH] * len(MODES)])

    def errors(logs: np.ndarray) -> np.ndarray:
        factors, of_fresh = np.exp(logs[0] + logs[1:3])[mode], np.exp(logs[3:])[mode]
        return np.append((measured - np.log(factors * other_ms + of_fresh * fresh_ms)) / doubt, logs / expected)

    best = np.exp(optimize.least_squares(errors, np.zeros(len(expected))).x)
    factors, of_fresh = dict(zip(MODES, best[0] * best[1:3], strict=True)), dict(zip(MODES, best[3:], strict=True))
    return {case: replace(one, rates={name: float((of_fresh if name == "fresh_mb" else factors)[case.split()[0]] * value)
                                      for name, value in one.rates.items()}) for case, one in own.items()}


def _predicted(several: Compositions, rows: pd.DataFrame) -> np.ndarray:
    """Return the ms that each row's composition predicts."""
    cases = rows["mode"] + " " + rows["memory"]
    rates = np.array([[several[case].rates[name] for name in TERMS] for case in cases]).reshape(-1, len(TERMS))
    return (rates * rows[list(TERMS)].to_numpy(float)).sum(axis=1)


def _spread(one: Composition) -> float:
    """Return the standard deviation that an interval stands for, in log time."""
    return one.half / float(stats.norm.ppf((1 + COVER) / 2)) if one.networks and one.half else _SPREAD


def _half(base: Composition, residuals: pd.DataFrame) -> float:
    """Return half of the interval of unseen networks, from networks left out and the base's spread."""
    error = np.log(residuals["latency_ms"] / residuals["predicted_ms"]) / (1 + residuals["outside"])
    squares = (error**2).groupby(residuals["network"]).mean()
    freedom = _WEIGHT + len(squares)
    variance = (_WEIGHT * _spread(base)**2 + float(squares.sum())) / freedom
    return float(stats.t.ppf((1 + COVER) / 2, freedom) * np.sqrt(variance))
