"""Synthetic power of a recording: what layers would draw by a stated rule, so that what a mapping recovers has a known answer.

It is no measurement, says so in ``recording.json``, and no power model is trained on it.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lib import files, store
from lib.config.base import mapping
from lib.errors import InputError
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt import engine
from lib.tensorrt.engine import Engine
from lib.tensorrt.recordings import dataset, latencies, recording
from lib.tensorrt.recordings.latencies import LayerTimes

IDLE_W, STATIC_W = 4.0, 1.5
PJ_A_FLOP, PJ_A_BYTE = 60.0, 150.0
PERIOD_S = 0.00135  # of an INA3221 that is polled without pause
_NOISE = 0.02


def layer_w(read: Engine, times: Mapping[str, LayerTimes]) -> dict[str, float]:
    """Return the watts above idle of each layer: static, and the energy of its FLOPs and bytes over its median time."""
    return {layer.name: STATIC_W + 1e-9 * (PJ_A_FLOP * layer.flops + PJ_A_BYTE * np.nan_to_num(layer.bytes))
            / float(np.median(times[layer.name].latency_ms)) for layer in read.layers if layer.name in times}


def log(read: Engine, times: Mapping[str, LayerTimes], seed: int = 0) -> PowerLog:
    """Return samples of the power at their moments: idle, and what the layer that runs then draws, with 2 % of noise."""
    watts = layer_w(read, times)
    end_s = np.concatenate([times[name].end_s for name in watts])
    start_s = end_s - np.concatenate([times[name].latency_ms for name in watts]) / 1e3
    drawn_w = np.concatenate([np.full(len(times[name]), value) for name, value in watts.items()])
    order = np.argsort(start_s)
    at_s = np.arange(start_s.min() - 0.1, end_s.max() + 0.1, PERIOD_S)
    running = np.maximum(np.searchsorted(start_s[order], at_s, side="right") - 1, 0)
    during = (at_s >= start_s[order][running]) & (at_s <= end_s[order][running])
    power_w = IDLE_W + np.where(during, drawn_w[order][running], 0.0)
    return PowerLog(at_s, power_w * np.random.default_rng(seed).normal(1, _NOISE, len(at_s)).clip(0.5))


def add(folder: Path, seed: int = 0) -> None:
    """Give a recording without power a synthetic log, marked as such; InputError where it has power already."""
    facts = mapping(store.read_json(folder / dataset.RECORDING), folder / dataset.RECORDING)
    if (folder / dataset.POWER).exists():
        raise InputError(f"{folder / dataset.POWER} is there already; synthetic power never takes the place of a log")
    read, times = engine.read(folder / dataset.ENGINE), latencies.read(folder / dataset.LATENCY)
    rule = (f"{PJ_A_FLOP:g} pJ a FLOP, {PJ_A_BYTE:g} pJ a byte, {STATIC_W:g} W while a layer runs, {IDLE_W:g} W idle, "
            f"noise of {_NOISE:.0%}")
    made = {**facts, "power": dataset.SYNTHETIC, "reason": rule}
    files.replace(folder / dataset.RECORDING, store.encoded_json(made))
    recording.write_power(folder, log(read, times, seed), IDLE_W)
