"""How many times as fast a network is on a CPU in another layout or element type, from what its operators take as usual.

Kinds of operators change by different factors, autocast copies the weights in each pass, and every call costs something more.
The factors are learned through the sums of networks that were measured both ways, as those of a composition are
(``networks.fitting``), so that the shares of a network's time tell its gain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.networks.composition import KINDS, kinds_of
from lib.predict.networks.fitting import LEAST_NETWORKS, folds, most_probable
from lib.predict.networks.work import Work
from lib.predict.operators.validation import half_interval

TERMS = (*KINDS, "weights", "calls")
SPREADS = (0.3, 0.5, 0.8)  # of the log of a kind's factor about that of all; one is chosen by families left out
_COMMON, _BESIDE = 0.7, 1.0  # spread of the log of the factor of all kinds, and of what weights and calls cost
_WEIGHT_MS, _CALL_MS = 0.15, 0.004  # what a MB of weights and a call more are expected to cost
_NOISE = 0.1  # in log time: networks about their sums
_FACTORS = np.concatenate([np.isin(TERMS, KINDS)[:, None].astype(float), np.eye(len(TERMS))], axis=1)


@dataclass(frozen=True)
class Way:
    """How passes run: their mode, the element type, and the layout of images."""

    mode: str
    dtype: str
    layout: str


@dataclass(frozen=True)
class Gain:
    """What was learned of one way: the ratio of each of TERMS to the usual one, and half an interval in log time."""

    ratios: Mapping[str, float]
    half: float
    networks: int
    scores: Mapping[str, float]

    def of(self, terms: np.ndarray) -> tuple[float, float, float]:
        """Return by how many times a network of TERMS is faster, at least and at most."""
        gain = 1 / float(terms @ [self.ratios[name] for name in TERMS])
        return gain, gain * math.exp(-self.half), gain * math.exp(self.half)


def terms(work: Work, operators: pd.DataFrame) -> np.ndarray:
    """Return TERMS of a network of fp32 in the usual layout, in parts of what its operators take.

    ``operators`` are those of ``work`` with ``predicted_ms`` (``composition.predicted_operators``).
    """
    cost_ms = (operators["predicted_ms"] * operators["calls"]).groupby(kinds_of(operators)).sum()
    beside_ms = [work.weight_bytes / 1e6 * _WEIGHT_MS, work.calls * _CALL_MS]
    return np.array([*(float(cost_ms.get(kind, 0.0)) for kind in KINDS), *beside_ms]) / float(cost_ms.sum())


def _logs(parts: np.ndarray, ratios: np.ndarray, spread: float) -> np.ndarray:
    expected = np.where(np.isin(TERMS, KINDS), spread, _BESIDE)
    return most_probable(parts, _FACTORS, ratios, np.array([_COMMON, *expected]), _NOISE)


def _left_out(rows: pd.DataFrame, spread: float) -> np.ndarray:
    """Return the ratio of the times that is predicted of each network by the families of other folds."""
    parts, ratios, predicted = rows[list(TERMS)].to_numpy(float), rows["ratio"].to_numpy(float), np.full(len(rows), np.nan)
    for test in folds(rows):
        predicted[test] = parts[test] @ np.exp(_FACTORS @ _logs(parts[~test], ratios[~test], spread))
    return predicted


def fit(rows: pd.DataFrame) -> Gain:
    """Learn one way of networks (``network, family``, TERMS, and ``ratio``, their time so to the usual one).

    The interval comes from families left out, by which the spread is chosen, too: to score it, call it within folds. Raises
    InputError for fewer than four networks.
    """
    if rows["network"].nunique() < LEAST_NETWORKS:
        raise InputError(f"a gain is learned from four networks or more, not from {rows['network'].nunique()}")
    parts, ratios = rows[list(TERMS)].to_numpy(float), rows["ratio"].to_numpy(float)
    left_out = {spread: _left_out(rows, spread) for spread in SPREADS}
    spread = min(SPREADS, key=lambda one: np.abs(np.log(left_out[one] / ratios)).mean())
    half = half_interval(np.log(ratios / left_out[spread]))
    factors = np.exp(_FACTORS @ _logs(parts, ratios, spread))
    return Gain(dict(zip(TERMS, map(float, factors), strict=True)), half, int(rows["network"].nunique()), {})


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``measured, predicted, low, high``, gains predicted by the families of other folds, and ``fold``.

    Only ``usable`` rows teach.
    """
    usable, fold, answers = rows["usable"].to_numpy(bool), np.zeros(len(rows), int), np.full((len(rows), 3), np.nan)
    for number, test in enumerate(folds(rows)):
        fitted, fold[test] = fit(rows[~test & usable]), number
        answers[test] = [fitted.of(terms) for terms in rows.loc[test, list(TERMS)].to_numpy(float)]
    return rows.assign(measured=1 / rows["ratio"], fold=fold, **dict(zip(("predicted", "low", "high"), answers.T, strict=True)))
