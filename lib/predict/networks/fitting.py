"""Efficiencies of kinds of operators within networks, and the cost of page faults, learned from whole networks.

An operator that is timed alone does not find its inputs in the caches, where another operator just wrote them. Isolated timings
cannot show the difference. It is fitted from the total times of whole networks (``sums``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure.networks.allocator import HEAPS
from lib.predict.networks.composition import KINDS, MAPPED, Composition, Terms, terms
from lib.predict.networks.sums import LEAST_NETWORKS, Sum
from lib.predict.operators.validation import half_interval
from lib.predict.scores import score

WORKLOADS = r"W\d+"  # ids of this project's workloads: never learned from
SPREADS = (0.05, 0.1, 0.2)  # of the log of a kind's factor about the common one; chosen by families left out
_COMMON, _FRESH = 0.3, 1.0  # spread of the logs of the common factor and of the page-fault cost
_USUAL_MS = 0.3  # page-fault cost of a MB before anything is measured
_NOISE = 0.07  # spread of networks about their sums, in log time
_FACTORS = np.block([[np.ones((len(KINDS), 1)), np.eye(len(KINDS)), np.zeros((len(KINDS), 2))],
                     [np.zeros((2, 1 + len(KINDS))), np.eye(2)]])  # which of the learned logs each part of a sum is scaled by


@dataclass(frozen=True)
class Learned:
    """Efficiencies of KINDS and of MAPPED memory for one mode, and a composition for each heap."""

    efficiencies: Mapping[str, float]
    compositions: Mapping[str, Composition]

    def predict(self, memory: str, parts: Terms, outside: float = 0.0) -> tuple[float, float, float]:
        """Return predicted, low and high ms of PARTS in a process of one heap, see ``Composition.predict``."""
        return self.compositions[memory].predict(terms(parts, self.efficiencies), outside)


def _parts(rows: pd.DataFrame) -> np.ndarray:
    """Return the parts of each network's sum (n, KINDS in ms and 2 in MB): memory costs nothing where it is retained."""
    fresh = rows[["replayed_mb", "mapped_mb"]].to_numpy(float) * (rows["memory"] == "default").to_numpy()[:, None]
    return np.concatenate([rows[[f"{kind}_ms" for kind in KINDS]].to_numpy(float), fresh], axis=1)


def _sum(spread: float) -> Sum:
    expected = np.array([_COMMON, *[spread] * len(KINDS), _FRESH, _FRESH])
    return Sum(_FACTORS, expected, _NOISE, np.array([*[1.0] * len(KINDS), _USUAL_MS, _USUAL_MS]))


def fit(rows: pd.DataFrame) -> Learned:
    """Learn from the networks of one mode, both heaps together: ``network, family, memory, latency_ms`` and PARTS.

    Families left out give the intervals and choose the spread of the factors; scoring therefore needs outer folds. A heap
    without measurements has the interval of the other heap and no scores. Raises InputError for fewer than four networks.
    """
    if rows["network"].nunique() < LEAST_NETWORKS:
        raise InputError(f"a composition is fitted to four networks or more, not to {rows['network'].nunique()}")
    parts, measured_ms = _parts(rows), rows["latency_ms"].to_numpy(float)
    held_out_ms = {spread: _sum(spread).held_out(rows, parts, measured_ms) for spread in SPREADS}
    spread = min(SPREADS, key=lambda spread: np.abs(np.log(held_out_ms[spread] / measured_ms)).mean())
    logs = _sum(spread).logs(parts, measured_ms)
    fresh_ms, heaps = _USUAL_MS * float(np.exp(logs[-2])), {}
    for heap in HEAPS:
        interval_of = heap if heap in set(rows["memory"]) else rows["memory"].iloc[0]
        measured = (rows["memory"] == interval_of).to_numpy()
        predicted, common = held_out_ms[spread][measured], float(np.exp(logs[0]))
        rates = {"sum_ms": common, "moved_ms": common, "fresh_mb": fresh_ms * (heap == "default")}
        of_heap = {"scores": score(measured_ms[measured], predicted)} if interval_of == heap else {"interval_of": interval_of}
        half = half_interval(np.log(measured_ms[measured] / predicted))
        heaps[heap] = Composition(rates, half, int(rows["network"][measured].nunique()), **of_heap)
    kinds = dict(zip(KINDS, map(float, np.exp(logs[1:1 + len(KINDS)])), strict=True))
    return Learned({**kinds, MAPPED: float(np.exp(logs[-1] - logs[-2]))}, heaps)
