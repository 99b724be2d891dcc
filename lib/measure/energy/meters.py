"""Meters of power and energy: NVML for GPUs, RAPL for processors, INA3221 sensors of boards, recorded logs, or none and why."""

import math
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lib.errors import InputError, choices, one_line
from lib.measure.energy import power_log
from lib.measure.energy.trace import NOT_MEASURED, Trace
from lib.measure.gpus.card import Card

PERIOD_S = 0.05
_DRIVER_PERIOD_S = 0.125  # an NVML reading takes some tenths of a millisecond, and its values are as old as that
CHOICE = "LIB_METER"  # the environment variable that names another meter than that of the device
_POWERCAP = Path("/sys/class/powercap")
_HWMON = Path("/sys/class/hwmon")
_WHOLE_BOARD = "VDD_IN"  # the label of the channel that feeds the whole board, where there is one
_NOT_CONNECTED = ("", "NC")  # labels of channels that feed nothing, beside labelled ones


class Meter:
    """A meter of power, of energy, or of both: ``name``, and how often reading it makes sense."""

    name: str
    period_s: float

    def power_w(self) -> float:
        """Return the power now, in W; NaN without such a reading."""
        return math.nan

    def counter_j(self) -> float:
        """Return the energy since any moment, in J; NaN without such a counter."""
        return math.nan


class Nvml(Meter):
    """One NVIDIA GPU: instantaneous power where the driver gives it (else a mean of about a second), and its energy counter."""

    period_s = _DRIVER_PERIOD_S

    def __init__(self, index: int):
        try:
            card = Card(index)
        except InputError as error:
            raise InputError(f"no power of GPU {index}: {error}") from None
        self._nvml, self._handle, self.name = card.nvml, card.handle, f"nvml:{index}"
        if math.isnan(self.power_w()) and math.isnan(self.counter_j()):
            raise InputError(f"no power of GPU {index}: its driver gives neither power nor energy")

    def power_w(self) -> float:
        """Return the power now, in W; NaN where the driver does not tell."""
        try:
            value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [self._nvml.NVML_FI_DEV_POWER_INSTANT])[0]
            if value.nvmlReturn == self._nvml.NVML_SUCCESS:
                return value.value.uiVal / 1e3
            return self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3
        except self._nvml.NVMLError:
            return math.nan

    def counter_j(self) -> float:
        """Return the GPU's energy counter, in J; NaN where it has none (before Volta)."""
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        except self._nvml.NVMLError:
            return math.nan


class _Number:
    """A number that the kernel shows as a file, opened once: to open it each time costs many times the reading."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> float:
        return float(os.pread(self._file, 64, 0))


class Rapl(Meter):
    """The processor packages of this machine, by the counters of Linux's powercap; they may be read by root alone."""

    name, period_s = "rapl", PERIOD_S

    def __init__(self, folder: Path = _POWERCAP):
        zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1
                 and _text(zone / "name").startswith("package-")]  # psys counts the packages again
        if not zones:
            raise InputError(f"no energy counters of the processor in {folder}")
        try:
            self._ranges = [_Number(zone / "max_energy_range_uj")() for zone in zones]
            self._counters = [_Number(zone / "energy_uj") for zone in zones]
            self._last = [counter() for counter in self._counters]
        except (OSError, ValueError) as error:
            raise InputError(f"the energy counters of the processor cannot be read: {one_line(error)}") from None
        self._total = 0.0

    def counter_j(self) -> float:
        """Return the energy since the meter was opened, in J, NaN if unreadable; a counter that begins anew is followed."""
        try:
            values = [counter() for counter in self._counters]
        except (OSError, ValueError):
            return math.nan
        steps = [value - last + (size if value < last else 0.0)
                 for value, last, size in zip(values, self._last, self._ranges, strict=True)]
        self._last, self._total = values, self._total + sum(steps) / 1e6
        return self._total


