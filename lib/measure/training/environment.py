"""The record of an environment of the matrix: machine, software, clocks of its GPU before and after, and free notes."""

from pathlib import Path
from typing import Any

from lib import locks, paths, store
from lib.errors import InputError, one_line
from lib.measure import machine

_CLOCKS = {"sm_mhz": 1, "memory_mhz": 2}  # NVML's numbers of the clocks


def path_of(environment: str) -> Path:
    """Return where the records of an environment lie, one a call of the matrix."""
    return paths.MATRIX / f"environment_{environment}.json"


def clocks(device: str) -> dict[str, Any]:
    """Return the clocks of a GPU now and at most, in MHz, and its power limit, in W; empty for other devices.

    What the driver does not tell is left out; where NVML cannot be asked, ``reason`` says why.
    """
    if not device.startswith("cuda"):
        return {}
    try:
        import pynvml

        pynvml.nvmlInit()
        card = locks.card(int(device.partition(":")[2] or 0))
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(card)) if card.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID(card)
    except (ImportError, InputError) as error:
        return {"reason": str(error)}
    except pynvml.NVMLError as error:
        return {"reason": one_line(error)}
    questions = {**{name: (pynvml.nvmlDeviceGetClockInfo, kind) for name, kind in _CLOCKS.items()},
                 **{f"most_{name}": (pynvml.nvmlDeviceGetMaxClockInfo, kind) for name, kind in _CLOCKS.items()},
                 **{f"set_{name}": (pynvml.nvmlDeviceGetApplicationsClock, kind) for name, kind in _CLOCKS.items()},
                 "limit_w": (lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,)}
    answers = {}
    for name, (question, *arguments) in questions.items():
        try:
            answers[name] = question(handle, *arguments)
        except pynvml.NVMLError:
            continue
    return answers


def add(environment: str, device: str, started_utc: str, before: dict[str, Any], notes: str = "") -> Path:
    """Add a record of what was just measured in an environment on a device; ``before`` are its clocks at the start.

    Raises InputError where the file holds no records.
    """
    path = path_of(environment)
    record = {"started_utc": started_utc, "ended_utc": store.utc_now(), "device": device, "notes": notes, **machine.identity(),
              "clocks_at_start": before, "clocks_at_end": clocks(device), **store.git_state()}
    with locks.writer(path, locks.PATIENCE_S):
        records = store.read_json(path) if path.exists() else []
        if not isinstance(records, list):
            raise InputError(f"{path} holds no records of an environment; move it away")
        return store.write_json([*records, record], path)
