"""The power model of a GPU's GEMMs: watts from shape and time, with an interval, bounded by the card.

The power of a kernel depends on how busy it keeps tensor cores and memory, and on its tiles.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Required

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError
from lib.predict.model_file import Format, Positive, require
from lib.predict.operators import features, features_gpu, inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.cost_model import CostModel, Facts
from lib.predict.operators.parts import Part

SHIPPED = paths.REFERENCE / "models" / "power"
PART = "gemm power"  # the name of its part in files
OPS = ("linear", "matmul", "bmm")


class PowerFacts(Facts):
    """What is known of a power model: the least power in training and the card's limit, between which all answers lie."""

    least_w: Required[Positive]
    limit_w: Required[Positive]


@dataclass
class PowerModel(CostModel):
    """A model whose one part answers in watts."""

    facts: PowerFacts

    FORMAT: ClassVar = Format("power model", "train it again with: python -m lib models --train power", 4)

    def __post_init__(self):
        """Refuse other parts, and limits that are in no order."""
        require(set(self.parts) == {PART} and self.chip, f"it has other parts than {PART}, or no chip")
        require(self.facts["least_w"] < self.facts["limit_w"], "least_w is not below limit_w")

    @property
    def part(self) -> Part:
        """Return its one part."""
        return self.parts[PART]

    def names_of(self, name: str) -> list[list[str]]:
        """Return the names of the terms and of the features of its part."""
        row = {"op": OPS[:1], "flops": 1.0, "bytes": 1.0, "latency_ms": 1.0}
        return [list(table) for table in frames(pd.DataFrame(row), self.chip)]

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``power_w, low_w, high_w, out_of_range`` of GEMMs: ``sweep`` columns, among them ``latency_ms``."""
        watts, widths, outside = self.part.predict(*frames(table, self.chip))
        ends = {"power_w": watts, "low_w": watts * np.exp(-widths), "high_w": watts * np.exp(widths)}
        answer = pd.DataFrame(ends, index=table.index).clip(self.facts["least_w"], self.facts["limit_w"])
        return answer.assign(out_of_range=outside | ~np.isin(inputs.codes(features.columns(table)), self.part.codes))


def frames(rows: pd.DataFrame, chip: Chip) -> list[pd.DataFrame]:
    """Return terms (their rates are watts) and features of GEMMs: ``sweep`` columns, among them ``latency_ms``."""
    row, latency_ms = features.columns(rows), rows["latency_ms"].to_numpy(float)
    compute, memory = row.flops / chip.flops_per_ms / latency_ms, row.bytes / chip.bytes_per_ms / latency_ms
    either = np.minimum(compute + memory, 1.0)
    terms = {"idle": 1.0, "compute": np.minimum(compute, 1.0), "memory": np.minimum(memory, 1.0), "either": either,
             "any": np.sqrt(either)}
    _, tiles = features_gpu.values(row, "gemm", chip)
    x = {name: value for name, value in tiles.items() if name not in features_gpu.SERVED}
    x |= {"latency": np.log2(latency_ms), "compute_used": compute, "memory_used": memory}
    return [pd.DataFrame(values, index=rows.index, dtype=float) for values in (terms, x)]


def path_of(device: str, dtype: str) -> Path:
    """Return where the model of a device and element type ships."""
    return SHIPPED / f"{device}_{dtype}.json.gz"


def model_files() -> list[Path]:
    """Return the files of the power models that ship."""
    return sorted(SHIPPED.glob("*.json.gz"))


def of_device(device: str, dtype: str) -> PowerModel | None:
    """Return the model of a device and element type, None where there is none; InputError for a file of another."""
    path = path_of(device, dtype)
    if not path.exists():
        return None
    model = PowerModel.load(path)
    if (model.device, model.facts.get("dtype")) != (device, dtype):
        raise InputError(f"{path} holds a power model of {model.device}, {model.facts.get('dtype')}: not what its name says")
    return model
