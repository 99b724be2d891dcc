"""A line per family of operators: the simple rule that an operator model has to beat, also within networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from lib.predict.operators.regressors import LEAST_MS, nonnegative_rates

_LEAST = 4  # rows of a family: one more than a line has costs
_Family = tuple[str, str]  # and pass


def work(table: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs, bytes and a call of each operator."""
    return table[["flops", "bytes"]].astype(float).assign(call=1.0)


@dataclass(frozen=True)
class Lines:
    """Costs of a FLOP, a byte and a call by family and pass, never negative, asked as an operator model is.

    ``common`` is the line of all families, for those without rows. Li et al., MICRO 2023.
    """

    device: str
    facts: Mapping[str, Any]
    common: np.ndarray
    costs: Mapping[_Family, np.ndarray]
    efficiencies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def fit(cls, table: pd.DataFrame, device: str, facts: Mapping[str, Any]) -> "Lines":
        """Fit lines to the usable rows of a sweep."""
        families = {key: rows for key, rows in table.groupby(["op", "pass"]) if len(rows) >= _LEAST}
        rates = {key: nonnegative_rates(work(rows), rows["latency_ms"].to_numpy(float)) for key, rows in families.items()}
        return cls(device, facts, nonnegative_rates(work(table), table["latency_ms"].to_numpy(float)), rates)

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return what a cost model does; ranges have no width."""
        costs = [self.costs.get(key, self.common) for key in zip(table["op"], table["pass"], strict=True)]
        ms = np.maximum((work(table).fillna(0).to_numpy() * np.array(costs).reshape(-1, 3)).sum(axis=1), LEAST_MS)
        return pd.DataFrame({"predicted_ms": ms, "low_ms": ms, "high_ms": ms, "out_of_range": False, "origin": "", "part": ""},
                            index=table.index)