class Ina3221(Meter):
    """The sensors of a board such as NVIDIA's Jetson, by Linux's hwmon: the channel of the whole board, else the sum of all.

    Boards without that channel (AGX Orin) are summed as jetson_stats does; ``whole`` refuses them.
    """

    period_s = PERIOD_S

    def __init__(self, folder: Path = _HWMON, *, whole: bool = False):
        channels = [path for sensor in sorted(folder.glob("hwmon*")) if _text(sensor / "name") == "ina3221"
                    for path in sorted(sensor.glob("in[1-3]_input")) if (sensor / _current(path)).exists()]
        if not channels:
            raise InputError(f"no INA3221 sensor in {folder}")
        labels = {path: _text(path.with_name(path.name.replace("input", "label"))) for path in channels}
        board = [path for path in channels if labels[path] == _WHOLE_BOARD][:1]
        if whole and not board:
            raise InputError(f"no INA3221 channel {_WHOLE_BOARD} of the whole board in {folder}; there are: "
                             f"{choices(filter(None, labels.values())) or 'channels without a label'}")
        used = board or [path for path in channels if labels[path] not in _NOT_CONNECTED] or channels
        self.name = "ina3221 " + " + ".join(labels[path] or f"channel {path.name[2]}" for path in used)
        try:
            self._rails = [(_Number(path), _Number(path.with_name(_current(path)))) for path in used]
            [volts() * amperes() for volts, amperes in self._rails]
        except (OSError, ValueError) as error:
            raise InputError(f"the INA3221 sensor in {folder} cannot be read: {one_line(error)}") from None

    def power_w(self) -> float:
        """Return the power now, in W, from mV and mA; NaN where the sensor does not answer."""
        try:
            return sum(volts() * amperes() for volts, amperes in self._rails) / 1e6
        except (OSError, ValueError):
            return math.nan


class Replay(Meter):
    """A recorded trace played again from the moment it is opened, by any clock in s; NaN once it is over."""

    def __init__(self, trace: Trace, name: str, clock: Callable[[], float] = time.perf_counter):
        self._trace, self.name, self._clock = trace, f"replay of {name}", clock
        self._begin, self._length = clock(), float(trace.at_s[-1] - trace.at_s[0])
        self.period_s = max(PERIOD_S, float(np.median(np.diff(trace.at_s))))

    def _at(self, values: np.ndarray) -> float:
        passed_s = self._clock() - self._begin
        if passed_s > self._length:
            return math.nan
        return float(np.interp(self._trace.at_s[0] + passed_s, self._trace.at_s, values))

    def power_w(self) -> float:
        """Return the power that was recorded at this moment, in W."""
        return self._at(self._trace.power_w)

    def counter_j(self) -> float:
        """Return the counter that was recorded at this moment, in J."""
        return self._at(self._trace.counter_j)


class Absent(Meter):
    """No meter; ``reason`` says why."""

    name, period_s = NOT_MEASURED, math.inf

    def __init__(self, reason: str):
        self.reason = reason


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _current(path: Path) -> str:
    return path.name.replace("in", "curr", 1)


def open_meter(device: str) -> Meter:
    """Return the meter of a device (``cpu``, ``cuda:0``); one that cannot be read gives ``Absent`` with the reason.

    LIB_METER in the environment chooses instead: ``none``, or a recorded log of an INA3221, which is played again.
    Raises InputError for a log that is none.
    """
    if choice := os.environ.get(CHOICE):
        path = Path(choice)
        return Absent(f"{CHOICE} is none") if choice == "none" else Replay(power_log.read(path).trace, path.name)
    kind, _, index = device.partition(":")
    reasons, ways = [], {"cuda": (lambda: Nvml(int(index or 0)), Ina3221), "cpu": (Rapl, lambda: Ina3221(whole=True))}
    for way in ways.get(kind, ()):
        try:
            return way()
        except InputError as error:
            reasons.append(str(error))
    return Absent("; ".join(reasons) or f"no meter of {device} is known")
