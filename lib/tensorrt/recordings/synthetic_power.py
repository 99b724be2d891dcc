"""Synthetic power of a recording: what layers would draw by a stated rule, so that what a mapping recovers has a known answer.

It is no measurement, says so in ``recording.json``, and no power model is trained on it.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.config.base import json_mapping
from lib.errors import InputError
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt import engine
from lib.tensorrt.engine import Engine
from lib.tensorrt.recordings import dataset, mapping, recording

IDLE_W, STATIC_W = 4.0, 1.5
PJ_A_FLOP, PJ_A_BYTE = 60.0, 150.0
PERIOD_S = 0.00135  # of an INA3221 that is polled without pause
_NOISE = 0.02


def layer_w(read: Engine, times: pd.DataFrame) -> pd.Series:
    """Return the watts above idle of each layer: static, and the energy of its FLOPs and bytes over its median time."""
    picojoules = {layer.name: PJ_A_FLOP * layer.flops + PJ_A_BYTE * np.nan_to_num(layer.bytes) for layer in read.layers}
    median_ms = times.groupby("layer_name")["layer_run_time"].median()
    return STATIC_W + 1e-9 * pd.Series(picojoules) / median_ms


def log(read: Engine, times: pd.DataFrame) -> PowerLog:
    """Return samples of the power at their moments: idle, and what the layer that runs then draws, with 2 % of noise."""
    runs = times.assign(drawn_w=times["layer_name"].map(layer_w(read, times))).dropna().sort_values("start_s")
    at_s = np.arange(runs["start_s"].min() - 0.1, runs["end_s"].max() + 0.1, PERIOD_S)
    running = pd.merge_asof(pd.DataFrame({"start_s": at_s}), runs, on="start_s")
    power_w = IDLE_W + running["drawn_w"].where(running["end_s"] >= at_s, 0.0).to_numpy()
    return PowerLog(at_s, power_w * np.random.default_rng(0).normal(1, _NOISE, len(at_s)).clip(0.5))


def add(folder: Path) -> None:
    """Give a recording without power a synthetic log, marked as such; InputError where it has power already."""
    facts = json_mapping(folder / dataset.RECORDING)
    if (folder / dataset.POWER).exists():
        raise InputError(f"{folder / dataset.POWER} is there already; synthetic power never takes the place of a log")
    read = engine.read(folder / dataset.ENGINE)
    times = mapping.read_times(folder / dataset.LATENCY, read)
    rule = (f"{PJ_A_FLOP:g} pJ a FLOP, {PJ_A_BYTE:g} pJ a byte, {STATIC_W:g} W while a layer runs, {IDLE_W:g} W idle, "
            f"noise of {_NOISE:.0%}")
    made = {**facts, "power": dataset.SYNTHETIC, "reason": rule}
    store.write_json(made, folder / dataset.RECORDING)
    recording.write_power(folder, log(read, times), IDLE_W)
