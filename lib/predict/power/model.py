"""The power model of a GPU's GEMMs: watts from shape and time, with an interval, bounded by the card."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError
from lib.predict import model_file
from lib.predict.operators import features, inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.parts import Part
from lib.predict.power.features import frames, names

SHIPPED = paths.REFERENCE / "models" / "power"
PART = "gemm power"  # the name of its part in files
_WATTS = ("least_w", "limit_w")


@dataclass
class PowerModel:
    """``part`` answers in watts; all answers lie between two of the ``facts``, least power in training and the card's limit."""

    device: str
    facts: dict[str, Any]
    part: Part
    chip: Chip

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``power_w, low_w, high_w, out_of_range`` of GEMMs: ``sweep`` columns, among them ``latency_ms``."""
        terms, x = frames(table, self.chip)
        watts, widths, outside = self.part.predict(terms.to_numpy(), x.to_numpy())
        limits = [self.facts[name] for name in _WATTS]
        bounds = {"power_w": watts, "low_w": watts * np.exp(-widths), "high_w": watts * np.exp(widths)}
        in_training = np.isin(inputs.codes(features.columns(table)), self.part.codes)
        return pd.DataFrame({name: np.clip(values, *limits) for name, values in bounds.items()}, index=table.index).assign(
            out_of_range=outside | ~in_training)

    def save(self, path: Path) -> Path:
        """Write the model as data, see ``model_file``."""
        return CostModel(self.device, self.facts, {PART: self.part}, self.chip).save(path)

    @classmethod
    def load(cls, path: Path) -> "PowerModel":
        """Read a model back; InputError says what is wrong with a damaged file, or with one of something else. Runs no code."""
        stored = model_file.load(CostModel, path)
        watts = [stored.facts.get(name) for name in _WATTS]
        if set(stored.parts) != {PART} or stored.chip is None:
            raise InputError(f"{path} is no power model: it has other parts than {PART}, or no chip")
        if not all(type(value) in (int, float) and np.isfinite(value) for value in watts) or not 0 < watts[0] < watts[1]:
            raise InputError(f"{path}: least_w and limit_w are {watts}: they are watts, the first below the second")
        try:
            stored.parts[PART].check_names(*names(stored.chip))
        except ValueError as error:
            raise InputError(f"{path} is no power model of this program: {error}") from None
        return cls(stored.device, stored.facts, stored.parts[PART], stored.chip)


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
