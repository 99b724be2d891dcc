"""The file of what ways of running gain on a machine's CPU: checked JSON, never code."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from lib import paths
from lib.errors import InputError
from lib.predict.gains.model import Gain, Way
from lib.predict.model_file import AtLeastOne, Format, Saved, keyed

FOLDER = paths.REFERENCE / "models" / "gains"
RETRAIN = "train it again with: python -m lib models --train gains"


@dataclass(frozen=True)
class Gains(Saved):
    """What each way gains on the CPU of a machine, and with which instructions it computed in bf16."""

    machine: str
    threads: AtLeastOne
    bf16_instructions: tuple[str, ...]
    ways: keyed(Way, Gain)

    FORMAT: ClassVar = Format("file of gains", RETRAIN)


@cache
def shipped() -> Gains:
    """Return what ships; InputError where none does."""
    paths_of = sorted(FOLDER.glob("*.json"))
    if not paths_of:
        raise InputError(f"no gains ship in {FOLDER}; {RETRAIN}")
    return Gains.load(paths_of[0])
