"""An NVIDIA card as NVML, NVIDIA's management library, sees it."""

import sys
import time
from contextlib import suppress
from functools import cache
from typing import Any

from lib import locks
from lib.errors import InputError, refused

_THROTTLES = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)",
              0x80: "power brake"}  # heat and supply; a power limit is a setting
_MULTIPROCESSORS = 1  # NVML_CLOCK_SM
_NOBODY = (0, 6)  # no samples: NVML_SUCCESS as an error, and NVML_ERROR_NOT_FOUND
_SHARE_S = 1.0  # over which a process's share is averaged; the driver samples some times a second


def management() -> Any:
    """Return NVML, initialised; InputError without its package, a driver, or one of its version."""
    try:
        import pynvml
    except ImportError:
        raise InputError("no NVML: the package nvidia-ml-py is not installed") from None
    with refused("no NVML: "):
        pynvml.nvmlInit()
    return pynvml


@cache
def driver() -> str | None:
    """Return the version of NVIDIA's driver; None without one."""
    with suppress(InputError):
        nvml = management()
        with suppress(nvml.NVMLError):
            return nvml.nvmlSystemGetDriverVersion()
    return None


def number_of(device: str) -> int | None:
    """Return the number of a CUDA device id (``cuda`` is ``cuda:0``); None for any other device."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def cuda_uuid(number: int) -> str:
    """Return the UUID of ``cuda:<number>`` as torch tells it; empty where it does not."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(number), "uuid", ""))
    return f"GPU-{uuid.removeprefix('GPU-')}" if uuid else ""


class Card:
    """The card ``cuda:<number>`` of this process; values that the driver lacks are None or empty.

    Raises InputError where NVML cannot be used or does not know the card.
    """

    def __init__(self, number: int):
        self.nvml, listed, torch = management(), locks.card(number), sys.modules.get("torch")
        # CUDA may count cards in another order. A part of a card (MIG) has a UUID of its own.
        in_use = torch and torch.cuda.is_initialized() and not listed.startswith("MIG-")
        name = (cuda_uuid(number) if in_use else "") or locks.uuid(listed)
        with refused(f"NVML does not know cuda:{number}: "):
            if name.isdecimal():
                self.handle = self.nvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(name)

    def value(self, *names: str, arguments: tuple = ()) -> Any:
        """Return the answer of the first function that this driver and version know; else None."""
        for function in names:
            try:
                return getattr(self.nvml, function)(self.handle, *arguments)
            except (AttributeError, self.nvml.NVMLError):
                continue
        return None

    @property
    def clock_mhz(self) -> float | None:
        """Return the clock of the multiprocessors now, in MHz."""
        return self.value("nvmlDeviceGetClockInfo", arguments=(_MULTIPROCESSORS,))

    @property
    def throttled(self) -> str:
        """Return why the card is slower than its settings allow; empty for no reason."""
        bits = self.value("nvmlDeviceGetCurrentClocksEventReasons",
                          "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return ", ".join(reason for bit, reason in _THROTTLES.items() if bits & bit)

    def processes(self) -> dict[int, float | None] | None:
        """Return each process's share of the card in the last second, by the host's process id.

        None if the driver does not tell which processes compute; a share is None if unknown.
        """
        running = self.value("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        pids, used = [int(process.pid) for process in running], {}
        since_us = int((time.time() - _SHARE_S) * 1e6)
        try:
            for sample in self.nvml.nvmlDeviceGetProcessUtilization(self.handle, since_us):
                used.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        except (AttributeError, self.nvml.NVMLError) as error:
            if getattr(error, "value", None) not in _NOBODY:
                return dict.fromkeys(pids)
        return {pid: sum(used[pid]) / len(used[pid]) if pid in used else 0.0 for pid in pids}
