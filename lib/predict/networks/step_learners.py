"""What profiles of a device tell of steps: their costs in a file, and learners of whole steps from their description alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from lib.errors import InputError, choices
from lib.predict.learners import mlp
from lib.predict.model_file import Device, Format, NotNegative, Saved, require
from lib.predict.networks import step, sums
from lib.predict.networks.work import Work
from lib.predict.operators.regressors import Boosted, Student, nonnegative_rates, shares
from lib.predict.scores import half_interval, score

TERMS = "flops bytes trained input step".split()
FEATURES = "flops bytes intensity weights operators batch fresh".split()
_ROUNDS, _WIDTH, _NETS = 60, 16, 3
_FEW = {"num_leaves": 4, "min_data_in_leaf": 3, "bagging_freq": 0}  # of trees on tens of runs
_BEYOND = 0.3  # in log time: how far an answer may go beyond the factors of the training runs


def frames(items: Sequence[Work]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return TERMS, of which a step's time is a sum, and FEATURES, logarithms of its sizes; a row for each step."""
    terms = [(item.flops, item.bytes, sum(item.trained), item.input_values, 1.0) for item in items]
    sizes = [(item.flops, item.bytes, item.flops / item.bytes, item.weight_bytes, item.modules, item.batch_size,
              item.fresh_bytes + 1e6) for item in items]
    return pd.DataFrame(terms, columns=TERMS, dtype=float), np.log(pd.DataFrame(sizes, columns=FEATURES, dtype=float))


@dataclass(frozen=True)
class Learner:
    """One learner, half its interval in log time, and its scores on architectures that were left out."""

    regressor: Annotated[Boosted | Student, Field(discriminator="form")]
    half: NotNegative = 0.0
    scores: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        """Refuse other terms or features than this program makes of steps."""
        require(self.regressor.terms == TERMS and set(self.regressor.names) <= set(FEATURES),
                "a learner has other terms or features than this program makes of steps")

    def predict(self, items: Sequence[Work]) -> np.ndarray:
        """Return ms of each step."""
        return _predicted(self.regressor, *frames(items))


def _predicted(regressor: Boosted | Student, terms: pd.DataFrame, x: pd.DataFrame) -> np.ndarray:
    return regressor.predict(terms.to_numpy(), x[regressor.names].to_numpy(), np.zeros(len(x), bool))


def _perceptron(terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray) -> Student:
    costs = nonnegative_rates(terms, measured_ms)
    total, share = shares(terms.to_numpy(), costs)
    factor = np.log(measured_ms / total)
    nets = mlp.train(np.concatenate([x.to_numpy(), share], axis=1), factor, np.ones(len(x)), range(_NETS), width=_WIDTH)
    bounds = (float(factor.min()) - _BEYOND, float(factor.max()) + _BEYOND)
    return Student(list(terms), costs, list(x), {}, bounds, nets.centre, nets.scale, nets.layers)


_TRAIN = {"GBT": lambda terms, x, measured_ms: Boosted.fit(terms, x, measured_ms, np.ones(len(x)), _ROUNDS, **_FEW),
          "MLP": _perceptron}
NAMES = tuple(_TRAIN)


def left_out(name: str, items: Sequence[Work], measured_ms: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """Return ms of each step, each group (an architecture, a workload) predicted by what was learned without it."""
    terms, x = frames(items)
    return sums.cross_predicted(sums.each(groups), lambda test: _predicted(
        _TRAIN[name](terms[~test], x[~test], measured_ms[~test]), terms[test], x[test]))


def fit(items: Sequence[Work], measured_ms: np.ndarray, groups: Sequence[str]) -> dict[str, Learner]:
    """Return each learner (NAMES) of profiled steps; interval and scores come from groups left out in turn."""
    learners = {}
    for name in NAMES:
        predicted = left_out(name, items, measured_ms, groups)
        learners[name] = Learner(_TRAIN[name](*frames(items), measured_ms), half_interval(np.log(measured_ms / predicted)),
                                 score(measured_ms, predicted))
    return learners


@dataclass(frozen=True)
class StepModel(Saved):
    """What profiles of one device gave: costs of a step's parts, and learners of whole steps by name."""

    device: Device
    hardware_id: str
    runs: tuple[str, ...]
    costs: dict[Literal[*step.TERMS], step.Costs]
    learners: dict[str, Learner]
    source: Literal["profiles"] = field(default="profiles", kw_only=True)

    FORMAT: ClassVar = Format("file of what steps cost", "learn it again with: python -m lib models --train profiles")

    def __post_init__(self):
        """Refuse costs of other parts or terms than those of a step."""
        require(set(self.costs) == set(step.TERMS), f"costs are of {choices(self.costs)}, not of {choices(step.TERMS)}")
        for name, costs in self.costs.items():
            require(set(costs.rates) == set(step.TERMS[name]), f"{name} has other rates than {choices(step.TERMS[name])}")
            require(costs.groups >= step.LEAST_GROUPS, f"{name} was learned from fewer than {step.LEAST_GROUPS} groups")

    @classmethod
    def load(cls, path: Path) -> "StepModel":
        """Read a file; InputError names it and what is wrong with it. Runs no code of it."""
        model = super().load(path)
        if model.device != path.stem:
            raise InputError(f"{path} holds what steps cost on {model.device}, not what its name says; rename it")
        return model
