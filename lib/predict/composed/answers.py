"""What the composed model of a card answers for a network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lib.predict.composed import families, features, model_file
from lib.predict.composed.features import Condition, version
from lib.predict.composed.model_file import Composed
from lib.predict.networks import kinds

_PRECISIONS = {"fp16": ("amp_fp16", "amp_bf16"), "bf16": ("amp_bf16", "amp_fp16")}  # cards compute both at one rate
LAYOUTS = {"contiguous": "nchw", "channels_last": "nhwc"}


@dataclass(frozen=True)
class Answer:
    """The time of a network in ms with its interval, the condition that was learned, and whose measurements these were.

    ``outside``: the batch size is none that was learned from; ``origins``: of whom it was, where not of the card (share 1).
    """

    predicted_ms: float
    low_ms: float
    high_ms: float
    outside: bool
    condition: Condition
    source: str
    origins: Mapping[str, float]


def condition_of(composed: Composed, dtype: str, mode: str = "infer", layout: str = "contiguous", compiled: bool = False,
                 torch: str = "") -> Condition | None:
    """Return the learned condition that a question is about, of the newest torch or the one given; None: none was learned.

    What other cards say counts where the card's own networks say nothing.
    """
    several = [one for one in composed.conditions if one.mode == mode and one.compiled == compiled
               and one.layout == LAYOUTS[layout] and one.precision in _PRECISIONS.get(dtype, ()) and torch in ("", one.torch)]

    def order(one: Condition) -> tuple:
        return -_PRECISIONS[dtype].index(one.precision), version(one.torch)

    if not several and composed.others:
        return condition_of(composed.others, dtype, mode, layout, compiled, torch)
    return max(several, key=order, default=None)


def answer(composed: Composed, rows: pd.DataFrame, batch_size: int, condition: Condition) -> Answer:
    """Predict a network (``rows.of_network``) at a batch size under a learned condition; InputError for another."""
    composed = composed.under(condition)
    fitted = composed.conditions[condition]
    terms = features.terms(rows, float(batch_size), composed.chip, condition)
    half = families.half_of(composed.device, condition, kinds.of_rows(rows)) if fitted.basis == "many" else None
    origins = {f"networks on {len(composed.siblings)} cards": 1.0} if fitted.basis == "others" else {}
    return Answer(*fitted.predict(terms, batch_size, half), fitted.outside(batch_size), condition, composed.source, origins)


def gain(composed: Composed, rows: pd.DataFrame, batch_size: int, before: Mapping[str, Any],
         after: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return how many times as fast a network is ``after`` as ``before`` (arguments of ``condition_of``), and how right it is.

    Both are of one version of torch, the newest that was learned both ways, and both of the card or both of others; None where
    there is none.
    """
    for source in filter(None, (replace(composed, others=None), composed.others)):
        releases = sorted({one.torch for one in source.conditions}, key=version, reverse=True)
        for release in releases:
            pair = [condition_of(source, **how, torch=release) for how in (before, after)]
            if all(pair):
                first, second = (answer(source, rows, batch_size, one) for one in pair)
                return first.predicted_ms / second.predicted_ms, _how_right(source, *pair)
    return None


def _how_right(composed: Composed, before: Condition, after: Condition) -> str:
    """Say how right such gains were on what was left out: families, or the card as well where its own networks do not tell."""
    fitted = [composed.conditions[one] for one in (before, after)]
    own = None if any(one.basis == "others" for one in fitted) else families.of_change(composed.device, before, after)
    scored = own or families.of_change(model_file.ANY, before, after)
    ways = " and ".join(one.scored or condition.name for one, condition in zip(fitted, (before, after), strict=True))
    text = f"learned from networks that ran as {ways}"
    if scored is None:
        return f"{text}; none were held out"
    left_out = "families" if own else "families and the card"
    corrected = max(one.corrected for one in fitted)  # the gains of a card that its user corrected were not scored again
    since = f" (corrected since by {corrected} of its networks)" if corrected else ""
    return f"{text}; with {left_out} left out {families.change_words(scored)}{since}"
