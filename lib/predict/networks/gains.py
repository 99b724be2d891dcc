"""How many times as fast a network is on a CPU in another layout or element type, from what its operators take as usual.

Kinds of operators change by different factors, autocast copies the weights in each pass, and every call costs something more.
The factors are learned through the sums of networks that were measured both ways, as those of a composition are
(``networks.sums``), so that the shares of a network's time tell its gain.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError, choices
from lib.measure import machine
from lib.predict.model_file import AtLeastOne, Count, Format, NotNegative, Positive, Saved, keyed, require
from lib.predict.networks import composition
from lib.predict.networks.composition import KINDS, kinds_of
from lib.predict.networks.sums import LEAST_NETWORKS, Sum, folds
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.validation import half_interval

FOLDER = paths.REFERENCE / "models" / "gains"
RETRAIN = "train it again with: python -m lib models --train gains"
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


@dataclass(frozen=True)
class Gains(Saved):
    """What each way gains on the CPU of a machine, and with which instructions it computed in bf16."""

    machine: str
    threads: AtLeastOne
    bf16_instructions: tuple[str, ...]
    ways: keyed(Way, Gain)

    FORMAT: ClassVar = Format("file of gains", RETRAIN)


@cache
def shipped() -> Gains:
    """Return what ships; InputError where none does."""
    paths_of = sorted(FOLDER.glob("*.json"))
    if not paths_of:
        raise InputError(f"no gains ship in {FOLDER}; {RETRAIN}")
    return Gains.load(paths_of[0])


@dataclass(frozen=True)
class Answer:
    """By how many times a network is predicted to be faster, at least and at most in 90 % of cases, and the evidence."""

    gain: float
    low: float
    high: float
    evidence: str


def serves(dtype: str) -> bool:
    """Return whether networks tell what an element type gains on this machine's CPU."""
    learned = shipped()
    computed_so = dtype != "bf16" or machine.bf16_instructions() == learned.bf16_instructions
    return computed_so and any(way.dtype == dtype for way in learned.ways)


def answer(work: Work, cost_model: CostModel, dtype: str, layout: str) -> Answer:
    """Predict the gain of an element type and layout for the work of a network in fp32 as it is laid out by default.

    Raises InputError for what no networks were measured in, and for bf16 on a CPU that computes it otherwise than theirs.
    """
    known, way = shipped(), Way(work.mode, dtype, layout)
    if way not in known.ways:
        raise InputError(f"no networks were measured on a CPU in {dtype} {layout}; there are: "
                         f"{choices(f'{other.dtype} {other.layout}' for other in known.ways if other.mode == work.mode)}")
    own = machine.bf16_instructions()
    if not serves(dtype):
        raise InputError(f"networks were measured in bf16 on a CPU with {choices(known.bf16_instructions)}, and this one has "
                         f"{choices(own) or 'neither, where bf16 is computed by other instructions and is often slower'}")
    learned = known.ways[way]
    gain, low, high = learned.of(terms(work, composition.predicted_operators(work, cost_model)))
    scores = learned.scores
    evidence = (f"{dtype} {layout} gains {gain:.2f} ({low:.2f} to {high:.2f}); "
                f"from {learned.networks} networks that ran both ways on {known.machine} with "
                f"{known.threads} threads; of families left out the factor errs by {scores['mape']:.0f} % (a constant by "
                f"{scores['constant_mape']:.0f} %), and {scores['sign_large']:.0f} % of gains above 5 % have the right sign")
    return Answer(gain, low, high, evidence)
