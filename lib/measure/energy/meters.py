"""Power meters: NVML for GPUs, RAPL for processors, recorded logs of Jetson boards."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lib.errors import InputError, beginning, refused
from lib.measure.energy import power_log
from lib.measure.energy.power_log import PowerLog
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.gpus.card import Card, number_of

PERIOD_S = 0.05
DRIVER_PERIOD_S = 0.125  # of NVML, whose values are as old as that
CHOICE = "LIB_METER"  # environment variable that names another meter than the device's own
_POWERCAP = Path("/sys/class/powercap")


def _nothing() -> float:
    return math.nan


@dataclass
class Meter:
    """A meter: its sampling period, the power now in W, and an energy counter in J (NaN: none).

    ``reason`` says why there is no meter.
    """

    name: str
    period_s: float
    power_w: Callable[[], float] = _nothing
    counter_j: Callable[[], float] = _nothing
    reason: str = ""


def nvml(index: int) -> Meter:
    """Return the meter of an NVIDIA GPU.

    The power is instantaneous if the driver has it, else a mean of about a second. GPUs before
    Volta have no energy counter.
    """
    with beginning(f"no power of GPU {index}"):
        card = Card(index)
    instantaneous = ([card.nvml.NVML_FI_DEV_POWER_INSTANT],)

    def thousandths(name: str) -> float:
        value = card.value(name)
        return math.nan if value is None else value / 1e3

    def power_w() -> float:
        fields = card.value("nvmlDeviceGetFieldValues", arguments=instantaneous)
        if fields and fields[0].nvmlReturn == card.nvml.NVML_SUCCESS:
            return fields[0].value.uiVal / 1e3
        return thousandths("nvmlDeviceGetPowerUsage")

    counter_j = partial(thousandths, "nvmlDeviceGetTotalEnergyConsumption")
    if math.isnan(power_w()) and math.isnan(counter_j()):
        raise InputError(f"no power of GPU {index}: its driver gives neither power nor energy")
    return Meter(f"nvml:{index}", DRIVER_PERIOD_S, power_w, counter_j)


def rapl(folder: Path) -> Meter:
    """Return the meter of the processor packages by the powercap counters (readable by root)."""
    zones = []

    def numbers(name: str) -> np.ndarray:
        return np.array([float((zone / name).read_text()) for zone in zones])

    with refused("the energy counters of the processor cannot be read: "):
        for zone in sorted(folder.glob("intel-rapl:[0-9]*")):
            name = zone / "name"
            is_package = name.is_file() and name.read_text().startswith("package-")
            if is_package and zone.name.count(":") == 1:  # psys counts the packages again
                zones.append(zone)
        if not zones:
            raise InputError(f"no energy counters of the processor in {folder}")
        ranges, last_uj, total_j = numbers("max_energy_range_uj"), numbers("energy_uj"), 0.0

    def counter_j() -> float:
        nonlocal last_uj, total_j
        try:
            before, last_uj = last_uj, numbers("energy_uj")
        except (OSError, ValueError):
            return math.nan
        total_j += float((last_uj - before + ranges * (last_uj < before)).sum()) / 1e6  # wraps
        return total_j

    return Meter("rapl", PERIOD_S, counter_j=counter_j)


def replay(log: PowerLog, name: str, clock: Callable[[], float] = time.perf_counter) -> Meter:
    """Return a meter that plays a recorded log from now on, by any clock in s; NaN at its end."""
    begin, passed_s = clock(), log.at_s - log.at_s[0]

    def power_w() -> float:
        return float(np.interp(clock() - begin, passed_s, log.power_w, right=math.nan))

    period_s = max(PERIOD_S, float(np.median(np.diff(passed_s))))
    return Meter(f"replay of {name}", period_s, power_w)


def absent(reason: str) -> Meter:
    """Return a meter that measures nothing, for a reason."""
    return Meter(NOT_MEASURED, math.inf, reason=reason)


def open_meter(device: str) -> Meter:
    """Return the meter of a device (``cpu``, ``cuda:0``), or ``absent`` with a reason.

    LIB_METER in the environment chooses instead: ``none``, or the recorded log of a board.
    Raises InputError for a log that is none.
    """
    if choice := os.environ.get(CHOICE):
        if choice == "none":
            return absent(f"{CHOICE} is none")
        return replay(power_log.read(Path(choice)), Path(choice).name)
    number = number_of(device)
    try:
        if number is not None:
            return nvml(number)
        return rapl(_POWERCAP) if device == "cpu" else absent(f"no meter of {device} is known")
    except InputError as error:
        return absent(str(error))
