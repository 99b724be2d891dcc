"""How many times as fast a network is on a CPU in another layout, element type or runtime, or on other threads.

It follows from what its operators take as usual. Kinds of operators change by different factors (a runtime fuses some into
others), autocast copies the weights in each pass, and every call costs something more.
The factors are learned through the sums of networks that were measured both ways, as those of a composition are
(``networks.sums``), so that the shares of a network's time tell its gain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from lib import paths
from lib.config.definitions import RUNTIMES
from lib.errors import InputError, choices
from lib.measure import machine, worker
from lib.predict.model_file import AtLeastOne, Format, Saved, keyed, require
from lib.predict.networks import composition, fitting
from lib.predict.networks.composition import OPERATOR_KINDS, Composition
from lib.predict.networks.sums import folds, interval, sums
from lib.predict.networks.work import Work

FOLDER = paths.REFERENCE / "models" / "gains"
RETRAIN = "train it again with: python -m lib models --train gains"
TERMS = (*OPERATOR_KINDS, "weights", "calls")
PREPARED = ("start", "calls", "weights_mb")
_WEIGHT_MS, _CALL_MS = 0.15, 0.004  # what a MB of weights and a call more are expected to cost
# Spreads of logs: of a kind's factor about that of all (one is chosen by families left out), of the latter, of what weights and
# calls cost, and of networks about their sums.
_SUMS = sums(len(OPERATOR_KINDS), (0.3, 0.5, 0.8), 0.7, (1.0, 1.0), 0.1, np.ones(len(TERMS)))
_PREPARED_SUMS = sums(len(PREPARED), (1.0, 2.0), 1.0, (), 0.2, np.array([1.0, 0.02, 0.02]))  # usual: s, s a call, s a MB


@dataclass(frozen=True)
class GainCondition:
    """How passes run: mode, element type, layout of images, compiled by torch or not, and the runtime.

    Each of ``instances`` processes side by side has so many ``threads``; 0: all.
    """

    mode: Literal["infer", "train"]
    dtype: Literal["fp32", "bf16", "int8"]
    layout: Literal["contiguous", "channels_last"]
    compiled: bool
    runtime: Literal[*RUNTIMES]
    threads: int
    instances: AtLeastOne

    @property
    def is_of_torch(self) -> bool:
        """Return whether torch runs it eagerly on all threads, in whatever element type and layout."""
        return (self.compiled, self.runtime, self.threads, self.instances) == (False, RUNTIMES[0], 0, 1)

    @property
    def words(self) -> str:
        """Return it in a line, but for the mode."""
        runtime = "torch.compile" if self.compiled else self.runtime
        layout = self.layout if self.runtime == RUNTIMES[0] and not self.compiled else ""
        side_by_side = f"{self.instances} processes of" if self.instances > 1 else "on" if self.threads else ""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return " ".join(filter(None, [*([] if self.is_of_torch else [runtime]), self.dtype, layout, side_by_side, threads]))


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


def fit_preparation(rows: pd.DataFrame) -> Composition:
    """Learn the seconds of exporting or compiling from networks: ``network, family``, PREPARED and ``prepare_s``."""
    return fitting.learn(_PREPARED_SUMS, PREPARED, rows, rows["prepare_s"].to_numpy(float))


def gain_interval(way: Composition, terms: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return by how many times a network of TERMS, or each of several, is faster, at least and at most."""
    return interval(1 / way.total(terms), way.half)


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``measured, predicted, low, high``, gains predicted by the families of other folds, and ``fold``.

    Only ``usable`` rows teach.
    """
    parts = []
    for number, test in enumerate(folds(rows)):
        predicted, low, high = gain_interval(fit(rows[~test & rows["usable"]]), rows[test])
        parts.append(rows[test].assign(fold=number, predicted=predicted, low=low, high=high))
    return pd.concat(parts).loc[rows.index].assign(measured=1 / rows["ratio"])


@dataclass(frozen=True)
class Gains(Saved):
    """What each way gains on the CPU of a machine, as rates of TERMS to the usual ones, and its instructions by element type.

    ``prepare``: seconds of exporting or compiling as rates of PREPARED, by ``preparation``.
    """

    machine: str
    threads: AtLeastOne
    instructions: dict[str, tuple[str, ...]]
    ways: keyed(GainCondition, Composition)
    prepare: dict[str, Composition] = field(default_factory=dict)

    FORMAT: ClassVar = Format("file of gains", RETRAIN)

    def __post_init__(self):
        """Refuse rates of other terms."""
        require(all(set(way.rates) == set(TERMS) for way in self.ways.values()), f"has rates of other terms than {TERMS}")


@cache
def shipped() -> tuple[Gains, ...]:
    """Return what ships, those of this machine first; InputError where none does."""
    files = [Gains.load(path) for path in sorted(FOLDER.glob("*.json"))]
    if not files:
        raise InputError(f"no gains ship in {FOLDER}; {RETRAIN}")
    return tuple(sorted(files, key=lambda known: known.machine != machine.name()))


@dataclass(frozen=True)
class GainAnswer:
    """By how many times a network is predicted to be faster, at least and at most in 90 % of cases, and the evidence.

    ``prepare_s``: of exporting or compiling it first; ``is_borrowed``: it was learned on another machine.
    """

    gain: float
    low: float
    high: float
    evidence: str
    prepare_s: float = 0.0
    is_borrowed: bool = False


def serves(dtype: str) -> bool:
    """Return whether networks tell what an element type gains on this machine's CPU."""
    return any(way.dtype == dtype for known in shipped() if _computes_alike(known, dtype) for way in known.ways)


