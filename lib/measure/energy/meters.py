"""Meters of power and energy: NVML for GPUs, RAPL for processors, or none with the reason."""

import math
from pathlib import Path
from typing import Protocol

from lib.errors import InputError, one_line

PERIOD_S = 0.02
NOT_MEASURED = "not measured"
_POWERCAP = Path("/sys/class/powercap")


class Meter(Protocol):
    """What can be asked for power: ``name``, how often that makes sense, and both readings, NaN where it has not the one."""

    name: str
    period_s: float

    def power_w(self) -> float:
        """Return the power now, in W."""

    def counter_j(self) -> float:
        """Return the energy since any moment, in J."""


class Nvml:
    """One NVIDIA GPU: instantaneous power where the driver gives it (else a mean of about a second), and its energy counter."""

    period_s = PERIOD_S

    def __init__(self, index: int):
        import pynvml

        self._nvml, self.name = pynvml, f"nvml:{index}"
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            raise InputError(f"no power of GPU {index}: {one_line(error)}") from None

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


class Rapl:
    """The processor packages of this machine, by the counters of Linux's powercap; they may be read by root alone."""

    name, period_s = "rapl", PERIOD_S

    def __init__(self, folder: Path = _POWERCAP):
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        if not self._zones:
            raise InputError(f"no energy counters of the processor in {folder}")
        try:
            self._ranges = [self._read(zone, "max_energy_range_uj") for zone in self._zones]
            self._last = [self._read(zone, "energy_uj") for zone in self._zones]
        except (OSError, ValueError) as error:
            raise InputError(f"the energy counters of the processor cannot be read: {one_line(error)}") from None
        self._total = 0.0

    @staticmethod
    def _read(zone: Path, name: str) -> float:
        return float((zone / name).read_text())

    def power_w(self) -> float:
        """Return NaN: there are counters alone."""
        return math.nan

    def counter_j(self) -> float:
        """Return the energy since the meter was opened, in J; a counter that begins anew is followed."""
        values = [self._read(zone, "energy_uj") for zone in self._zones]
        steps = [value - last + (size if value < last else 0.0)
                 for value, last, size in zip(values, self._last, self._ranges, strict=True)]
        self._last, self._total = values, self._total + sum(steps) / 1e6
        return self._total


class Absent:
    """No meter; ``reason`` says why."""

    period_s = math.inf

    def __init__(self, reason: str):
        self.name, self.reason = NOT_MEASURED, reason

    def power_w(self) -> float:
        """Return NaN."""
        return math.nan

    def counter_j(self) -> float:
        """Return NaN."""
        return math.nan


def open_meter(device: str) -> Meter:
    """Return the meter of a device (``cpu``, ``cuda:0``); one that cannot be read gives ``Absent`` with the reason."""
    kind, _, index = device.partition(":")
    try:
        if kind == "cuda":
            return Nvml(int(index or 0))
        if kind == "cpu":
            return Rapl()
    except InputError as error:
        return Absent(str(error))
    return Absent(f"no meter of {device} is known")
