"""Learners of a whole step from its description alone: boosted trees and a perceptron, trained on collected profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lib.predict.learners import mlp
from lib.predict.networks.work import Work
from lib.predict.operators.regressors import LEAST_MS, Boosted, OneHot, Student, nonnegative_rates, shares
from lib.predict.operators.validation import conformal, score

TERMS = ["flops", "bytes", "trained", "input", "step"]
FEATURES = ["flops", "bytes", "intensity", "weights", "operators", "batch", "fresh"]
NAMES = ("GBT", "MLP")
_ROUNDS, _WIDTH, _NETS = 60, 16, 3
_FEW = {"num_leaves": 4, "min_data_in_leaf": 3, "bagging_freq": 0}  # of trees on tens of runs
_BEYOND = 0.3  # in log time: how far an answer may go beyond the factors of the training runs


def description(item: Work) -> dict[str, float]:
    """Return what is known of a step without a model of its operators (FEATURES), as logarithms."""
    return {"flops": np.log(item.flops), "bytes": np.log(item.bytes), "intensity": np.log(item.flops / item.bytes),
            "weights": np.log(item.weight_bytes), "operators": np.log(item.modules), "batch": np.log(item.batch_size),
            "fresh": np.log(item.fresh_bytes + 1e6)}


def terms(item: Work) -> dict[str, float]:
    """Return TERMS, of which a step's time is a sum before it is learned by what factor it departs from that."""
    return {"flops": item.flops, "bytes": item.bytes, "trained": float(sum(item.trained)), "input": item.input_values,
            "step": 1.0}


@dataclass(frozen=True)
class Learner:
    """One learner, half its interval in log time, and its scores on architectures that were left out."""

    regressor: Boosted | Student
    half: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)

    def predict(self, items: Sequence[Work]) -> np.ndarray:
        """Return ms of each step."""
        return _predicted(self.regressor, *frames(items))

    def check(self) -> None:
        """Raise ValueError where it takes other terms or features than this program makes of steps."""
        if self.regressor.terms != TERMS or not set(self.regressor.names) <= set(FEATURES):
            raise ValueError("a learner has other terms or features than this program makes of steps")


def frames(items: Sequence[Work]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms and features of steps, a row each."""
    return (pd.DataFrame([terms(item) for item in items], columns=TERMS),
            pd.DataFrame([description(item) for item in items], columns=FEATURES))


def _predicted(regressor: Boosted | Student, own_terms: pd.DataFrame, x: pd.DataFrame) -> np.ndarray:
    return regressor.predict(own_terms.to_numpy(), x[regressor.names].to_numpy(), np.zeros(len(x), bool))


def _trained(name: str, own_terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray) -> Boosted | Student:
    if name == "GBT":
        return Boosted.of(own_terms, x, measured_ms, np.ones(len(x)), _ROUNDS, **_FEW)
    costs = nonnegative_rates(own_terms, measured_ms)
    total, share = shares(own_terms.to_numpy(), costs)
    factor = np.log(measured_ms / np.maximum(total, LEAST_MS))
    nets = mlp.train(np.concatenate([x.to_numpy(), share], axis=1), factor, np.ones(len(x)), range(_NETS), width=_WIDTH)
    bounds = (float(factor.min()) - _BEYOND, float(factor.max()) + _BEYOND)
    return Student(list(own_terms), list(x), costs, nets, OneHot({}), bounds)


def left_out(name: str, items: Sequence[Work], measured_ms: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """Return ms of each step, each group (an architecture, a workload) predicted by what was learned without it."""
    (own_terms, x), groups, predicted = frames(items), np.asarray(groups), np.full(len(items), np.nan)
    for group in sorted(set(groups)):
        test = groups == group
        predicted[test] = _predicted(_trained(name, own_terms[~test], x[~test], measured_ms[~test]), own_terms[test], x[test])
    return predicted


def fit(items: Sequence[Work], measured_ms: np.ndarray, groups: Sequence[str]) -> dict[str, Learner]:
    """Return each learner (NAMES) of profiled steps; interval and scores come from groups left out in turn."""
    learners = {}
    for name in NAMES:
        predicted = left_out(name, items, measured_ms, groups)
        _, halves = conformal(np.log(measured_ms / predicted), predicted, bins=1)
        learners[name] = Learner(_trained(name, *frames(items), measured_ms), halves[0], score(measured_ms, predicted))
    return learners
