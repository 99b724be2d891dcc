"""How long the layers of an engine took: each run with its time stamp where there is one, or trtexec's averages."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from lib import store
from lib.errors import InputError
from lib.measure.energy.power_log import seconds


@dataclass(frozen=True)
class LayerTimes:
    """Runs of one layer: how long each took, in ms, and when it ended, in s since the epoch (NaN: no time stamp)."""

    latency_ms: np.ndarray
    end_s: np.ndarray

    def __len__(self) -> int:
        return len(self.latency_ms)


def read(path: Path) -> dict[str, LayerTimes]:
    """Read ``{layer: [ms, ...]}`` or ``{layer: [[ms, "YYYYMMDD-HH:MM:SS.ffffff"], ...]}``, or trtexec's ``--exportProfile``.

    Of the latter, one value a layer, its median. Raises InputError naming the layer and what is wrong with it.
    """
    content = store.read_json(path)
    if isinstance(content, list):
        return _profile(path, content)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} holds no latencies of layers: expected a mapping of layers to lists, or trtexec's profile")
    return {name: _times(path, name, runs) for name, runs in content.items()}


def _times(path: Path, name: str, runs: Any) -> LayerTimes:
    if not isinstance(runs, list):
        raise InputError(f"{path}: {name[:60]!r} is {str(runs)[:40]!r}: it is a list of runs")
    latency_ms, end_s = np.empty(len(runs)), np.full(len(runs), np.nan)
    for number, run in enumerate(runs):
        value, stamp = run if isinstance(run, list) and len(run) == 2 else (run, None)
        try:
            latency_ms[number] = _milliseconds(value)
            if stamp is not None:
                end_s[number] = seconds(stamp)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}: run {number + 1} of {name[:60]!r} is {str(run)[:60]!r}: {error}") from None
    return LayerTimes(latency_ms, end_s)


def _milliseconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError("a run is a number of milliseconds, with or without a time stamp YYYYMMDD-HH:MM:SS.ffffff")
    return float(value)


def _profile(path: Path, content: list[Any]) -> dict[str, LayerTimes]:
    times = {}
    for number, entry in enumerate(content):
        if isinstance(entry, dict) and set(entry) == {"count"}:
            continue
        try:
            times[str(entry["name"])] = LayerTimes(np.array([_milliseconds(entry["medianMs"])]), np.array([np.nan]))
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"{path}: entry {number} is no layer of trtexec's profile ({error})") from None
    if not times:
        raise InputError(f"{path} holds no latencies of layers: trtexec's profile is empty")
    return times
