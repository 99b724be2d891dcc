"""Logs of a Jetson's INA3221 sensor, one line per sample: ``YYYYMMDD-HH:MM:SS.ffffff,mV,mA``."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from lib import csv_files, store
from lib.errors import InputError

STAMP = "%Y%m%d-%H:%M:%S.%f"
_LEAST_W, _MOST_W = 1e-3, 1000.0


@dataclass(frozen=True)
class PowerLog:
    """Samples in the order of time: seconds since the epoch, watts; notes on what was left out."""

    at_s: np.ndarray
    power_w: np.ndarray
    notes: tuple[str, ...] = ()


def seconds(text: str) -> float:
    """Return a time stamp as seconds since the epoch, taken as UTC; ValueError for another text."""
    return datetime.strptime(f"{text}+0000", f"{STAMP}%z").timestamp()


def read(path: Path) -> PowerLog:
    """Read a log without a torn last line, and without samples after which the clock jumped back.

    Raises InputError for a file with fewer than two samples, and names a line that is no sample.
    """
    try:
        lines = csv_files.bytes_of(path).decode().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable power log: {error}") from None
    notes, samples = [], []
    if lines and not lines[-1].endswith("\n"):
        notes.append("the last line is torn")
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            stamp, millivolts, milliamperes = line.strip().split(",")
            power_w = float(millivolts) * float(milliamperes) / 1e6
            if not 0 <= power_w <= _MOST_W:  # NaN, too
                raise ValueError(f"{power_w:g} W")
            samples.append((seconds(stamp), power_w))
        except ValueError as error:
            raise InputError(f"{path}: line {number} is {line.strip()[:60]!r} ({error}); "
                             "a sample is YYYYMMDD-HH:MM:SS.ffffff,mV,mA") from None
    at_s, power_w = np.array(samples).reshape(-1, 2).T
    later = at_s > np.maximum.accumulate(np.concatenate([[-np.inf], at_s]))[:-1]
    if not later.all():
        notes.append(f"{(~later).sum()} samples are not later than those before them "
                     "(the clock jumped back)")
    if later.sum() < 2:
        raise InputError(f"{path} holds {later.sum()} samples; a power log has 2 or more")
    return PowerLog(at_s[later], power_w[later], tuple(notes))


def read_idle_w(path: Path) -> float:
    """Read the mean power of an idle board, in W, from ``{"avg_idle_power": uW}``; InputError."""
    content = store.read_json(path)
    value = content.get("avg_idle_power") if isinstance(content, dict) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not _LEAST_W <= value / 1e6 < _MOST_W:
        raise InputError(f"{path}: avg_idle_power is {value!r}: it is a number of microwatts, "
                         f"{_LEAST_W * 1e6:g} (a milliwatt) or more")
    return value / 1e6
