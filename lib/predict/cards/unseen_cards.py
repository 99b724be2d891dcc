"""Cards that no network was measured on: what measured cards share, fitted, and scored on each card left out.

With families left out at once, and with 10, 20 and 50 of the card's own networks: the learning curve of ``calibrate``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out
from lib.predict.cards import card_errors, card_model, fitting, learning
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.features import Condition, sustained
from lib.predict.cards.fitting import Weights
from lib.predict.cards.learning import Measured, Rows
from lib.predict.operators.validation import half_interval
from lib.predict.scores import score_draws

NETWORKS, DRAWS = (0, 10, 20, 50), 3  # of a card's own, drawn so often at random
_OF_NETWORKS = ("network", "image_size", "module", "batch_size")
_LEAST_CARDS = 2
OfCards = Mapping[str, Measured]


def of_cards(table: pd.DataFrame, captures: Rows) -> OfCards:
    """Return what is fitted to each card at the rates that it sustains; InputError where fewer than two cards have enough."""
    vendors = load_devices()
    cards = {device: learning.cases(table, captures, device, sustained(vendors[device]))
             for device in sorted(set(table["device"]) & set(vendors))}
    cards = {device: conditions for device, conditions in cards.items() if conditions}
    if len(cards) < _LEAST_CARDS:
        raise InputError(f"{len(cards)} cards have {learning.LEAST} networks or more, two are needed to leave one out")
    return cards


def _shared(condition: Condition) -> tuple[str, ...]:
    """Return the levels that a card nobody measured shares with others."""
    return f"layout:{condition.layout}:{condition.way}", f"way:{condition.way}"


def _fit(cards: OfCards, iterations: int, place: Mapping[str, int], fold: int | None = None) -> Weights:
    """Fit what cards share, without the families of a fold (None: to all)."""
    fitted_to, keep = {}, {}
    for device, conditions in cards.items():
        for condition, (part, cases) in conditions.items():
            name = f"{device} {condition.name}"
            fitted_to[name] = replace(cases, levels=(*_shared(condition), f"card:{device}", f"exact:{name}"))
            keep[name] = (part["module"].map(place) != fold).to_numpy()
    return fitting.fit(fitted_to, keep, iterations)


def _folds(cards: OfCards) -> dict[str, int]:
    """Return in which fold each family of all cards lies."""
    return learning.fold_of([part for conditions in cards.values() for part, _ in conditions.values()])


def left_out(cards: OfCards, networks: Sequence[int] = NETWORKS, iterations: int = fitting.ITERATIONS) -> pd.DataFrame:
    """Return a row a network, condition, card and draw: ``networks`` of its own that were used, ``log_predicted, log_ms``.

    Each card is left out in turn, and of the others each fifth of the families: no network, and none of its family, was seen.
    """
    place, rows = _folds(cards), []
    for device in cards:
        rest = {other: conditions for other, conditions in cards.items() if other != device}
        for fold in range(learning.FOLDS):
            weights = _fit(rest, iterations, place, fold)
            rows += [frame.assign(device=device) for frame in _tested(cards[device], weights, place, fold, networks)]
    if not rows:
        raise InputError(f"no two cards ran networks alike: {choices(cards)}")
    return pd.concat(rows, ignore_index=True)


def _tested(conditions: Measured, weights: Weights, place: Mapping[str, int], fold: int,
            networks: Sequence[int]) -> Iterator[pd.DataFrame]:
    """Yield the predictions of a card's networks of one fold, by other cards' weights and by a few of its other networks."""
    for condition, (part, cases) in conditions.items():
        if not set(_shared(condition)) <= set(weights.levels):
            continue  # no other card ran so
        start, folds = weights.of(_shared(condition)), part["module"].map(place).to_numpy()
        test, rest = fitting.part_of(cases, np.flatnonzero(folds == fold)), np.flatnonzero(folds != fold)
        base = part.loc[folds == fold, list(_OF_NETWORKS)].assign(
            log_ms=test.log_ms, condition=condition.name, way=condition.way, fold=fold)
        generator = np.random.default_rng(fold)
        for count in networks:
            for draw in range(DRAWS if count else 1):
                few = fitting.part_of(cases, generator.choice(rest, min(count, len(rest)), replace=False))
                shift = fitting.shift({"": start}, {"": few}) if count else 0.0
                yield base.assign(networks=count, draw=draw, log_predicted=fitting.predict(test, start + shift))


def table(predicted: pd.DataFrame, captures: Rows, source: str, licence: str) -> pd.DataFrame:
    """Return ``left_out`` as rows ``held_out``, whose intervals are those that the errors of the other cards give."""
    half, corrected = pd.Series(np.nan, predicted.index), predicted["networks"] > 0
    for _, alike in predicted.groupby(["networks", "way"]):
        for device, part in alike.groupby("device"):
            half[part.index] = interval(alike[alike["device"] != device])
    part = predicted.assign(kind=card_errors.kinds_of(predicted, captures), half=half)
    part["networks"] = part["networks"].where(corrected)
    return card_errors.rows(
        part, what=np.where(corrected, held_out.CORRECTED_CARDS, held_out.NEW_CARDS),
        left_out="the card and families of timm", source=source, licence=licence)


def interval(predicted: pd.DataFrame) -> float:
    """Return half the interval in log time that holds 90 % of the networks of each card, the widest of them."""
    return max(half_interval((part["log_ms"] - part["log_predicted"]).to_numpy()) for _, part in predicted.groupby("device"))


def train(cards: OfCards, predicted: pd.DataFrame, source: str, licence: str,
          iterations: int = fitting.ITERATIONS) -> CardModel:
    """Fit what all cards share; interval and scores of a condition are those of cards left out (``left_out``).

    A condition that no card could be left out of, such as training on one card, is not in it.
    """
    weights, fitted = _fit(cards, iterations, _folds(cards)), {}
    zero = predicted[predicted["networks"] == 0]
    for condition in sorted({condition for conditions in cards.values() for condition in conditions}):
        alike, part = zero[zero["way"] == condition.way], zero[zero["condition"] == condition.name]
        if len(part):
            fitted[condition] = learning.scored(weights.of(_shared(condition)), interval(alike), part,
                                                  part["log_predicted"].to_numpy(), part["log_ms"].to_numpy(), "others")
    return CardModel(card_model.ANY, fitted, source, licence, tuple(cards))


def ship(networks: pd.DataFrame, captures: Rows, source: str, licence: str) -> pd.DataFrame:
    """Train and save what cards share, beside it its predictions of cards left out; return their scores by condition."""
    cards = of_cards(networks, captures)
    predicted = left_out(cards)
    path = train(cards, predicted, source, licence).save(card_model.FOLDER / f"{card_model.ANY}.json")
    rows = table(predicted, captures, source, licence)
    held_out.save(rows, path)
    return curve(rows)


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of ``table`` by card, condition and number of its own networks, means over draws."""
    keys = ["device", "condition", "networks"]
    return score_draws(rows.assign(networks=rows["networks"].fillna(0).astype(int)), keys)
