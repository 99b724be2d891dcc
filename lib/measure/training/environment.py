"""The record of an environment of the matrix: machine, software, clocks of its GPU, and notes."""

from pathlib import Path

from lib import locks, paths, store
from lib.errors import InputError
from lib.measure import machine
from lib.measure.gpus.card import Card, number_of

_CLOCKS = {"sm_mhz": 1, "memory_mhz": 2}  # NVML's numbers of the clocks
_FUNCTIONS = {"": "nvmlDeviceGetClockInfo", "most_": "nvmlDeviceGetMaxClockInfo",
              "set_": "nvmlDeviceGetApplicationsClock"}


def path_of(environment: str) -> Path:
    """Return the path of the records of an environment, one per call of the matrix."""
    return paths.MATRIX / f"environment_{environment}.json"


def clocks(device: str) -> store.Facts:
    """Return the clocks of a GPU now and at most, in MHz, and its power limit, in W.

    Empty for other devices; without NVML, ``reason`` says why.
    """
    number = number_of(device)
    if number is None:
        return {}
    try:
        card = Card(number)
    except InputError as error:
        return {"reason": str(error)}
    facts = {f"{prefix}{clock}": card.value(function, arguments=(kind,))
             for prefix, function in _FUNCTIONS.items() for clock, kind in _CLOCKS.items()}
    limit_mw = card.value("nvmlDeviceGetEnforcedPowerLimit")
    facts["limit_w"] = None if limit_mw is None else limit_mw / 1e3
    return {name: value for name, value in facts.items() if value is not None}


def add(environment: str, device: str, started_utc: str, before: store.Facts, notes: str) -> Path:
    """Add a record of what was measured on a device; ``before`` are its clocks at the start."""
    path = path_of(environment)
    record = {"started_utc": started_utc, "ended_utc": store.utc_now(), "device": device,
              "notes": notes, "clocks_at_start": before, "clocks_at_end": clocks(device),
              **machine.identity(), **store.git_state()}
    with locks.writer(path, locks.PATIENCE_S):
        records = store.read_json(path) if path.exists() else []
        return store.write_json([*records, record], path)
