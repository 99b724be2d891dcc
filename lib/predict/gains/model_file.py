"""The file of what ways of running gain on a machine's CPU: checked JSON, never code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lib import csv_files, files, paths, store
from lib.config.base import parse
from lib.errors import InputError
from lib.predict.gains.model import TERMS, Gain, Way
from lib.predict.model_file import Count, Entry, NotNegative, Positive, require

FOLDER = paths.REFERENCE / "models" / "gains"
RETRAIN = "train it again with: python -m lib models --train gains"


class _Way(Entry):
    """One way, and what was learned of it."""

    mode: Literal["infer", "train"]
    dtype: Literal["fp32", "bf16"]
    layout: Literal["contiguous", "channels_last"]
    ratios: dict[str, Positive]
    half: NotNegative
    networks: Count
    scores: dict[Literal["sign", "sign_large", "n_large", "mape", "median", "bias", "constant_mape", "n", "coverage",
                         "every_row_mape", "every_row_n", "noise"], float]

    @model_validator(mode="after")
    def _whole(self) -> "_Way":
        require(set(self.ratios) == set(TERMS), f"has ratios of {sorted(self.ratios)}, not of {sorted(TERMS)}")
        return self


class _File(Entry):
    """A whole file."""

    version: Literal[1] = Field(alias="schema")
    machine: str
    threads: Annotated[int, Field(ge=1)]
    bf16_instructions: tuple[str, ...]
    ways: Annotated[tuple[_Way, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Gains:
    """What each way gains on the CPU of a machine, and with which instructions it computed in bf16."""

    machine: str
    threads: int
    bf16_instructions: tuple[str, ...]
    ways: Mapping[Way, Gain]

    def save(self, path: Path) -> Path:
        """Write the file, in one step."""
        ways = [{**asdict(way), **asdict(gain)} for way, gain in self.ways.items()]
        text = store.encoded_json({"schema": 1, "machine": self.machine, "threads": self.threads,
                                   "bf16_instructions": self.bf16_instructions, "ways": ways})
        parse(_File, text, f"{path} is not written")
        return files.replace(path, text)

    @classmethod
    def load(cls, path: Path) -> "Gains":
        """Read a file; InputError names it and what is wrong with it."""
        entry = parse(_File, csv_files.bytes_of(path), f"{path} holds no gains, or is damaged; {RETRAIN}")
        ways = {Way(one.mode, one.dtype, one.layout): Gain(one.ratios, one.half, one.networks, one.scores)
                for one in entry.ways}
        return cls(entry.machine, entry.threads, entry.bf16_instructions, ways)


@cache
def shipped() -> Gains:
    """Return what ships; InputError where none does."""
    paths_of = sorted(FOLDER.glob("*.json"))
    if not paths_of:
        raise InputError(f"no gains ship in {FOLDER}; {RETRAIN}")
    return Gains.load(paths_of[0])
