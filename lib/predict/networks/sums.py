"""Rates that are learned through sums: of each network only the total is measured, and its parts are known up to their rates.

Rates are the most probable ones: the log of each is expected near that of its usual value, and errors have long tails. Folds
leave whole families of networks out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError

LEAST_NETWORKS = 4
_FOLDS = 5
Range = tuple[float, float, float]  # predicted, low and high



def interval(value: float, half: float) -> Range:
    """Return a value with the ends of its interval, ``half`` of which is stated in logs."""
    return value, value * math.exp(-half), value * math.exp(half)


def folds(rows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield which rows are left out together: families of networks, or networks where there are too few families."""
    group = rows["family" if rows["family"].nunique() >= LEAST_NETWORKS else "network"]
    names = sorted(set(group))
    count = min(_FOLDS, len(names))
    for fold in range(count):
        yield group.isin(names[fold::count]).to_numpy()


def each(groups: pd.Series | np.ndarray) -> Iterator[np.ndarray]:
    """Yield which rows are of each group, in their order."""
    names = np.asarray(groups)
    for name in np.unique(names):
        yield names == name


def cross_predicted(tests: Iterable[np.ndarray], predict: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return what ``predict`` gives for the rows of each test set, without having seen them."""
    answers = [(np.flatnonzero(test), predict(test)) for test in tests]
    places, values = (np.concatenate(columns) for columns in zip(*answers, strict=True))
    return values[np.argsort(places)]


@dataclass(frozen=True)
class Sum:
    """A total as a sum of p parts, each times a rate: its usual one times exp of a combination of k logs.

    ``factors`` (p, k) combines the logs, ``expected`` (k) is the spread of each log about 0, ``noise`` that of the log of a
    total about the sum (one, or one a total), ``usual`` (p) the rates before anything is measured, ``loss`` SciPy's.
    """

    factors: np.ndarray
    expected: np.ndarray
    noise: float | np.ndarray
    usual: np.ndarray
    loss: str = "soft_l1"

    def logs(self, parts: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Return the most probable logs (k) for measured ``totals`` (n) of ``parts`` (n, p)."""
        from scipy import optimize  # fitting alone waits for it to load

        parts, log_totals, prior = parts * self.usual, np.log(totals), np.diag(1 / self.expected)

        def errors(logs):
            sums = parts @ np.exp(self.factors @ logs)
            return np.append((np.log(sums) - log_totals) / self.noise, logs / self.expected)

        def slopes(logs):
            scaled = parts * np.exp(self.factors @ logs)
            noise = np.broadcast_to(self.noise, len(parts))[:, None]
            return np.concatenate([scaled / scaled.sum(axis=1, keepdims=True) @ self.factors / noise, prior])

        return optimize.least_squares(errors, np.zeros(len(self.expected)), slopes, loss=self.loss).x

    def rates(self, logs: np.ndarray) -> np.ndarray:
        """Return the rate of each part (p)."""
        return self.usual * np.exp(self.factors @ logs)

    def cross_predicted(self, rows: pd.DataFrame, parts: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Return the total (n) that is predicted of each row by the families of other folds."""
        return cross_predicted(folds(rows), lambda test: parts[test] @ self.rates(self.logs(parts[~test], totals[~test])))


def sums(kinds: int, spreads: Sequence[float], common: float, beside: Sequence[float], noise: float | np.ndarray,
         usual: np.ndarray, loss: str = "soft_l1") -> list[Sum]:
    """Return a sum of ``kinds`` that share a factor, and of parts beside them, for each spread of a kind about that factor.

    ``common`` and ``beside`` are the spreads of the logs of the shared factor and of each other part.
    """
    factors = np.column_stack([np.arange(len(usual)) < kinds, np.eye(len(usual))])
    return [Sum(factors, np.array([common, *[spread] * kinds, *beside]), noise, usual, loss) for spread in spreads]


def learned(sums: Sequence[Sum], rows: pd.DataFrame, parts: np.ndarray, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the logs of the sum that predicts totals of families left out best, and these predictions (n).

    Raises InputError for fewer than four networks.
    """
    if (count := rows["network"].nunique()) < LEAST_NETWORKS:
        raise InputError(f"rates are learned from four networks or more, not from {count}")
    predicted = [fitted.cross_predicted(rows, parts, totals) for fitted in sums]
    best = min(range(len(sums)), key=lambda number: np.abs(np.log(predicted[number] / totals)).mean())
    return sums[best].logs(parts, totals), predicted[best]
