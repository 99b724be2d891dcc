"""What layer models say of an engine: time, power above idle and energy of each layer, and of the whole network."""

from collections.abc import Collection
from typing import Any

import pandas as pd

from lib.errors import InputError, choices, printable
from lib.tensorrt.engine import OTHER, Engine, Layer
from lib.tensorrt.models.layer_model import TARGETS, LayerModel
from lib.tensorrt.recordings import dataset

COLUMNS = ("layer_name", "layer_type", "kind", "runtime_prediction", "runtime_low", "runtime_high", "power_prediction",
           "power_low", "power_high", "model_device", "note")


def of_engine(engine: Engine, models: Collection[LayerModel], device: str = "", strict: bool = False) -> pd.DataFrame:
    """Return a row a layer in ``COLUMNS``: ms and W above idle with intervals, empty with the reason where there is no model.

    ``device`` is what the engine runs on; where that is another than the models', or not stated, every row says so, or,
    ``strict``, InputError is raised; as it is for models of several devices.
    """
    owners, modelled = sorted({model.device for model in models}), {(model.kind, model.target) for model in models}
    if len(owners) > 1:
        raise InputError(f"models of several devices cannot predict one engine: {choices(owners)}")
    stranger = "" if [device] == owners else f"trained on {owners[0]}, " + (
        f"not on {device}" if device else "and the engine's device is not stated (--device)")
    if stranger and strict:
        raise InputError(f"{engine.path}: {stranger}")
    table = pd.DataFrame([{"layer_name": layer.name, "layer_type": layer.layer_type, "kind": layer.kind,
                           **(dataset.features(layer) if layer.kind != OTHER else {}), "model_device": owners[0],
                           "note": "; ".join(filter(None, [*_missing(layer, modelled, owners[0]), stranger,
                                                            engine.profile_note]))}
                          for layer in engine.layers])
    for target in TARGETS:  # power needs the runtime
        parts = [model.predict(rows) for model in models if model.target == target and (model.kind, "runtime") in modelled
                 and len(rows := table[table["kind"] == model.kind])]
        if parts:
            table = table.join(pd.concat(parts).add_prefix(f"{target}_"))
            table["runtime"] = table["runtime_prediction"]
    return table.reindex(columns=COLUMNS)


def _missing(layer: Layer, modelled: Collection[tuple[str, str]], owner: str) -> list[str]:
    if layer.kind == OTHER:
        return [f"no model of {layer.layer_type} layers"]
    formats = printable(", ".join(layer.unknown_formats))[:100]
    unknown = [f"bytes are not known: a tensor is {formats!r}"] if formats else []
    return unknown + [f"no {target} of {layer.kind} layers was measured on {owner}" for target in TARGETS
                      if (layer.kind, target) not in modelled]


def total(rows: pd.DataFrame) -> dict[str, Any]:
    """Return time (ms, nominal 90 % interval), mean power above idle (W) and energy above idle (mJ) of a pass; NaN: not known.

    ``covered`` of ``layers`` layers are predicted; the others count with nothing, and ``others`` counts them by type. The
    interval takes errors of layers as fully correlated, so that it is wide. Power and energy are NaN as soon as one layer that
    has a time has no power.
    """
    timed = rows["runtime_prediction"].notna()
    sums = rows[timed][["runtime_prediction", "runtime_low", "runtime_high"]].sum(min_count=1)
    energy_mj = (rows["power_prediction"] * rows["runtime_prediction"])[timed].sum(skipna=False, min_count=1)
    return {"covered": int(timed.sum()), "layers": len(rows), "others": rows.loc[~timed, "layer_type"].value_counts(),
            **dict(zip(("runtime_ms", "low_ms", "high_ms"), sums, strict=True)), "energy_mj": energy_mj,
            "power_w": energy_mj / sums["runtime_prediction"]}
