"""Predict time, power above idle and energy of each layer of an engine, and of the whole engine."""

from collections.abc import Collection
from math import isnan
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.tensorrt.engine import OTHER, Engine, Layer
from lib.tensorrt.layer_model import TARGETS, LayerModel
from lib.tensorrt.layers import layer_features

COLUMNS = ("layer_name", "layer_type", "kind", "runtime_prediction", "runtime_low", "runtime_high",
           "power_prediction", "power_low", "power_high", "model_device", "note")


def predict_engine(engine: Engine, models: Collection[LayerModel], device: str = "",
                   strict: bool = False) -> pd.DataFrame:
    """Return one row per layer in ``COLUMNS`` (ms, W above idle); a note says what has no model.

    Raises InputError for models of several devices or, if ``strict``, of another than ``device``.
    """
    owner, *others = sorted({model.device for model in models})
    if others:
        raise InputError(f"models of {owner} and {choices(others)} cannot predict one engine")
    other = []
    if device != owner:
        engine_device = f"not on {device}" if device else "and the engine's device is not stated"
        other = [f"trained on {owner}, {engine_device} (--device)"]
    if other and strict:
        raise InputError(f"{engine.path}: {other[0]}")
    known = {(model.kind, model.target) for model in models}
    table = pd.DataFrame([
        {"layer_name": layer.name, "layer_type": layer.layer_type, "kind": layer.kind,
         **({} if layer.kind == OTHER else layer_features(layer)), "model_device": owner,
         "note": "; ".join([*_missing_models(layer, known, owner), *other])}
        for layer in engine.layers])
    for target in TARGETS:  # power needs the runtime
        parts = [model.predict(table[table["kind"] == model.kind]) for model in models
                 if model.target == target and (model.kind, "runtime") in known
                 and model.kind in set(table["kind"])]
        if parts:
            table = table.join(pd.concat(parts).add_prefix(f"{target}_"))
            table["runtime"] = table["runtime_prediction"]
    return table.reindex(columns=COLUMNS)


def _missing_models(layer: Layer, known: Collection[tuple[str, str]], owner: str) -> list[str]:
    if layer.kind == OTHER:
        return [f"no model of {layer.layer_type} layers"]
    notes = [f"no {target} of {layer.kind} layers was measured on {owner}" for target in TARGETS
             if (layer.kind, target) not in known]
    if isnan(layer.bytes):
        notes.append("bytes are not known: a tensor has an unknown format")
    return notes


def network_total(rows: pd.DataFrame) -> dict[str, Any]:
    """Return covered, layers, runtime_ms, low_ms, high_ms, energy_mj and power_w of a pass.

    ``covered`` of ``layers`` layers are predicted and count. The interval is wide: it takes errors
    as fully correlated. Energy and power are NaN as soon as a covered layer has no power.
    """
    timed = rows[rows["runtime_prediction"].notna()]
    times = timed[["runtime_prediction", "runtime_low", "runtime_high"]].sum(min_count=1)
    runtime_ms, low_ms, high_ms = times
    energy = timed["power_prediction"] * timed["runtime_prediction"]
    energy_mj = energy.sum(skipna=False, min_count=1)
    return {"covered": len(timed), "layers": len(rows), "runtime_ms": runtime_ms, "low_ms": low_ms,
            "high_ms": high_ms, "energy_mj": energy_mj, "power_w": energy_mj / runtime_ms}
