"""What layer models say of an engine: time, power above idle and energy of each layer, and of the whole network."""

from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from lib.errors import InputError, printable
from lib.tensorrt.engine import KINDS, Engine
from lib.tensorrt.models.trained_models import TrainedModels
from lib.tensorrt.recordings import dataset

COLUMNS = ("layer_name", "layer_type", "kind", "runtime_prediction", "runtime_low", "runtime_high", "power_prediction",
           "power_low", "power_high", "model_device", "note")
_NAMES = {"predicted": "prediction", "low": "low", "high": "high"}


@dataclass(frozen=True)
class NetworkTotal:
    """Time (ms, nominal 90 % interval), mean power above idle (W) and energy above idle (mJ) of one pass; NaN: not known.

    ``covered`` of ``layers`` layers are predicted; the others count with nothing, and ``others`` counts them by type.
    """

    runtime_ms: float
    low_ms: float
    high_ms: float
    power_w: float
    energy_mj: float
    covered: int
    layers: int
    others: dict[str, int]


def of_engine(engine: Engine, models: TrainedModels, device: str = "", strict: bool = False) -> pd.DataFrame:
    """Return a row a layer in ``COLUMNS``: ms and W above idle with intervals, empty with the reason where there is no model.

    ``device`` is what the engine runs on; where that is another than the models', or not stated, every row says so, or,
    ``strict``, InputError is raised.
    """
    stranger = _stranger(models.device, device)
    if stranger and strict:
        raise InputError(f"{engine.path}: {stranger}")
    table = pd.DataFrame([dataset.features(layer) if layer.kind in KINDS.values() else
                          {"layer_name": layer.name, "kind": layer.kind} for layer in engine.layers])
    table["layer_type"] = [layer.layer_type for layer in engine.layers]
    table["formats"] = [", ".join(layer.unknown_formats) for layer in engine.layers]
    for target in ("runtime", "power"):
        table[[f"{target}_{name}" for name in _NAMES.values()]] = _predicted(table, models, target)
        table["runtime"] = table["runtime_prediction"]
    table["model_device"] = models.device
    table["note"] = ["; ".join(filter(None, [*dict.fromkeys(_missing(row, models)), stranger])) for row in table.itertuples()]
    return table[list(COLUMNS)]


def _stranger(trained_on: str, device: str) -> str:
    if not device:
        return f"trained on {trained_on}, and the engine's device is not stated (--device)"
    return "" if device == trained_on else f"trained on {trained_on}, not on {device}"


def _missing(row, models: TrainedModels) -> list[str]:
    if row.kind not in KINDS.values():
        return [f"no model of {row.layer_type} layers"]
    unknown = [f"bytes are not known: a tensor is {printable(row.formats)[:100]!r}"] if row.formats else []
    return [*unknown, *(models.missing(row.kind, target) for target in ("runtime", "power"))]


def _predicted(table: pd.DataFrame, models: TrainedModels, target: str) -> np.ndarray:
    values = np.full((len(table), len(_NAMES)), nan)
    for kind in KINDS.values():
        model, rows = models.models.get((kind, target)), (table["kind"] == kind).to_numpy()
        if model and rows.any() and (target == "runtime" or (kind, "runtime") in models.models):
            values[rows] = model.predict(table[rows])[list(_NAMES)]
    return values


def total(rows: pd.DataFrame) -> NetworkTotal:
    """Return what the layers of a pass sum up to; the interval takes their errors as fully correlated, so that it is wide.

    Power and energy are NaN as soon as one layer that has a time has no power.
    """
    timed = rows[rows["runtime_prediction"].notna()]
    others = rows.loc[rows["runtime_prediction"].isna(), "layer_type"].value_counts().to_dict()
    if timed.empty:
        return NetworkTotal(nan, nan, nan, nan, nan, 0, len(rows), others)
    runtime_ms, low_ms, high_ms = (float(timed[f"runtime_{name}"].sum()) for name in ("prediction", "low", "high"))
    energy_mj = float((timed["power_prediction"] * timed["runtime_prediction"]).sum(skipna=False))
    return NetworkTotal(runtime_ms, low_ms, high_ms, energy_mj / runtime_ms, energy_mj, len(timed), len(rows), others)
