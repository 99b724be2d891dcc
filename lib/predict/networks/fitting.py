"""What networks add to their operators, learned through their sums: how fast each kind of operator runs among the others.

An operator that was swept alone found nothing in the caches that another one had just written there. By which factor a kind of
operator is faster or slower within networks, no timing of it alone tells; whole networks do, each through its sum. The factors
are the most probable ones, where the log of each is expected about 0, and errors have long tails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure.networks.allocator import HEAPS
from lib.predict.networks.composition import KINDS, MAPPED, Composition, Terms, terms
from lib.predict.operators.validation import conformal, score

LEAST_NETWORKS = 4
WORKLOADS = r"W\d+"  # networks that are workloads of this project, by their ids: nothing is learned of them
SPREADS = (0.05, 0.1, 0.2)  # of the log of a kind's factor about that of all; one is chosen by families left out
_COMMON, _FRESH = 0.3, 1.0  # spread of the log of the factor of all kinds, and of what fresh memory costs
_USUAL_MS = 0.3  # what a fresh MB costs, before anything is measured
_NOISE = 0.07  # in log time: networks about their sums
_FOLDS = 5
_FACTORS = np.block([[np.ones((len(KINDS), 1)), np.eye(len(KINDS)), np.zeros((len(KINDS), 2))],
                     [np.zeros((2, 1 + len(KINDS))), np.eye(2)]])  # which of the learned logs each part of a sum is scaled by


@dataclass(frozen=True)
class Learned:
    """What was learned of one mode: the efficiencies of KINDS and of MAPPED memory, and a composition for each heap."""

    efficiencies: Mapping[str, float]
    compositions: Mapping[str, Composition]

    def predict(self, memory: str, parts: Terms, outside: float = 0.0) -> tuple[float, float, float]:
        """Return predicted, low and high ms of PARTS in a process of one heap, see ``Composition.predict``."""
        return self.compositions[memory].predict(terms(parts, self.efficiencies), outside)


def most_probable(parts: np.ndarray, factors: np.ndarray, measured: np.ndarray, expected: np.ndarray,
                  noise: float) -> np.ndarray:
    """Return logs (k) by which ``parts`` (n, p), each times exp(``factors`` (p, k) @ logs), sum up to what was measured (n).

    Logs are expected about 0 by ``expected`` (k), measurements about the sum by ``noise`` in log; both have long tails.
    """
    from scipy import optimize  # fitting alone waits for it to load

    log_measured, prior = np.log(measured), np.diag(1 / expected)

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.append((np.log(parts @ np.exp(factors @ logs)) - log_measured) / noise, logs / expected)

    def slopes(logs: np.ndarray) -> np.ndarray:
        scaled = parts * np.exp(factors @ logs)
        return np.concatenate([scaled / scaled.sum(axis=1, keepdims=True) @ factors / noise, prior])

    return optimize.least_squares(errors, np.zeros(len(expected)), slopes, loss="soft_l1").x


def folds(rows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield which rows are left out together: families of networks, or networks where there are too few families."""
    group = rows["family" if rows["family"].nunique() >= LEAST_NETWORKS else "network"]
    several = sorted(set(group))
    for fold in range(min(_FOLDS, len(several))):
        yield group.isin(several[fold::min(_FOLDS, len(several))]).to_numpy()


def _parts(rows: pd.DataFrame) -> np.ndarray:
    """Return the parts of each network's sum in ms (n, KINDS and 2): memory costs nothing where it is retained."""
    fresh = rows[["replayed_mb", "mapped_mb"]].to_numpy(float) * (rows["memory"] == "default").to_numpy()[:, None]
    return np.concatenate([rows[[f"{kind}_ms" for kind in KINDS]].to_numpy(float), fresh * _USUAL_MS], axis=1)


def _logs(parts: np.ndarray, measured_ms: np.ndarray, spread: float) -> np.ndarray:
    expected = np.array([_COMMON, *[spread] * len(KINDS), _FRESH, _FRESH])
    return most_probable(parts, _FACTORS, measured_ms, expected, _NOISE)


def _left_out_ms(rows: pd.DataFrame, spread: float) -> np.ndarray:
    """Return what is predicted of each network by the families of other folds, in ms."""
    parts, measured_ms, predicted = _parts(rows), rows["latency_ms"].to_numpy(float), np.full(len(rows), np.nan)
    for test in folds(rows):
        predicted[test] = parts[test] @ np.exp(_FACTORS @ _logs(parts[~test], measured_ms[~test], spread))
    return predicted


def fit(rows: pd.DataFrame) -> Learned:
    """Learn of the networks of one mode, both heaps together: ``network, family, memory, latency_ms`` and PARTS of each.

    Intervals come from families left out, by which the spread of the factors is chosen, too: to score it, call it within folds.
    A heap that was not measured has the interval of the other (``Composition.interval_of``), and no scores. Raises InputError
    for fewer than four networks.
    """
    if rows["network"].nunique() < LEAST_NETWORKS:
        raise InputError(f"a composition is fitted to four networks or more, not to {rows['network'].nunique()}")
    measured_ms = rows["latency_ms"].to_numpy(float)
    left_out = {spread: _left_out_ms(rows, spread) for spread in SPREADS}
    spread = min(SPREADS, key=lambda one: np.abs(np.log(left_out[one] / measured_ms)).mean())
    logs = _logs(_parts(rows), measured_ms, spread)
    fresh_ms, heaps = _USUAL_MS * float(np.exp(logs[-2])), {}
    for heap in HEAPS:
        interval_of = heap if heap in set(rows["memory"]) else rows["memory"].iloc[0]
        own = (rows["memory"] == interval_of).to_numpy()
        predicted, common = left_out[spread][own], float(np.exp(logs[0]))
        _, halves = conformal(np.log(measured_ms[own] / predicted), predicted, bins=1)
        rates = {"sum_ms": common, "moved_ms": common, "fresh_mb": fresh_ms * (heap == "default")}
        of_it = {"scores": score(measured_ms[own], predicted)} if interval_of == heap else {"interval_of": interval_of}
        heaps[heap] = Composition(rates, halves[0], int(rows["network"][own].nunique()), **of_it)
    kinds = dict(zip(KINDS, map(float, np.exp(logs[1:1 + len(KINDS)])), strict=True))
    return Learned({**kinds, MAPPED: float(np.exp(logs[-1] - logs[-2]))}, heaps)
