"""Efficiencies of kinds of operators within networks, and the cost of page faults, learned from whole networks.

An operator that is timed alone does not find its inputs in the caches, where another operator just wrote them. Isolated timings
cannot show the difference. It is fitted from the total times of whole networks (``sums``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.measure.networks.allocator import HEAPS
from lib.predict.networks.composition import OPERATOR_KINDS, TIME_TERMS, Composition, Terms, terms
from lib.predict.networks.sums import LEAST_NETWORKS, Range, Sum, learned, sums
from lib.predict.scores import half_interval, score

WORKLOADS = r"W\d+"  # ids of this project's workloads: never learned from
_USUAL_MS = 0.3  # page-fault cost of a MB before anything is measured
# Spreads of logs: of a kind's factor about the common one (one is chosen by families left out), of the common one, of the
# page-fault cost, and of networks about their sums.
_USUAL = np.array([*[1.0] * len(OPERATOR_KINDS), _USUAL_MS])
_SUMS = sums(len(OPERATOR_KINDS), (0.05, 0.1, 0.2), 0.3, (1.0,), 0.07, _USUAL)


def enough(table: pd.DataFrame, key: str, without: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the networks of each value of a column, where there are LEAST_NETWORKS of them or more.

    Workloads are left out, and the family ``without``.
    """
    used = (table["family"] != without) & ~table["network"].str.fullmatch(WORKLOADS)
    for value, rows in table[used].groupby(key):
        if rows["network"].nunique() >= LEAST_NETWORKS:
            yield value, rows


@dataclass(frozen=True)
class Learned:
    """Efficiencies of OPERATOR_KINDS for one mode, and a composition for each heap."""

    efficiencies: Mapping[str, float]
    compositions: Mapping[str, Composition]

    def predict(self, memory: str, parts: Terms, outside: float = 0.0) -> Range:
        """Return predicted, low and high ms of TIME_TERMS in a process of one heap, see ``Composition.predict``."""
        return self.compositions[memory].predict(terms(parts, self.efficiencies), outside)


def learn(sums: Sequence[Sum], names: Sequence[str], rows: pd.DataFrame, totals: np.ndarray) -> Composition:
    """Learn the rates of terms (``names``) of networks from totals; interval and scores are those of families left out.

    Raises InputError for fewer than four networks.
    """
    logs, held_out = learned(sums, rows, rows[list(names)].to_numpy(float), totals)
    rates = dict(zip(names, sums[0].rates(logs).tolist(), strict=True))
    return Composition(rates, half_interval(np.log(totals / held_out)), int(rows["network"].nunique()),
                       score(totals, held_out))


def fit(rows: pd.DataFrame) -> Learned:
    """Learn from the networks of one mode, both heaps together: ``network, family, memory, latency_ms`` and TIME_TERMS.

    Families left out give the intervals and choose the spread of the factors; scoring therefore needs outer folds. A heap
    without measurements has the interval of the other heap and no scores. Raises InputError for fewer than four networks.
    """
    parts, measured_ms = rows[list(TIME_TERMS)].to_numpy(float, copy=True), rows["latency_ms"].to_numpy(float)
    parts[rows["memory"] != "default", -1] = 0.0  # memory costs nothing where it is retained
    logs, held_out_ms = learned(_SUMS, rows, parts, measured_ms)
    common, *kinds, fresh = np.exp(logs).tolist()
    heaps = {}
    for heap in HEAPS:
        interval_of = heap if heap in set(rows["memory"]) else rows["memory"].iloc[0]
        measured = (rows["memory"] == interval_of).to_numpy()
        times = measured_ms[measured], held_out_ms[measured]
        rates = {"sum_ms": common, "moved_ms": common, "fresh_mb": _USUAL_MS * fresh * (heap == "default")}
        of_heap = {"scores": score(*times)} if interval_of == heap else {"interval_of": interval_of}
        heaps[heap] = Composition(rates, half_interval(np.log(times[0] / times[1])), int(rows["network"][measured].nunique()),
                                  **of_heap)
    return Learned(dict(zip(OPERATOR_KINDS, kinds, strict=True)), heaps)
