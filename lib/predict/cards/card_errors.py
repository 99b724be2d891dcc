"""Networks on cards, each predicted without its family: rows ``held_out``, and their scores by kind, family and change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.predict import held_out
from lib.predict.cards import card_model
from lib.predict.cards.features import Condition, version
from lib.predict.held_out import ALL, GAINS, NETWORKS, NEW_CARDS
from lib.predict.scores import half_interval, score_draws, score_gains

_LEAST = 50  # networks of a kind outside of its largest fold, for an interval of its own
_HOLDS = 0.86  # of a nominal 0.9
_AUTOCAST = {"amp_fp16", "amp_bf16"}
_KEYS = "device what kind mode condition left_out".split()


def table(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return a card's networks, each predicted without its family (``learning.left_out``), as rows ``held_out``."""
    half = pd.Series(np.nan, predicted.index)
    for _, part in predicted.groupby("condition"):
        half[part.index] = intervals(part["log_ms"] - part["log_predicted"], part)[0]
    return rows(predicted.assign(half=half), what=NETWORKS, left_out="families of timm")


def rows(part: pd.DataFrame, **values) -> pd.DataFrame:
    """Return rows ``held_out`` of networks with ``log_ms, log_predicted, half`` (of their interval), ``module, condition``."""
    names = ["device", "kind", "condition", "batch_size", "fold"]
    low, predicted, high = (np.exp(part["log_predicted"] + sign * part["half"]) for sign in (-1, 0, 1))
    return held_out.frame(
        **part[names], **values, **card_model.SOURCE, group=part["module"],
        mode=np.where(part["condition"].str.startswith("train"), "train", "infer"), predicted=predicted, low=low, high=high,
        case=part["network"] + " " + part["image_size"].astype(str), measured=np.exp(part["log_ms"]))


def fold_halves(error: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return for each log error half the interval that the errors of the other folds give."""
    halves = {number: half_interval(error[fold != number]) for number in np.unique(fold)}
    return np.array([halves[number] for number in fold])


def intervals(error: pd.Series, part: pd.DataFrame) -> tuple[np.ndarray, dict[str, float]]:
    """Return the half width of each log error's interval, see ``fold_halves``, and the half widths for new networks by kind.

    ``part`` has ``fold`` and ``kind`` of each error. A kind gets its own interval under two conditions. At least _LEAST of its
    networks lie outside of each fold. The interval covers _HOLDS of its held-out networks, or as many as the common interval
    does.
    """
    error, fold, kind = error.to_numpy(float), part["fold"].to_numpy(int), part["kind"].to_numpy(str)
    half, of_kinds = fold_halves(error, fold), {ALL: half_interval(error)}
    for name in np.unique(kind):
        alike = kind == name
        if alike.sum() - np.unique(fold[alike], return_counts=True)[1].max() >= _LEAST:
            size, narrow = np.abs(error[alike]), fold_halves(error[alike], fold[alike])
            if (size <= narrow).mean() >= min(_HOLDS, (size <= half[alike]).mean()):
                half[alike], of_kinds[str(name)] = narrow, half_interval(error[alike])
    return half, of_kinds


def scores(device: str, what: str) -> pd.DataFrame:
    """Return scores from the rows beside a card model, or that of ``ANY``: a line per ``kind`` and ``condition``.

    ``what`` is NETWORKS of a card, NEW_CARDS of ``ANY``, or GAINS. Lines of GAINS have the conditions ``before`` and
    ``after`` (``Condition.name_without_torch``), ``torch`` and the rest of ``score_gains``.
    """
    return _of_rows(_scores, device, what)


def half_of(device: str, condition: Condition, kind: str) -> float | None:
    """Return half the 90 % interval of a kind of network in log time; None if the kind has no interval of its own."""
    return _of_rows(_halves, device, condition.name).get(kind)


def _of_rows(compute: Callable[..., Any], device: str, what: str) -> Any:
    """Return what ``compute`` gives for the rows beside a model, cached until the file changes."""
    model = card_model.FOLDER / f"{device}.json"
    path = held_out.path_of(model)
    return compute(model, what, path.stat().st_mtime_ns if path.is_file() else 0)


@cache
def _halves(model: Path, condition: str, _: int) -> dict[str, float]:
    table = held_out.load(model)
    part = table[(table["what"] == NETWORKS) & (table["condition"] == condition)]
    measured, predicted = (np.log(part[name].astype(float)) for name in ("measured", "predicted"))
    return intervals(measured - predicted, part)[1] if len(part) else {}


@cache
def _scores(model: Path, what: str, _: int) -> pd.DataFrame:
    table, shared = held_out.load(model), model.stem == card_model.ANY
    if what == GAINS:
        return pd.DataFrame([{"device": model.stem, "what": GAINS, "kind": ALL, "mode": before.mode, "torch": before.torch,
                              "before": before.name_without_torch, "after": after.name_without_torch,
                              **score_draws(part, ["left_out"], score_gains).iloc[0]}
                             for before, after, part in gains(table)])
    of_cards_left_out = shared and what == NETWORKS
    table = table[table["what"] == (NEW_CARDS if of_cards_left_out else what)]
    view = table.assign(what=what, kind=ALL, **{"device": card_model.ANY} if of_cards_left_out else {})
    return score_draws(view if shared or what != NETWORKS else pd.concat([view, table]), _KEYS)


def changes(conditions: Iterable[Condition]) -> Iterator[tuple[Condition, Condition]]:
    """Yield the conditions that differ by one change, to channels_last or to compiled; both of one torch, under autocast."""
    for before, after in permutations(conditions, 2):
        usual = replace(before, precision=after.precision)
        changed = {replace(usual, layout="nhwc"), replace(usual, compiled=True)} - {usual}
        if after in changed and {before.precision, after.precision} <= _AUTOCAST:
            yield before, after


def gains(table: pd.DataFrame) -> Iterator[tuple[Condition, Condition, pd.DataFrame]]:
    """Yield each change with the gains of networks that ran both ways: rows ``held_out``, quotients of the rows of both.

    A gain is per image: batches are smaller where a network would not fit.
    """
    for before, after in changes(map(Condition.from_name, sorted(table["condition"].unique()))):
        first, second = (table[table["condition"] == condition.name] for condition in (before, after))
        both = first.merge(second, on=["device", "group", "case"], suffixes=("_before", ""))
        shrunk = (both["batch_size"] / both["batch_size_before"]).astype(float)
        quotients = {name: both[f"{name}_before"] / both[name] * shrunk for name in ("measured", "predicted")}
        if len(both):
            yield before, after, both.assign(**quotients, low=np.nan, high=np.nan)[list(table)]


def of_change(device: str, before: Condition, after: Condition) -> dict[str, Any] | None:
    """Return the scores of a change on a card, of the same torch or else the newest; None where none was held out."""
    lines = (line for line in scores(device, GAINS).to_dict("records")
             if (line["before"], line["after"]) == (before.name_without_torch, after.name_without_torch))
    return max(lines, default=None, key=lambda line: (line["torch"] == before.torch, version(line["torch"])))


def change_words(scored: Mapping[str, Any]) -> str:
    """Say how right gains of a change were, and under which torch; a case is a network on a card."""
    return (f"whether it is faster was right in {scored['sign']:.0f} % of {scored['n']:,} cases with torch {scored['torch']}"
            f" (always: {scored['constant_sign']:.0f} %), its factor off by {scored['mape']:.1f} % "
            f"(median {scored['median']:.1f} %; {scored['constant_mape']:.1f} % were it one for all)")
