"""Cards that are not there: torch's and NVML's answers about them, in the test and in the workers that it starts.

Times are those of the card's own clock, exact whatever the host does, and a call keeps the host waiting as long. What happens
to the cards stands in a file that all processes read.
"""

import functools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil

from lib import files
from lib.measure import machine, timing
from lib.measure.gpus import card
from lib.measure.operators import visit

FILE = "FAKE_GPUS"
NOT_SUPPORTED, NOT_FOUND = 3, 6
_calls = Counter()


class NVMLError(Exception):
    """An error of NVML with its code."""

    def __init__(self, value, text="Not Supported"):
        super().__init__(text)
        self.value = value


def _write(path, content):
    files.replace(Path(path), json.dumps(content).encode())


def forget():
    """Forget what this process knows of its hardware: the cards of a box are changed, or gone."""
    machine.hardware.cache_clear()
    card.driver.cache_clear()


class Box:
    """A box with some cards and a version of NVML; a test may change each card while it runs."""

    def __init__(self, folder, count=2, nvml="as it is", **everywhere):
        self.path = Path(folder) / "gpus.json"
        _calls.clear()
        _write(self.path, {"nvml": nvml, "cards": [
            {"uuid": f"GPU-{number}000", "name": "Fake A", "free": 8e9, "mode": 0, "stranger": None, "share": 0.0,
             "reasons": 0, "clock": 1410, "breaks_after": 0, "gone": False, **everywhere}
            for number in range(count)]})
        forget()

    def change(self, number, **values):
        content = json.loads(self.path.read_text())
        content["cards"][number] |= values
        _write(self.path, content)
        forget()


def read():
    return json.loads(Path(os.environ[FILE]).read_text())


def here():
    return [card for card in read()["cards"] if not card["gone"]]


def _pids(uuid):
    path = Path(os.environ[FILE]).with_name(f"{uuid}.pids")
    return [int(pid) for pid in path.read_text().split() if psutil.pid_exists(int(pid))] if path.exists() else []


class Nvml:
    """NVML as recorded: an index is a handle; ``old`` is a version before the newest names, ``shy`` tells of no processes."""

    NVMLError, NVML_SUCCESS, NVML_FI_DEV_POWER_INSTANT = NVMLError, 0, 186

    def __getattr__(self, name):
        version, new = read()["nvml"], ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetProcessUtilization")
        if name.startswith("__") or (version == "old" and name in new):
            raise AttributeError(name)
        if version == "another" and name == "nvmlInit":
            raise NVMLError(18, "Driver/library version mismatch")
        if version == "shy" and "Process" in name:
            raise NVMLError(NOT_SUPPORTED)
        if version == "not found" and name == "nvmlDeviceGetProcessUtilization":
            raise NVMLError(NOT_FOUND)
        return functools.partial(self._answer, name)

    @staticmethod
    def _answer(name, *arguments):
        cards = here()
        card = cards[arguments[0]] if arguments and isinstance(arguments[0], int) and arguments[0] < len(cards) else {}
        if name == "nvmlDeviceGetHandleByIndex" and (not card or card.get("lost")):
            raise NVMLError(15, "GPU is lost")
        if name == "nvmlDeviceGetHandleByUUID" and arguments[0] not in [one["uuid"] for one in cards]:
            raise NVMLError(NOT_FOUND, "Not Found")
        running = [*_pids(card.get("uuid")), *([card["stranger"]] if card.get("stranger") else [])]
        answers = {
            "nvmlInit": None, "nvmlDeviceGetCount": len(cards), "nvmlSystemGetDriverVersion": "570.0",
            **dict.fromkeys(("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetIndex"), arguments and arguments[0]),
            "nvmlDeviceGetUUID": card.get("uuid"), "nvmlDeviceGetName": card.get("name"),
            "nvmlDeviceGetCudaComputeCapability": (8, 0), "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8e9, used=1e9),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100 * card.get("share", 0)),
            "nvmlDeviceGetHandleByUUID": next((index for index, one in enumerate(cards) if one["uuid"] in arguments), None),
            "nvmlDeviceGetClockInfo": card.get("clock"), "nvmlDeviceGetComputeMode": card.get("mode"),
            "nvmlDeviceGetCurrentClocksEventReasons": card.get("reasons"),
            "nvmlDeviceGetCurrentClocksThrottleReasons": card.get("reasons"),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in running],
            "nvmlDeviceGetProcessUtilization": [
                SimpleNamespace(pid=pid, smUtil=100 * (card["share"] if pid == card["stranger"] else 0.9))
                for pid in running] if card else []}
        if name not in answers:
            raise NVMLError(NOT_SUPPORTED)
        return answers[name]


def _card(device):
    return here()[device if isinstance(device, int) else int(str(device).partition(":")[2] or 0)]


def _set_device(device):
    card = _card(device)
    if card["mode"] and card["stranger"]:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    with open(Path(os.environ[FILE]).with_name(f"{card['uuid']}.pids"), "a") as file:
        file.write(f"{os.getpid()}\n")


def _properties(device):
    card = _card(device)
    return SimpleNamespace(name=card["name"], total_memory=8 * 2**30, major=8, minor=0, multi_processor_count=108,
                           uuid=card["uuid"], L2_cache_size=2**22)


def _runnable(ops, device):
    """Return a call that takes as long as its bytes; after so many calls the card breaks, and is gone for good."""
    import torch

    uuid = _card(device)["uuid"]

    def call():
        _calls[uuid] += 1
        content = read()
        card = next(card for card in content["cards"] if card["uuid"] == uuid)
        if 0 < card["breaks_after"] < _calls[uuid]:
            card["gone"] = True
            _write(os.environ[FILE], content)
            raise RuntimeError("CUDA error: unspecified launch failure")
        return [torch.empty(spec.shape, device="meta") for spec in ops[0].outputs]
    call.ms = 2.0 + ops[0].outputs[0].shape[0] % 7 / 10
    return call


def _time_calls(call, calls, device, before=None):
    call()
    ms = getattr(call, "ms", 1.0)
    time.sleep(ms * calls / 1e3)
    return ms * (1 + time.perf_counter_ns() % 1009 * 1e-6)  # no clock gives the same digits twice


def put(patch):
    """Have a pytest.MonkeyPatch put what stands in for the cards in their place."""
    cuda = {"is_available": lambda: True, "device_count": lambda: len(here()), "get_device_properties": _properties,
            "set_device": _set_device, "mem_get_info": lambda device: (int(_card(device)["free"]), 8 * 2**30),
            "synchronize": lambda *_: None, "empty_cache": lambda: None}
    for name, value in cuda.items():
        patch.setattr(f"torch.cuda.{name}", value)
    patch.setattr("torch.backends.cudnn.version", lambda: 9)
    patch.setattr(visit.rebuild, "runnable", _runnable)
    for module in (timing, visit):
        patch.setattr(module, "time_calls", _time_calls)
    patch.setattr(visit, "repeated", lambda call, *_: timing.Repeat(call, 1, 1, True))
    patch.setitem(sys.modules, "pynvml", None if read()["nvml"] == "absent" else Nvml())
