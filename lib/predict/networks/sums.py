"""Rates that are learned through sums: of each network only the total is measured, and its parts are known up to their rates.

Rates are the most probable ones: the log of each is expected near that of its usual value, and errors have long tails. Folds
leave whole families of networks out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

LEAST_NETWORKS = 4
_FOLDS = 5


def folds(rows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield which rows are left out together: families of networks, or networks where there are too few families."""
    group = rows["family" if rows["family"].nunique() >= LEAST_NETWORKS else "network"]
    names = sorted(set(group))
    for fold in range(min(_FOLDS, len(names))):
        yield group.isin(names[fold::min(_FOLDS, len(names))]).to_numpy()


@dataclass(frozen=True)
class Sum:
    """A total as a sum of p parts, each times a rate: its usual one times exp of a combination of k logs.

    ``factors`` (p, k) combines the logs, ``expected`` (k) is the spread of each log about 0, ``noise`` that of the log of a
    total about the sum, ``usual`` (p) the rates before anything is measured.
    """

    factors: np.ndarray
    expected: np.ndarray
    noise: float
    usual: np.ndarray

    def logs(self, parts: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Return the most probable logs (k) for measured ``totals`` (n) of ``parts`` (n, p)."""
        from scipy import optimize  # fitting alone waits for it to load

        parts, log_totals, prior = parts * self.usual, np.log(totals), np.diag(1 / self.expected)

        def errors(logs: np.ndarray) -> np.ndarray:
            sums = parts @ np.exp(self.factors @ logs)
            return np.append((np.log(sums) - log_totals) / self.noise, logs / self.expected)

        def slopes(logs: np.ndarray) -> np.ndarray:
            scaled = parts * np.exp(self.factors @ logs)
            return np.concatenate([scaled / scaled.sum(axis=1, keepdims=True) @ self.factors / self.noise, prior])

        return optimize.least_squares(errors, np.zeros(len(self.expected)), slopes, loss="soft_l1").x

    def rates(self, logs: np.ndarray) -> np.ndarray:
        """Return the rate of each part (p)."""
        return self.usual * np.exp(self.factors @ logs)

    def held_out(self, rows: pd.DataFrame, parts: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Return the total (n) that is predicted of each row by the families of other folds."""
        predicted = np.full(len(rows), np.nan)
        for test in folds(rows):
            predicted[test] = parts[test] @ self.rates(self.logs(parts[~test], totals[~test]))
        return predicted
