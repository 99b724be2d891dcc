"""Whole networks: each operator looked up or predicted, summed, with what their composition adds.

The composition is fitted to networks that were measured end to end, at non-negative rates: what the operators' sum stands for,
what calling a module costs, and what memory costs that the allocator takes anew from the system in each pass.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.networks.work import Work, key_of
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features import GROUP_OF
from lib.predict.operators.regressors import nonnegative_rates
from lib.predict.operators.validation import conformal, score

TERMS = ("sum_ms", "moved_ms", "modules", "fresh_mb")
LEAST_NETWORKS = 4
Terms = Mapping[str, float]


@dataclass(frozen=True)
class Composition:
    """What a network costs beyond its operators, for one mode: non-negative rates of TERMS, and half its interval in log time.

    ``networks`` is how many it was fitted to; with 0 the operators' own intervals stand in for its own.
    """

    rates: Terms
    half: float
    networks: int
    scores: Mapping[str, float] = field(default_factory=dict)

    def predict(self, terms: Terms, outside: float = 0.0, operators_half: float = 0.0) -> tuple[float, float, float]:
        """Return predicted, low and high ms; the interval widens by the share of the time out of range, ``outside``."""
        total = sum(self.rates[name] * terms[name] for name in TERMS)
        half = (self.half if self.networks else operators_half) * (1 + outside)
        return total, total * math.exp(-half), total * math.exp(half)


SUM = Composition({"sum_ms": 1.0, "moved_ms": 1.0, "modules": 0.0, "fresh_mb": 0.0}, math.nan, 0)


@dataclass(frozen=True)
class Estimate:
    """The predicted time of a pass or step, in ms, and the operators that it is the sum of (with ``predicted_ms``).

    Shares of the time: ``outside`` of the training range, ``looked_up`` from measurements, and by ``origins``, of each other
    device whose kernels answered. ``evidence`` says on which whole networks the time rests, where it is not such a sum.
    """

    predicted_ms: float
    low_ms: float
    high_ms: float
    outside: float
    looked_up: float
    origins: Mapping[str, float]
    operators: pd.DataFrame
    evidence: str = ""


def predicted_operators(work: Work, model: CostModel, measured: Mapping[tuple, float] | None = None) -> pd.DataFrame:
    """Return the operators of ``work`` with ``predicted_ms``, ``out_of_range``, ``looked_up``, ``half``, ``origin``.

    ``half`` is half an interval in log time. ``measured`` maps ``key_of`` an operator to a measured time in ms.
    """
    answer = model.predict(work.table)
    times = np.array([measured.get(key, np.nan) for key in work.keys]) if measured else np.full(len(answer), np.nan)
    looked_up = np.isfinite(times)
    outside = answer["out_of_range"].to_numpy(bool) | ~work.table["covered"].to_numpy(bool)
    return work.table.assign(predicted_ms=np.where(looked_up, times, answer["predicted_ms"]), looked_up=looked_up,
                             out_of_range=outside & ~looked_up, half=np.log(answer["high_ms"] / answer["predicted_ms"]),
                             origin=answer["origin"])


def lookup(table: pd.DataFrame) -> dict[tuple, float]:
    """Return the measured time in ms of every row of a ``sweep`` table, by ``key_of``."""
    return dict(zip(map(key_of, table.to_dict("records")), table["latency_ms"], strict=True))


def terms_of(work: Work, operators: pd.DataFrame) -> dict[str, float]:
    """Return TERMS of a network's time; ``sum_ms`` are the operators that compute, ``moved_ms`` the others."""
    cost = operators["predicted_ms"] * operators["calls"]
    computing = operators["op"].map(GROUP_OF).isin(("convolution", "gemm", "attention"))
    return {"sum_ms": float(cost[computing].sum()), "moved_ms": float(cost[~computing].sum()), "modules": float(work.modules),
            "fresh_mb": work.fresh_bytes / 1e6}


def time_shares(operators: pd.DataFrame) -> dict[str, float]:
    """Return which shares of the operators' time lie outside of the training range, and were looked up."""
    cost = (operators["predicted_ms"] * operators["calls"]).to_numpy()
    return {name: float(cost[operators[column].to_numpy(bool)].sum() / cost.sum())
            for name, column in (("outside", "out_of_range"), ("looked_up", "looked_up"))}


def estimate(work: Work, model: CostModel, composition: Composition, measured: Mapping[tuple, float] | None = None) -> Estimate:
    """Predict a pass or step from its operators; the interval is that of networks unlike those of the composition."""
    operators = predicted_operators(work, model, measured)
    cost, shares = operators["predicted_ms"] * operators["calls"], time_shares(operators)
    origins = (cost / cost.sum()).groupby(operators["origin"]).sum().drop("", errors="ignore").to_dict()
    half = float(cost @ operators["half"] / cost.sum())
    return Estimate(*composition.predict(terms_of(work, operators), shares["outside"], half), **shares, origins=origins,
                    operators=operators)


def fit(rows: Iterable[tuple[str, Terms, float]], base: Composition | None = None, folds: int = 5) -> Composition:
    """Fit a composition to (network, terms, measured ms) of several networks; its interval comes from networks left out.

    Without ``base`` of processes that retain freed memory: fresh memory costs nothing. With it, that composition stays and only
    the cost of fresh memory is fitted. Raises InputError for fewer than four networks.
    """
    names, terms, measured = zip(*rows, strict=True)
    frame, measured = pd.DataFrame(list(terms))[list(TERMS)], np.array(measured, float)
    several = sorted(set(names))
    if len(several) < LEAST_NETWORKS:
        raise InputError(f"a composition is fitted to four networks or more, not to {len(several)}")
    predicted = np.full(len(frame), np.nan)
    for fold in range(min(folds, len(several))):
        test = np.isin(names, several[fold::min(folds, len(several))])
        predicted[test] = frame[test].to_numpy() @ _rates(frame[~test], measured[~test], base)
    _, halves = conformal(np.log(measured / predicted), predicted, bins=1)
    rates = _rates(frame, measured, base)
    return Composition(dict(zip(TERMS, map(float, rates), strict=True)), halves[0], len(several), score(measured, predicted))


def _rates(frame: pd.DataFrame, measured: np.ndarray, base: Composition | None) -> np.ndarray:
    """Return non-negative rates of TERMS by least squares of the relative error."""
    if base is None:
        return np.append(nonnegative_rates(frame[list(TERMS[:-1])], measured), 0.0)
    rates = np.array([base.rates[name] for name in TERMS[:-1]])
    rest = (measured - frame[list(TERMS[:-1])].to_numpy() @ rates) / measured
    fresh = frame[TERMS[-1]].to_numpy() / measured
    return np.append(rates, max(0.0, float(rest @ fresh / max(fresh @ fresh, 1e-30))))
