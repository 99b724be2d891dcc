"""Logs of an INA3221 power sensor, as a Jetson board gives them: a line a sample, ``YYYYMMDD-HH:MM:SS.ffffff,mV,mA``."""

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path

import numpy as np

from lib import csv_files, store
from lib.errors import InputError
from lib.measure.energy.trace import Trace

STAMP = "%Y%m%d-%H:%M:%S.%f"
_LEAST = 2
_MOST_W = 1000.0
_LEAST_UW = 1000.0


@dataclass(frozen=True)
class PowerLog:
    """Samples in the order of time: seconds since the epoch, and watts. ``notes`` say what was left out, and why."""

    at_s: np.ndarray
    power_w: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def trace(self) -> Trace:
        """Return the samples as what a meter gave."""
        return Trace.of_power(self.at_s, self.power_w)


def seconds(text: str) -> float:
    """Return a time stamp ``YYYYMMDD-HH:MM:SS.ffffff`` as seconds since the epoch, taken as UTC; ValueError for another."""
    return datetime.strptime(f"{text}+0000", f"{STAMP}%z").timestamp()


def read(path: Path) -> PowerLog:
    """Read a log; a torn last line is left out and noted, as are samples after which the clock jumped back.

    Raises InputError for a file with fewer than two samples, and for a line that is no sample, naming it.
    """
    try:
        lines = csv_files.bytes_of(path).decode().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable power log: {error}") from None
    notes = []
    if lines and not lines[-1].endswith("\n"):
        notes.append("the last line is torn")
        lines.pop()
    samples = np.array([_sample(path, number, line) for number, line in enumerate(lines, start=1)]).reshape(-1, 2)
    ordered = samples[:, 0] > np.maximum.accumulate(np.concatenate([[-np.inf], samples[:, 0]]))[:-1]
    if not np.all(ordered):
        notes.append(f"{int((~ordered).sum())} samples are not later than those before them (the clock jumped back)")
        samples = samples[ordered]
    if len(samples) < _LEAST:
        raise InputError(f"{path} holds {len(samples)} samples; a power log has {_LEAST} or more")
    return PowerLog(samples[:, 0], samples[:, 1], tuple(notes))


def _sample(path: Path, number: int, line: str) -> tuple[float, float]:
    try:
        stamp, millivolts, milliamperes = line.strip().split(",")
        power_w = float(millivolts) * float(milliamperes) / 1e6
        if not isfinite(power_w) or not 0 <= power_w <= _MOST_W:
            raise ValueError(f"{power_w:g} W")
        return seconds(stamp), power_w
    except ValueError as error:
        raise InputError(f"{path}: line {number} is {line.strip()[:60]!r} ({error}); a sample is YYYYMMDD-HH:MM:SS.ffffff,mV,mA"
                         ) from None


def read_idle_w(path: Path) -> float:
    """Read the mean power of an idle board, in W, from ``{"timestamp": ..., "avg_idle_power": uW}``. Raises InputError."""
    content = store.read_json(path)
    value = content.get("avg_idle_power") if isinstance(content, dict) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not _LEAST_UW <= value < _MOST_W * 1e6:
        raise InputError(f"{path}: avg_idle_power is {value!r}: it is a number of microwatts, {_LEAST_UW:g} (a milliwatt) or "
                         "more")
    return value / 1e6
