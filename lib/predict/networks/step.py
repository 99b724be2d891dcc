"""A predicted training step or evaluated batch: the phases of a profile, and the costs of loader, copy and optimizer.

Forward and backward come from the operators and their composition. The costs of loader, copy and optimizer are fitted to
profiles, as non-negative rates of what they move. Without a profile of the device, the optimizer takes the time of its
operators, and the copy an assumed bandwidth.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.predict.model_file import Count, Device, Format, NotNegative, Saved, require
from lib.predict.networks.composition import Estimate, Times
from lib.predict.networks.sums import cross_predicted, each, interval
from lib.predict.operators.regressors import nonnegative_rates
from lib.predict.scores import half_interval, score
from lib.work.training import PHASES

STEP_PHASES = PHASES
PASSES = ("forward", "backward", "parallel")  # parts of a step that its passes are
SUM_OF_PARTS = "sum of its parts"  # the prediction, in a table ``steps``
LINE = "linear in FLOPs and bytes"  # the simple rule beside it
TERMS = {"loader_wait": ("batches", "samples", "mb", "resized_mb"), "h2d": ("batches", "mb"),
         "optimizer": ("operators_ms", "calls")}
_FIXED = ("operators_ms",)  # no profile changes its rate, 1: few runs do not tell what one operator of ours costs
LEAST_GROUPS = 2
_LEAST_MS = 1e-4
Terms = Mapping[str, float]


@dataclass(frozen=True)
class StepPart:
    """One part of a step in ms, with its 90 % interval, and how it is known."""

    predicted_ms: float
    low_ms: float
    high_ms: float
    source: str = "predicted"

    def times(self, factor: float) -> "StepPart":
        """Return a share of this part."""
        return StepPart(self.predicted_ms * factor, self.low_ms * factor, self.high_ms * factor, self.source)


@dataclass(frozen=True)
class Step(Times):
    """A predicted step: ``parts`` by their names (STEP_PHASES; an evaluated batch has no backward and optimizer), in ms.

    ``passes`` is the estimate of forward and backward together; ``memory_mb`` what the step needs, the optimizer's state too.
    """

    parts: Mapping[str, StepPart]
    passes: Estimate
    memory_mb: float

    @property
    def predicted_ms(self) -> float:
        """Return the sum of the parts."""
        return sum(part.predicted_ms for part in self.parts.values())

    @property
    def low_ms(self) -> float:
        """Return the low end of the interval, see ``high_ms``."""
        return self.predicted_ms - self._reach_ms("low_ms")

    @property
    def high_ms(self) -> float:
        """Return the high end: errors of the passes and of each other part are taken to be independent of one another."""
        return self.predicted_ms + self._reach_ms("high_ms")

    def _reach_ms(self, end: str) -> float:
        return math.hypot(*(getattr(part, end) - part.predicted_ms for part in (self.passes, *self._beside)))

    @property
    def _beside(self) -> list[StepPart]:
        return [part for name, part in self.parts.items() if name not in PASSES]

    @property
    def beside_ms(self) -> float:
        """Return what a step takes beside forward and backward."""
        return sum(part.predicted_ms for part in self._beside)

    @property
    def longest(self) -> str:
        """Return the name of the longest part."""
        return max(self.parts, key=lambda name: self.parts[name].predicted_ms)

    @property
    def columns(self) -> dict[str, float]:
        """Return the parts in ms as columns."""
        return {f"{name}_ms": part.predicted_ms for name, part in self.parts.items()}


@dataclass(frozen=True)
class Costs:
    """What a part costs: rates (ms) of its TERMS, half its interval in log time, and the source of both.

    ``groups``: how many workloads or architectures were left out in turn for ``half`` and ``scores``; 0: none was measured.
    """

    rates: dict[str, NotNegative]
    half: NotNegative
    groups: Count
    source: str
    scores: dict[str, float] = field(default_factory=dict)

    def predict(self, terms: Terms, half: float = 0.0) -> StepPart:
        """Return the part with these terms; ``half`` stands in for an interval that was not measured."""
        total = max(_LEAST_MS, sum(rate * terms[name] for name, rate in self.rates.items()))
        half = self.half if self.groups else max(half, self.half)
        return StepPart(*interval(total, half), self.source)


@dataclass(frozen=True)
class StepModel(Saved):
    """The costs of a step's parts, learned from profiles of one device."""

    device: Device
    hardware_id: str
    runs: tuple[str, ...]
    costs: dict[Literal[*TERMS], Costs]
    source: Literal["profiles"] = field(default="profiles", kw_only=True)

    FORMAT: ClassVar = Format("file of what steps cost", "learn it again with: python -m lib models --train profiles", 2)

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


def fit(name: str, terms: pd.DataFrame, measured_ms: np.ndarray, groups: Sequence[str], source: str) -> Costs:
    """Fit the costs of a part to profiled runs (rows); its interval and scores come from groups left out in turn.

    Raises InputError for fewer than two groups.
    """
    terms, measured, count = terms[list(TERMS[name])], np.asarray(measured_ms, float), len(set(groups))
    if count < LEAST_GROUPS:
        raise InputError(f"costs of a step are fitted to two workloads or more of different models, not to {count}")
    predicted = cross_predicted(each(groups), lambda test: terms[test].to_numpy() @ _rates(terms[~test], measured[~test]))
    predicted = np.maximum(predicted, _LEAST_MS)
    rates = dict(zip(terms, _rates(terms, measured).tolist(), strict=True))
    return Costs(rates, half_interval(np.log(measured / predicted)), count, source, score(measured, predicted))


def _rates(terms: pd.DataFrame, measured: np.ndarray) -> np.ndarray:
    """Return non-negative rates of the terms by least squares of the relative error, 1 for those of _FIXED."""
    fixed = terms.columns.isin(_FIXED)
    rates = fixed.astype(float)
    rates[~fixed] = nonnegative_rates(terms.loc[:, ~fixed], measured, terms.to_numpy(float) @ rates)
    return rates
