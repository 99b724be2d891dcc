"""What the composed model of a card answers for a network, and on what evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.predict.composed import features, held_out
from lib.predict.composed.features import Condition
from lib.predict.composed.model_file import Composed
from lib.predict.networks import kinds

_PRECISIONS = {"fp16": ("amp_fp16", "amp_bf16"), "bf16": ("amp_bf16", "amp_fp16")}  # cards compute both at one rate
LAYOUTS = {"contiguous": "nchw", "channels_last": "nhwc"}


@dataclass(frozen=True)
class Answer:
    """The time of a network in ms with its interval, the condition that was learned, and the evidence in words.

    ``outside``: the batch size is none that was learned from; ``origins``: of whom it was, where not of the card (share 1).
    """

    predicted_ms: float
    low_ms: float
    high_ms: float
    outside: bool
    condition: Condition
    evidence: str
    origins: Mapping[str, float]


def condition_of(composed: Composed, dtype: str, mode: str = "infer", layout: str = "contiguous", compiled: bool = False,
                 torch: str = "") -> Condition | None:
    """Return the learned condition that a question is about, of the newest torch or the one given; None: none was learned."""
    several = [one for one in composed.conditions if one.mode == mode and one.compiled == compiled
               and one.layout == LAYOUTS[layout] and one.precision in _PRECISIONS.get(dtype, ()) and torch in ("", one.torch)]

    def order(one: Condition) -> tuple:
        return -_PRECISIONS[dtype].index(one.precision), version(one.torch)

    return max(several, key=order, default=None)


def answer(composed: Composed, rows: pd.DataFrame, batch_size: int, condition: Condition) -> Answer:
    """Predict a network (``rows.of_network``) at a batch size under a learned condition; InputError for another."""
    if condition not in composed.conditions:
        raise InputError(f"{composed.device} was not learned under {condition.name}; there are: "
                         f"{choices(one.name for one in composed.conditions)}")
    fitted = composed.conditions[condition]
    terms = features.terms(rows, float(batch_size), composed.chip, condition)
    half = held_out.half_of(composed.device, condition, kinds.of_rows(rows)) if fitted.basis == "many" else None
    origins = {f"networks on {len(composed.siblings)} cards": 1.0} if fitted.basis == "others" else {}
    return Answer(*fitted.predict(terms, batch_size, half), fitted.outside(batch_size), condition,
                  evidence(composed, condition), origins)


def evidence(composed: Composed, condition: Condition) -> str:
    """Say what an answer rests on."""
    fitted = composed.conditions[condition]
    scores, source = fitted.scores, composed.source
    how = f"{condition.precision.replace('_', ' ')}, {condition.layout}, {condition.way}, torch {condition.torch}"
    errors = f"MAPE {scores['mape']:.1f} %, median {scores['median']:.1f} %, {scores['within_10']:.0f} % within 10 %"
    if fitted.basis == "others":
        return (f"no network was measured on it so; learned from {source} of {choices(composed.siblings)} ({how}), at rates "
                f"that its vendor states, as its power limit lets it sustain them; of a card and families left out {errors}")
    if fitted.basis == "few":
        return (f"{scores['n']:,.0f} of its own networks ({how}) correct what was learned from {source}; of families left out "
                f"in turn {errors}")
    return f"learned from {scores['n']:,.0f} networks of {source} ({how}); of families left out {errors}"


def gain(composed: Composed, rows: pd.DataFrame, batch_size: int, before: Mapping[str, Any],
         after: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return how many times as fast a network is ``after`` as ``before`` (arguments of ``condition_of``), and the evidence.

    Both are of one version of torch, the newest that was learned both ways; None where there is none.
    """
    releases = sorted({one.torch for one in composed.conditions}, key=version, reverse=True)
    for release in releases:
        pair = [condition_of(composed, **how, torch=release) for how in (before, after)]
        if all(pair):
            first, second = (answer(composed, rows, batch_size, one) for one in pair)
            return first.predicted_ms / second.predicted_ms, second.evidence
    return None


def version(text: str) -> tuple[int, ...]:
    """Return a version of torch as numbers, by which versions are ordered."""
    return tuple(map(int, text.split(".")))
