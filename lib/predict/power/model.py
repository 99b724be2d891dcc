"""The power model of one kind of a GPU's kernels: watts from shape and time, with an interval, bounded by the card."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError, choices
from lib.predict import model_file
from lib.predict.operators import features, inputs
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.parts import Part
from lib.predict.power.kinds import GEMM, KINDS, Kind

SHIPPED = paths.REFERENCE / "models" / "power"
_WATTS = ("least_w", "limit_w")


@dataclass
class PowerModel:
    """``part`` answers in watts; all answers lie between two of the ``facts``, least power in training and the card's limit."""

    device: str
    facts: dict[str, Any]
    part: Part
    chip: Chip
    kind: Kind = GEMM

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``power_w, low_w, high_w, out_of_range`` of kernels that take ``latency_ms``.

        GEMMs have ``sweep`` columns, attention those of ``attention_power``.
        """
        terms, x = self.kind.frames(table, self.chip)
        watts, half, outside = self.part.predict(terms.to_numpy(), x.to_numpy())
        limits = [self.facts[name] for name in _WATTS]
        several = {"power_w": watts, "low_w": watts * np.exp(-half), "high_w": watts * np.exp(half)}
        in_training = np.isin(inputs.codes(features.columns(table)), self.part.codes)
        return pd.DataFrame({name: np.clip(values, *limits) for name, values in several.items()}, index=table.index).assign(
            out_of_range=outside | ~in_training)

    def save(self, path: Path) -> Path:
        """Write the model as data, see ``model_file``."""
        return model_file.write(path, {"device": self.device, "facts": self.facts, "compositions": {},
                                       "chip": asdict(self.chip), "parts": {self.kind.part: self.part.plain()}})

    @classmethod
    def load(cls, path: Path) -> "PowerModel":
        """Read a model back; InputError says what is wrong with a damaged file, or with one of something else. Runs no code."""
        content = model_file.read(path)
        facts = content.model_dump(mode="json", include={"facts"}, exclude_unset=True)["facts"]
        watts = [facts.get(name) for name in _WATTS]
        kind = KINDS.get(next(iter(content.parts), "")) if len(content.parts) == 1 else None
        if kind is None or content.chip is None:
            raise InputError(f"{path} is no power model: it has other parts than one of {choices(KINDS)}, or no chip")
        if not all(type(value) in (int, float) and np.isfinite(value) for value in watts) or not 0 < watts[0] < watts[1]:
            raise InputError(f"{path}: least_w and limit_w are {watts}: they are watts, the first below the second")
        chip = Chip(**content.chip.model_dump())
        try:
            part = Part.of_file(content.parts[kind.part], kind.names(chip))
        except ValueError as error:
            raise InputError(f"{path} is no power model of this program: {error}") from None
        return cls(content.device, facts, part, chip, kind)


def path_of(device: str, dtype: str, kind: Kind = GEMM) -> Path:
    """Return where the model of a device, element type and kind of kernels ships."""
    return SHIPPED / kind.folder / f"{device}_{dtype}.json.gz"


def model_files() -> list[tuple[Kind, Path]]:
    """Return the kinds and files of the power models that ship."""
    return [(kind, path) for kind in KINDS.values() for path in sorted((SHIPPED / kind.folder).glob("*.json.gz"))]


def of_device(device: str, dtype: str, kind: Kind = GEMM) -> PowerModel | None:
    """Return the model of a device, element type and kind, None where there is none; InputError for a file of another."""
    path = path_of(device, dtype, kind)
    if not path.exists():
        return None
    model = PowerModel.load(path)
    if (model.device, model.facts.get("dtype"), model.kind) != (device, dtype, kind):
        raise InputError(f"{path} holds a power model of {model.device}, {model.facts.get('dtype')}: not what its name says, "
                         f"or of other kernels ({model.kind.part})")
    return model
