"""The file of what steps cost on one device, as learned from profiles: checked JSON, never code."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from lib.errors import InputError, choices
from lib.predict.model_file import Device, Format, Saved, require
from lib.predict.networks.step import LEAST_GROUPS, TERMS, Costs
from lib.predict.networks.step_learners import Learner


@dataclass(frozen=True)
class StepModel(Saved):
    """What profiles of one device gave: costs of a step's parts, and learners of whole steps by name."""

    device: Device
    hardware_id: str
    runs: tuple[str, ...]
    costs: dict[Literal[*TERMS], Costs]
    learners: dict[str, Learner]
    source: Literal["profiles"] = field(default="profiles", kw_only=True)

    FORMAT: ClassVar = Format("file of what steps cost", "learn it again with: python -m lib models --train profiles")

    def __post_init__(self):
        """Refuse costs of other parts or terms than those of a step."""
        require(set(self.costs) == set(TERMS), f"costs are of {choices(self.costs)}, not of {choices(TERMS)}")
        for name, costs in self.costs.items():
            require(set(costs.rates) == set(TERMS[name]), f"{name} has other rates than {choices(TERMS[name])}")
            require(costs.groups >= LEAST_GROUPS, f"{name} was learned from fewer than {LEAST_GROUPS} groups")

    @classmethod
    def load(cls, path: Path) -> "StepModel":
        """Read a file; InputError names it and what is wrong with it. Runs no code of it."""
        model = super().load(path)
        if model.device != path.stem:
            raise InputError(f"{path} holds what steps cost on {model.device}, not what its name says; rename it")
        return model
