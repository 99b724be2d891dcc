"""Meters of power and energy: NVML for GPUs, RAPL for processors, sensors of Jetson boards, recorded logs, or none and why."""

import math
import os
import runpy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from lib import paths
from lib.errors import InputError, beginning, refused
from lib.measure.energy import power_log
from lib.measure.energy.trace import NOT_MEASURED, Trace
from lib.measure.gpus.card import Card, number_of

PERIOD_S = 0.05
DRIVER_PERIOD_S = 0.125  # an NVML reading takes some tenths of a millisecond, and its values are as old as that
CHOICE = "LIB_METER"  # the environment variable that names another meter than that of the device
_POWERCAP = Path("/sys/class/powercap")


def _or_nan(read: Callable[[], float]) -> Callable[[], float]:
    """Return a reader that gives NaN where the sensor does not answer."""
    def reading() -> float:
        try:
            return read()
        except (OSError, ValueError):
            return math.nan
    return reading


def _no_number() -> float:
    return math.nan


@dataclass
class Meter:
    """A meter: how often reading it makes sense, the power now in W, and the energy since any moment in J (NaN: not told).

    ``reason`` says why there is no meter, and is empty for one that reads; ``replayed`` whether it plays a recorded log again.
    """

    name: str
    period_s: float
    power_w: Callable[[], float] = _no_number
    counter_j: Callable[[], float] = _no_number
    reason: str = ""
    replayed: bool = False


def nvml(index: int) -> Meter:
    """Return the meter of an NVIDIA GPU: instantaneous power where the driver gives it (else a mean of about a second), energy.

    GPUs before Volta have no energy counter.
    """
    with beginning(f"no power of GPU {index}"):
        card = Card(index)

    def thousandths(name: str) -> float:
        value = card.value(name)
        return math.nan if value is None else value / 1e3

    def power_w() -> float:
        instant = card.value("nvmlDeviceGetFieldValues", arguments=([card.nvml.NVML_FI_DEV_POWER_INSTANT],))
        if instant and instant[0].nvmlReturn == card.nvml.NVML_SUCCESS:
            return instant[0].value.uiVal / 1e3
        return thousandths("nvmlDeviceGetPowerUsage")

    counter_j = partial(thousandths, "nvmlDeviceGetTotalEnergyConsumption")
    if math.isnan(power_w()) and math.isnan(counter_j()):
        raise InputError(f"no power of GPU {index}: its driver gives neither power nor energy")
    return Meter(f"nvml:{index}", DRIVER_PERIOD_S, power_w, counter_j)


def rapl(folder: Path) -> Meter:
    """Return the meter of the processor packages, by the counters of Linux's powercap; they may be read by root alone."""
    zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1
             and _text(zone / "name").startswith("package-")]  # psys counts the packages again
    if not zones:
        raise InputError(f"no energy counters of the processor in {folder}")

    def numbers(name: str) -> np.ndarray:
        return np.array([float((zone / name).read_text()) for zone in zones])

    with refused("the energy counters of the processor cannot be read: "):
        ranges, last_uj, total_j = numbers("max_energy_range_uj"), numbers("energy_uj"), 0.0

    @_or_nan
    def counter_j() -> float:
        nonlocal last_uj, total_j
        before, last_uj = last_uj, numbers("energy_uj")
        total_j += float((last_uj - before + ranges * (last_uj < before)).sum()) / 1e6  # one that begins anew is followed
        return total_j

    return Meter("rapl", PERIOD_S, counter_j=counter_j)


@cache
def collector() -> dict[str, Any]:
    """Return the names in params/collect_power.py, which runs alone on a board and has the table of the boards' rails."""
    return runpy.run_path(str(paths.PARAMS / "collect_power.py"))


def jetson(folders: Sequence[Path]) -> Meter:
    """Return the meter of a Jetson board, by Linux's hwmon (JetPack 4: iio): the rails whose sum is its module or all of it.

    ``BOARDS`` in params/collect_power.py says which rails these are. Raises InputError for a board that is not in it.
    """
    try:
        _, channels = collector()["find_channels"](folders)
    except collector()["InputError"] as error:
        raise InputError(str(error)) from None

    def power_w() -> float:
        return sum(float(channel.volts.read_text()) * float(channel.amperes.read_text()) for channel in channels) / 1e6

    with refused(f"the sensors in {channels[0].volts.parent} cannot be read: "):
        power_w()
    return Meter(f"{channels[0].chip} {' + '.join(channel.label for channel in channels)}", PERIOD_S, _or_nan(power_w))


def replay(trace: Trace, name: str, clock: Callable[[], float] = time.perf_counter) -> Meter:
    """Return a meter that plays a recorded trace again from now on, by any clock in s; NaN once it is over."""
    begin, passed_s = clock(), trace.at_s - trace.at_s[0]

    def reader(values: np.ndarray) -> Callable[[], float]:
        return lambda: float(np.interp(clock() - begin, passed_s, values, right=math.nan))

    return Meter(f"replay of {name}", max(PERIOD_S, float(np.median(np.diff(passed_s)))), reader(trace.power_w),
                 reader(trace.counter_j), replayed=True)


def absent(reason: str) -> Meter:
    """Return what stands for no meter."""
    return Meter(NOT_MEASURED, math.inf, reason=reason)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def open_meter(device: str) -> Meter:
    """Return the meter of a device (``cpu``, ``cuda:0``); one that cannot be read is ``absent`` with the reason.

    LIB_METER in the environment chooses instead: ``none``, or a recorded log of a board, which is played again.
    Raises InputError for a log that is none.
    """
    if choice := os.environ.get(CHOICE):
        path = Path(choice)
        return absent(f"{CHOICE} is none") if choice == "none" else replay(power_log.read(path).trace, path.name)
    board = partial(jetson, collector()["SENSORS"])
    ways = {"cuda": (lambda: nvml(number_of(device)), board), "cpu": (lambda: rapl(_POWERCAP), board)}
    reasons = []
    for way in ways.get(device.partition(":")[0], ()):
        try:
            return way()
        except InputError as error:
            reasons.append(str(error))
    return absent("; ".join(reasons) or f"no meter of {device} is known")
