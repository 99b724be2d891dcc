"""An NVIDIA card, as NVIDIA's management library (NVML) sees it, of whichever version that is."""

import sys
import time
from typing import Any

from lib import locks
from lib.errors import InputError, refused

_THROTTLES = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake"}
_MODES = {1: "exclusive mode", 2: "prohibited mode", 3: "exclusive mode"}
_MULTIPROCESSORS = 1  # NVML_CLOCK_SM
_NOBODY = (0, 6)  # no samples, for which nvidia-ml-py raises NVMLError(NVML_SUCCESS), and NVML_ERROR_NOT_FOUND
_SHARE_S = 1.0  # over which the driver's samples of each process are averaged: they come some times a second


def management() -> Any:
    """Return NVIDIA's management library (NVML), ready.

    Raises InputError where its package is missing, there is no driver, or the library is of another version than the driver.
    """
    try:
        import pynvml
    except ImportError:
        raise InputError("no NVML: the package nvidia-ml-py is not installed") from None
    with refused("no NVML: "):
        pynvml.nvmlInit()
    return pynvml


def number_of(device: str) -> int | None:
    """Return the number of a CUDA device id (``cuda`` is ``cuda:0``); None for any other device."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def cuda_uuid(number: int) -> str:
    """Return the UUID of the card ``cuda:<number>`` as CUDA tells it to this process; empty where torch does not."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(number), "uuid", ""))
    return f"GPU-{uuid.removeprefix('GPU-')}" if uuid else ""


class Card:
    """The card ``cuda:<number>`` of this process, as NVML sees it.

    Raises InputError where NVML cannot be used or has lost the card. Values that the driver or this version of NVML lacks are
    None or empty.
    """

    def __init__(self, number: int):
        self.nvml, listed, torch = management(), locks.card(number), sys.modules.get("torch")
        # CUDA may count cards in another order; before it is in use, and for a part of a card (MIG), a variable lists the cards
        in_use = torch and torch.cuda.is_initialized() and not listed.startswith("MIG-")
        name = (cuda_uuid(number) if in_use else "") or locks.uuid(listed)
        with refused(f"NVML does not know cuda:{number}: "):
            self.handle = (self.nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else
                           self.nvml.nvmlDeviceGetHandleByUUID(name))

    def value(self, *names: str, arguments: tuple = ()) -> Any:
        """Return the answer of the first of some functions, newest name first, that this version and driver know; else None."""
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
        """Return why the card is slower than its settings allow: heat or its supply. Its power limit is not among them."""
        bits = self.value("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return ", ".join(reason for bit, reason in _THROTTLES.items() if bits & bit)

    @property
    def mode(self) -> str:
        """Return the exclusive or prohibited mode; empty if all may use the card."""
        return _MODES.get(self.value("nvmlDeviceGetComputeMode") or 0, "")

    def processes(self) -> dict[int, float | None] | None:
        """Return the share of the card's time that each process used in the last second, by the host's process ids.

        None if the driver does not tell which processes compute on the card; a share is None if it is unknown.
        """
        running = self.value("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        pids, used = [int(process.pid) for process in running], {}
        try:
            for sample in self.nvml.nvmlDeviceGetProcessUtilization(self.handle, int((time.time() - _SHARE_S) * 1e6)):
                used.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        except AttributeError:
            return dict.fromkeys(pids)
        except self.nvml.NVMLError as error:
            if getattr(error, "value", None) not in _NOBODY:
                return dict.fromkeys(pids)
        return {pid: sum(used[pid]) / len(used[pid]) if pid in used else 0.0 for pid in pids}
