"""A line per family of operators: the simple rule that an operator model has to beat, also within networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lib.predict.operators.chip import Chip
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.regressors import LEAST_MS, nonnegative_rates


@dataclass(frozen=True)
class Lines:
    """Costs of a FLOP, a byte and a call by family and pass (Li et al., MICRO 2023), asked as an operator model is.

    Those of ``()`` are of all families, for one without rows.
    """

    device: str
    facts: Mapping[str, Any]
    chip: Chip | None
    costs: Mapping[tuple[str, ...], np.ndarray]
    efficiencies: ClassVar = {}  # learned from networks: none

    @classmethod
    def fit(cls, table: pd.DataFrame, model: CostModel) -> "Lines":
        """Fit lines to usable rows of the sweeps of a model."""
        families = {**dict(list(table.groupby(["op", "pass"]))), (): table}
        return cls(model.device, model.facts, model.chip, {
            key: nonnegative_rates(_work(rows), rows["latency_ms"].to_numpy(float)) for key, rows in families.items()})

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return what a cost model does; ranges have no width."""
        costs = [self.costs.get(key, self.costs[()]) for key in zip(table["op"], table["pass"], strict=True)]
        ms = np.maximum((_work(table).fillna(0) * np.array(costs)).sum(axis=1), LEAST_MS)
        return pd.DataFrame({**dict.fromkeys(("predicted_ms", "low_ms", "high_ms"), ms), "out_of_range": False, "origin": "",
                             "part": ""})


def _work(table: pd.DataFrame) -> pd.DataFrame:
    return table[["flops", "bytes"]].astype(float).assign(call=1.0)
