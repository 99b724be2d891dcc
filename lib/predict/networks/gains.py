"""How many times as fast a network is on a CPU in another layout or element type, from what its operators take as usual.

Kinds of operators change by different factors, autocast copies the weights in each pass, and every call costs something more.
The factors are learned through the sums of networks that were measured both ways, as those of a composition are
(``networks.sums``), so that the shares of a network's time tell its gain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError, choices
from lib.measure import machine
from lib.predict.model_file import AtLeastOne, Format, Saved, keyed, require
from lib.predict.networks import composition, fitting, sums
from lib.predict.networks.composition import OPERATOR_KINDS, Composition
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.work.run_config import RunConfig

FOLDER = paths.REFERENCE / "models" / "gains"
RETRAIN = "train it again with: python -m lib models --train gains"
TERMS = (*OPERATOR_KINDS, "weights", "calls")
_WEIGHT_MS, _CALL_MS = 0.15, 0.004  # what a MB of weights and a call more are expected to cost
# Spreads of logs: of a kind's factor about that of all (one is chosen by families left out), of the latter, of what weights and
# calls cost, and of networks about their sums.
_SUMS = sums.sums(len(OPERATOR_KINDS), (0.3, 0.5, 0.8), 0.7, (1.0, 1.0), 0.1, np.ones(len(TERMS)))


def terms(work: Work, operators: pd.DataFrame) -> dict[str, float]:
    """Return TERMS of a network of fp32 in the usual layout, in parts of what its operators take.

    ``operators`` are those of ``work`` as they are predicted (``composition.predicted_operators``).
    """
    cost_ms = composition.kinds_ms(operators)
    beside_ms = {"weights": work.weight_bytes / 1e6 * _WEIGHT_MS, "calls": work.calls * _CALL_MS}
    return {name: ms / sum(cost_ms.values()) for name, ms in (cost_ms | beside_ms).items()}


def fit(rows: pd.DataFrame) -> Composition:
    """Learn the gain of one condition from networks: ``network, family``, TERMS, and ``ratio`` (time over usual time).

    Families left out give the interval and choose the spread, so score it in outer folds. Raises InputError for fewer than
    four networks.
    """
    return fitting.learn(_SUMS, TERMS, rows, rows["ratio"].to_numpy(float))


def gain_interval(fitted: Composition, terms: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return by how many times a network of TERMS, or each of several, is faster, at least and at most."""
    return sums.interval(1 / fitted.total(terms), fitted.half)


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``measured, predicted, low, high``, gains predicted by the families of other folds, and ``fold``.

    Only ``usable`` rows teach.
    """
    parts = []
    for number, test in enumerate(sums.folds(rows)):
        predicted, low, high = gain_interval(fit(rows[~test & rows["usable"]]), rows[test])
        parts.append(rows[test].assign(fold=number, predicted=predicted, low=low, high=high))
    return pd.concat(parts).loc[rows.index].assign(measured=1 / rows["ratio"])


@dataclass(frozen=True)
class Gains(Saved):
    """What each way gains on the CPU of a machine, as rates of TERMS to the usual ones, and how it computed in bf16."""

    machine: str
    threads: AtLeastOne
    bf16_instructions: tuple[str, ...]
    ways: keyed(RunConfig, Composition, ("mode", "dtype", "layout"))

    FORMAT: ClassVar = Format("file of gains", RETRAIN)

    def __post_init__(self):
        """Refuse rates of other terms, and what is no condition."""
        for condition in self.ways:
            condition.check()
        require(all(set(fitted.rates) == set(TERMS) for fitted in self.ways.values()), f"has rates of other terms than {TERMS}")


@cache
def shipped() -> Gains:
    """Return what ships; InputError where none does."""
    paths_of = sorted(FOLDER.glob("*.json"))
    if not paths_of:
        raise InputError(f"no gains ship in {FOLDER}; {RETRAIN}")
    return Gains.load(paths_of[0])


@dataclass(frozen=True)
class GainAnswer:
    """By how many times a network is predicted to be faster, half the 90 % interval of its log, and the evidence."""

    gain: float
    half: float
    evidence: str


def serves(dtype: str) -> bool:
    """Return whether networks tell what an element type gains on this machine's CPU."""
    model = shipped()
    computed_so = dtype != "bf16" or machine.instructions("bf16") == model.bf16_instructions
    return computed_so and any(condition.dtype == dtype for condition in model.ways)


def answer(work: Work, cost_model: CostModel, dtype: str, layout: str) -> GainAnswer:
    """Predict the gain of an element type and layout for the work of a network in fp32 as it is laid out by default.

    Raises InputError for what no networks were measured in, and for bf16 on a CPU that computes it otherwise than theirs.
    """
    model, condition = shipped(), RunConfig(mode=work.mode, dtype=dtype, layout=layout)
    if condition not in model.ways:
        raise InputError(f"no networks were measured on a CPU in {dtype} {layout}; there are: "
                         f"{choices(f'{other.dtype} {other.layout}' for other in model.ways if other.mode == work.mode)}")
    if not serves(dtype):
        instructions = choices(machine.instructions("bf16")) or \
            "neither, where bf16 is computed by other instructions and is often slower"
        raise InputError(f"networks were measured in bf16 on a CPU with {choices(model.bf16_instructions)}, and this one has "
                         f"{instructions}")
    fitted = model.ways[condition]
    gain, low, high = gain_interval(fitted, terms(work, composition.predicted_operators(work, cost_model)))
    scores = fitted.scores
    evidence = (f"{dtype} {layout} gains {gain:.2f} ({low:.2f} to {high:.2f}); "
                f"from {fitted.networks} networks that ran both ways on {model.machine} with "
                f"{model.threads} threads; of families left out the factor errs by {scores['mape']:.0f} % (a constant by "
                f"{scores['constant_mape']:.0f} %), its sign is right in {scores['sign']:.0f} % of cases (always: "
                f"{scores['constant_sign']:.0f} %)")
    return GainAnswer(gain, fitted.half, evidence)
