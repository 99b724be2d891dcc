"""The file of what steps cost on one device, as learned from profiles: checked JSON, never code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lib import csv_files, files, store
from lib.config.base import parse
from lib.errors import InputError, choices
from lib.predict import model_file
from lib.predict.model_file import Entry, NotNegative, require
from lib.predict.networks.step import TERMS, Costs
from lib.predict.networks.step_learners import Learner
from lib.predict.operators import regressors

SCHEMA = 1
RETRAIN = "learn it again with: python -m lib models --train profiles"


class _Costs(Entry):
    """The rates of one part of a step."""

    rates: dict[str, NotNegative]
    half: NotNegative
    groups: Annotated[int, Field(ge=2)]
    source: str
    scores: dict[str, float]


class _Learner(Entry):
    """A learner of whole steps, and how wrong it was on architectures that were left out."""

    regressor: Annotated[model_file.Boosted | model_file.Student, Field(discriminator="form")]
    half: NotNegative
    scores: dict[str, float]


class _File(Entry):
    """A whole file."""

    version: Literal[1] = Field(alias="schema")
    source: Literal["profiles"]
    device: Annotated[str, Field(pattern=r"^[a-z0-9._-]+$")]
    hardware_id: str
    runs: tuple[str, ...]
    costs: dict[Literal[*TERMS], _Costs]
    learners: dict[str, _Learner]

    @model_validator(mode="after")
    def _whole(self) -> "_File":
        require(set(self.costs) == set(TERMS), f"costs are of {choices(self.costs)}, not of {choices(TERMS)}")
        for name, entry in self.costs.items():
            require(set(entry.rates) == set(TERMS[name]), f"{name} has other rates than {choices(TERMS[name])}")
        return self


@dataclass(frozen=True)
class StepModel:
    """What profiles of one device gave: costs of a step's parts, and learners of whole steps by name."""

    device: str
    hardware_id: str
    runs: tuple[str, ...]
    costs: Mapping[str, Costs]
    learners: Mapping[str, Learner]

    def save(self, path: Path) -> Path:
        """Write the file, in one step."""
        learners = {name: {"regressor": one.regressor.plain(), "half": one.half, "scores": one.scores}
                    for name, one in self.learners.items()}
        content = {"schema": SCHEMA, "source": "profiles", "device": self.device, "hardware_id": self.hardware_id,
                   "runs": list(self.runs), "costs": {name: asdict(costs) for name, costs in self.costs.items()},
                   "learners": learners}
        text = store.encoded_json(content)
        parse(_File, text, f"{path} is not written")
        return files.replace(path, text)

    @classmethod
    def load(cls, path: Path) -> "StepModel":
        """Read a file; InputError names it and what is wrong with it. Runs no code of it."""
        entry = parse(_File, csv_files.bytes_of(path), f"{path} holds no costs of steps, or is damaged; {RETRAIN}")
        if entry.device != path.stem:
            raise InputError(f"{path} holds what steps cost on {entry.device}, not what its name says; rename it")
        try:
            learners = {name: Learner(regressors.of_file(one.regressor), one.half, one.scores)
                        for name, one in entry.learners.items()}
            for one in learners.values():
                one.check()
        except ValueError as error:
            raise InputError(f"{path}: {error}; {RETRAIN}") from None
        return cls(entry.device, entry.hardware_id, entry.runs,
                   {name: Costs(**one.model_dump()) for name, one in entry.costs.items()}, learners)
