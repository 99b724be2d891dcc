"""Time-stamped power brought to the layers that ran meanwhile: the mean of the samples within each window, idle removed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt.engine import Engine
from lib.tensorrt.recordings.latencies import LayerTimes

COLUMNS = ("cycle", "layer_name", "layer_type", "layer_power_including_idle_power_micro_watt",
           "layer_power_excluding_idle_power_micro_watt", "layer_run_time")
_MICRO = 1e6


@dataclass(frozen=True)
class Coverage:
    """How well a log covers the runs: windows in all, those with a sample, those outside of the log, samples used."""

    windows: int
    sampled: int
    outside: int
    samples: int


def window_means(start_s: np.ndarray, end_s: np.ndarray, log: PowerLog) -> tuple[np.ndarray, np.ndarray]:
    """Return mean watts and number of samples with start <= t <= end, for windows (n,) in any order; NaN where there are none.

    A window without a time stamp (NaN) has none either.
    """
    stamped = np.isfinite(start_s) & np.isfinite(end_s)
    first = np.searchsorted(log.at_s, np.where(stamped, start_s, 0.0), side="left")
    last = np.where(stamped, np.searchsorted(log.at_s, np.where(stamped, end_s, 0.0), side="right"), first)
    total = np.concatenate([[0.0], np.cumsum(log.power_w)])
    count = last - first
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, (total[last] - total[first]) / count, np.nan), count


def layerwise(engine: Engine, times: Mapping[str, LayerTimes], log: PowerLog, idle_w: float) -> tuple[pd.DataFrame, Coverage]:
    """Return a row a cycle and layer in ``COLUMNS`` (µW, ms; empty where no sample fell into the window), and the coverage.

    A layer's window ends at its time stamp and is as long as its latency. Raises InputError for latencies of no layer of the
    engine, without time stamps, and for a log that does not overlap the run.
    """
    layers = [layer for layer in engine.layers if layer.name in times]
    if not layers:
        raise InputError(f"{engine.path}: none of its layers has latencies; the two are not of one engine")
    names = np.concatenate([[layer.name] * len(times[layer.name]) for layer in layers])
    types = np.concatenate([[layer.layer_type] * len(times[layer.name]) for layer in layers])
    cycles = np.concatenate([np.arange(1, len(times[layer.name]) + 1) for layer in layers])
    latency_ms = np.concatenate([times[layer.name].latency_ms for layer in layers])
    end_s = np.concatenate([times[layer.name].end_s for layer in layers])
    if not np.isfinite(end_s).any():
        raise InputError(f"{engine.path}: its latencies have no time stamps, so that no power can be brought to them")
    start_s = end_s - latency_ms / 1e3
    outside = int(((end_s < log.at_s[0]) | (start_s > log.at_s[-1])).sum())
    if outside == np.isfinite(end_s).sum():
        raise InputError(f"{engine.path}: the power log ({len(log.at_s)} samples) does not overlap the run")
    mean_w, samples = window_means(start_s, end_s, log)
    table = pd.DataFrame(dict(zip(COLUMNS, (cycles, names, types, mean_w * _MICRO, (mean_w - idle_w) * _MICRO, latency_ms),
                                  strict=True)))
    order = np.lexsort((start_s, cycles))
    return table.iloc[order].reset_index(drop=True), Coverage(len(table), int((samples > 0).sum()), outside, int(samples.sum()))
