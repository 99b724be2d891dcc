"""The record of an environment of the matrix: machine, software, clocks of its GPU before and after, and free notes."""

from pathlib import Path

from lib import locks, paths, store
from lib.errors import InputError
from lib.measure import machine
from lib.measure.gpus.card import Card, number_of

_CLOCKS = {"sm_mhz": 1, "memory_mhz": 2}  # NVML's numbers of the clocks
_WHEN = {"": "nvmlDeviceGetClockInfo", "most_": "nvmlDeviceGetMaxClockInfo", "set_": "nvmlDeviceGetApplicationsClock"}


def path_of(environment: str) -> Path:
    """Return where the records of an environment lie, one a call of the matrix."""
    return paths.MATRIX / f"environment_{environment}.json"


def clocks(device: str) -> store.Facts:
    """Return the clocks of a GPU now and at most, in MHz, and its power limit, in W; empty for other devices.

    What the driver does not tell is left out; where NVML cannot be asked, ``reason`` says why.
    """
    number = number_of(device)
    if number is None:
        return {}
    try:
        card = Card(number)
    except InputError as error:
        return {"reason": str(error)}
    answers = {f"{when}{clock}": card.value(function, arguments=(kind,)) for when, function in _WHEN.items()
               for clock, kind in _CLOCKS.items()}
    limit_mw = card.value("nvmlDeviceGetEnforcedPowerLimit")
    answers |= {"limit_w": None if limit_mw is None else limit_mw / 1e3}
    return {name: answer for name, answer in answers.items() if answer is not None}


def add(environment: str, device: str, started_utc: str, before: store.Facts, notes: str = "") -> Path:
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