def _computes_alike(known: Gains, dtype: str) -> bool:
    return machine.instructions(dtype) == known.instructions.get(dtype, ())


def conditions(mode: str) -> dict[GainCondition, Gains]:
    """Return the conditions of a mode that networks were measured in on a CPU like this one, and where."""
    return {way: known for known in reversed(shipped()) for way in known.ways if way.mode == mode
            and _computes_alike(known, way.dtype) and (not (way.threads or way.instances > 1) or _has_cores(known))}


def _has_cores(known: Gains) -> bool:
    return known.threads == worker.usable_cores()


def preparation(way: GainCondition) -> str:
    """Return what is prepared for a condition, one name for those that share it."""
    return f"{'torch.compile' if way.compiled else way.runtime} {way.dtype}"


def _refusal(way: GainCondition) -> str:
    """Return why nothing is known of a condition on this CPU."""
    measured = [known for known in shipped() if way in known.ways]
    if not measured:
        there = choices(dict.fromkeys(other.words for known in shipped() for other in known.ways if other.mode == way.mode))
        return f"no networks were measured on a CPU in {way.words}; there are: {there}"
    if not any(_computes_alike(known, way.dtype) for known in measured):
        own = choices(machine.instructions(way.dtype)) or f"neither, where {way.dtype} is computed by other instructions"
        theirs = choices(measured[0].instructions.get(way.dtype, ())) or "none for it"
        return f"networks were measured in {way.dtype} on a CPU with {theirs}, and this one has {own}"
    return (f"fewer threads and several processes were measured on a CPU with {choices(known.threads for known in measured)} "
            f"cores, and this one has {worker.usable_cores()}")


def answer(work: Work, shares: Mapping[str, float], way: GainCondition) -> GainAnswer:
    """Predict the gain of a condition for the work of a network in fp32 as torch runs it by default; ``shares``: its ``terms``.

    Raises InputError for what no networks were measured in, and for a CPU that computes it by other instructions than theirs,
    or has other cores where threads or instances are asked for.
    """
    known = conditions(way.mode).get(way)
    if known is None:
        raise InputError(_refusal(way))
    gain, prepared = known.ways[way], known.prepare.get(preparation(way))
    scores, times = gain.scores, gain_interval(gain, shares)
    evidence = (f"{way.words} gains {times[0]:.2f} ({times[1]:.2f} to {times[2]:.2f}); "
                f"from {gain.networks} networks that ran both ways on {known.machine} with "
                f"{known.threads} threads; of families left out the factor errs by {scores['mape']:.0f} % (a constant by "
                f"{scores['constant_mape']:.0f} %), its sign is right in {scores['sign']:.0f} % of cases (always: "
                f"{scores['constant_sign']:.0f} %)")
    return GainAnswer(*times, evidence, prepared.total(preparation_terms(work)) if prepared else 0.0,
                      known.machine != machine.name())


def preparation_terms(work: Work) -> dict[str, float]:
    """Return PREPARED of a network."""
    return dict(zip(PREPARED, (1.0, float(work.calls), work.weight_bytes / 1e6), strict=True))
