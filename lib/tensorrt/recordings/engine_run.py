"""One recorded run of an engine as tables: its layers, every pass through them, and the samples of a power log."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import entry
from lib.measure.energy import power_log
from lib.tensorrt import engine
from lib.tensorrt.engine import Engine
from lib.tensorrt.recordings import dataset, mapping

_ABOVE_IDLE = mapping.COLUMNS[4]


@dataclass(frozen=True)
class EngineRun:
    """A recording of one network on one device.

    ``layers``, one row per layer: layer_name, layer_type, kind, gmacs, mb (compulsory traffic), median_ms.
    ``passes``, one row per pass and layer: cycle, layer_name, kind, layer_run_time (ms), start_ms, end_ms, power_w
    (above idle; NaN where no sample fell into the window).
    ``samples``, one row per sample of the power log: at_ms, power_w. Times count from the start of the first layer.
    ``power`` says where the log is from: measured, replayed, synthetic, or not measured.
    """

    name: str
    engine: Engine
    layers: pd.DataFrame
    passes: pd.DataFrame
    samples: pd.DataFrame
    idle_w: float
    power: str


def read(raw: Path, network: str = "") -> EngineRun:
    """Read one recording below a folder of recordings (empty: the first); InputError lists the recordings there."""
    sources = dataset.models(raw)
    source = entry(sources, network or next(iter(sources)), "recording", f"in {raw}")
    read_engine = engine.read(source.engine)
    times = mapping.read_times(source.latency, read_engine)
    log, idle_w, power = None, np.nan, dataset.NOT_MEASURED
    samples = pd.DataFrame(columns=["at_ms", "power_w"], dtype=float)
    zero_s = times["start_s"].min()
    if source.power:
        log, idle_w = power_log.read(source.power), power_log.read_idle_w(source.idle)
        power = dataset.power_source(source.engine.parent)
        samples = pd.DataFrame({"at_ms": 1e3 * (log.at_s - zero_s), "power_w": log.power_w})
    layers = pd.DataFrame([{"layer_name": layer.name, "layer_type": layer.layer_type, "kind": layer.kind,
                            "gmacs": layer.macs / 1e9, "mb": layer.bytes / 1e6} for layer in read_engine.layers])
    layers["median_ms"] = layers["layer_name"].map(times.groupby("layer_name")["layer_run_time"].median())
    powered, _ = mapping.layerwise(read_engine, times, log, idle_w)
    passes = times.merge(layers[["layer_name", "kind"]], on="layer_name").merge(
        powered[["cycle", "layer_name", _ABOVE_IDLE]], on=["cycle", "layer_name"])
    passes = passes.assign(start_ms=1e3 * (passes["start_s"] - zero_s), end_ms=1e3 * (passes["end_s"] - zero_s),
                           power_w=passes[_ABOVE_IDLE].astype(float) / 1e6)
    return EngineRun(source.name, read_engine, layers, passes.drop(columns=[_ABOVE_IDLE, "start_s", "end_s"]),
                     samples, idle_w, power)
