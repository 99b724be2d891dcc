"""How many times as fast a network is on a CPU in another layout or element type, from what its operators take as usual.

Kinds of operators change by different factors, autocast copies the weights in each pass, and every call costs something more.
The factors are learned through the sums of networks that were measured both ways, as those of a composition are
(``networks.sums``), so that the shares of a network's time tell its gain.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.model_file import Count, NotNegative, Positive, require
from lib.predict.networks.composition import KINDS, kinds_of
from lib.predict.networks.sums import LEAST_NETWORKS, Sum, folds
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

    mode: Literal["infer", "train"]
    dtype: Literal["fp32", "bf16"]
    layout: Literal["contiguous", "channels_last"]


@dataclass(frozen=True)
class Gain:
    """What was learned of one way: the ratio of each of TERMS to the usual one, and half an interval in log time."""

    ratios: dict[str, Positive]
    half: NotNegative
    networks: Count
    scores: dict[Literal["sign", "sign_large", "n_large", "mape", "median", "bias", "constant_mape", "n", "coverage",
                         "every_row_mape", "every_row_n", "noise"], float]

    def __post_init__(self):
        """Refuse ratios of other terms."""
        require(set(self.ratios) == set(TERMS), f"has ratios of {sorted(self.ratios)}, not of {sorted(TERMS)}")

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


def _sum(spread: float) -> Sum:
    expected = np.where(np.isin(TERMS, KINDS), spread, _BESIDE)
    return Sum(_FACTORS, np.array([_COMMON, *expected]), _NOISE, np.ones(len(TERMS)))


def fit(rows: pd.DataFrame) -> Gain:
    """Learn one way of networks (``network, family``, TERMS, and ``ratio``, their time so to the usual one).

    The interval comes from families left out, by which the spread is chosen, too: to score it, call it within folds. Raises
    InputError for fewer than four networks.
    """
    if rows["network"].nunique() < LEAST_NETWORKS:
        raise InputError(f"a gain is learned from four networks or more, not from {rows['network'].nunique()}")
    parts, ratios = rows[list(TERMS)].to_numpy(float), rows["ratio"].to_numpy(float)
    left_out = {spread: _sum(spread).held_out(rows, parts, ratios) for spread in SPREADS}
    spread = min(SPREADS, key=lambda spread: np.abs(np.log(left_out[spread] / ratios)).mean())
    half, fitted = half_interval(np.log(ratios / left_out[spread])), _sum(spread)
    factors = fitted.rates(fitted.logs(parts, ratios))
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
