"""Cards that no network was measured on: what measured cards share, fitted, and scored on each card left out.

With families left out at once, and with 10, 20 and 50 of the card's own networks: the learning curve of ``calibrate``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out, scores
from lib.predict.cards import card_errors, card_model, features, fitting, learning
from lib.predict.scores import half_interval

NETWORKS, DRAWS = (0, 10, 20, 50), 3  # of a card's own, drawn so often at random
OfCards = dict[str, list[fitting.ConditionNetworks]]


def of_cards(table: pd.DataFrame) -> OfCards:
    """Return what is fitted to each card at the rates that it sustains; InputError where fewer than two cards have enough."""
    vendors, parts = load_devices(), []
    for device in sorted(set(table["device"]) & set(vendors)):
        for part in learning.cases(table, device, features.sustained(vendors[device])):
            of_card = (f"card:{device}", f"exact:{device} {part.condition.name}")
            parts.append(replace(part, levels=(*learning.shared(part.condition), *of_card)))
    cards = {}
    for part in learning.with_folds(parts) if parts else ():
        cards.setdefault(part.table["device"].iloc[0], []).append(part)
    if len(cards) < 2:
        raise InputError(f"{len(cards)} cards have {learning.LEAST} networks or more, two are needed to leave one out")
    return cards


def left_out(cards: OfCards, networks: Sequence[int] = NETWORKS) -> pd.DataFrame:
    """Return one row per network, condition, card and draw, as in ``ConditionNetworks.predicted``.

    ``networks``: how many of the card's own were used.

    Each card is left out in turn, and of the others each fifth of the families: no network, and none of its family, was seen.
    """
    rows = []
    for device in cards:
        rest = [part for other, parts in cards.items() if other != device for part in parts]
        for fold in range(learning.FOLDS):
            fitted = fitting.fit(learning.without(rest, fold))
            for part in cards[device]:
                levels = learning.shared(part.condition)
                if set(levels) <= set(fitted.index) and (part.table["fold"] == fold).any():  # other cards ran so
                    rows += _tested(replace(part, start=fitting.weights_of(fitted, levels)), fold, networks)
    if not rows:
        raise InputError(f"no two cards ran networks alike: {choices(cards)}")
    return pd.concat(rows, ignore_index=True)


def _tested(part: fitting.ConditionNetworks, fold: int, networks: Sequence[int]) -> Iterator[pd.DataFrame]:
    """Yield the predictions of networks of a fold, by other cards' weights and by a few networks of the card's other folds."""
    folds, generator = part.table["fold"].to_numpy(), np.random.default_rng(fold)
    test, rest = part.of(folds == fold), np.flatnonzero(folds != fold)
    for count in networks:
        for draw in range(DRAWS if count else 1):
            few = part.of(generator.choice(rest, min(count, len(rest)), replace=False))
            shift = fitting.shift([few]) if count else 0.0
            yield test.predicted(part.start + shift).assign(networks=count, draw=draw)


def table(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return ``left_out`` as rows ``held_out``; the interval of each card comes from the errors of the other cards."""
    half, corrected = pd.Series(np.nan, predicted.index), predicted["networks"] > 0
    for _, alike in predicted.groupby(["networks", predicted["condition"].str.partition("-")[0]]):
        for device, part in alike.groupby("device"):
            half[part.index] = interval(alike[alike["device"] != device])
    part = predicted.assign(half=half, networks=predicted["networks"].where(corrected))
    return card_errors.rows(
        part, what=np.where(corrected, held_out.CORRECTED_CARDS, held_out.NEW_CARDS), left_out="the card and families of timm")


def interval(predicted: pd.DataFrame) -> float:
    """Return half the interval in log time that holds 90 % of the networks of each card, the widest of them."""
    return max(half_interval(learning.error(part)) for _, part in predicted.groupby("device"))


def train(cards: OfCards, predicted: pd.DataFrame) -> card_model.CardModel:
    """Fit what all cards share; interval and scores of a condition are those of cards left out (``left_out``).

    A condition that no card could be left out of, such as training on one card, is not in it.
    """
    every = [part for parts in cards.values() for part in parts]
    weights, fitted, zero = fitting.fit(every), {}, predicted[predicted["networks"] == 0]
    for condition in sorted({part.condition for part in every}):
        alike, measured = zero[zero["condition"].str.startswith(condition.execution)], zero[zero["condition"] == condition.name]
        if len(measured):
            of_condition = fitting.weights_of(weights, learning.shared(condition))
            fitted[condition] = learning.scored(of_condition, interval(alike), measured, "others")
    return card_model.CardModel(card_model.ANY, fitted, **card_model.SOURCE, siblings=tuple(cards))


def ship(networks: pd.DataFrame) -> pd.DataFrame:
    """Train and save what cards share, beside it its predictions of cards left out; return their scores by condition."""
    cards = of_cards(networks)
    predicted = left_out(cards)
    rows = table(predicted)
    held_out.save(rows, train(cards, predicted).save(card_model.FOLDER / f"{card_model.ANY}.json"))
    return curve(rows)


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of ``table`` by card, condition and number of its own networks, means over draws."""
    return scores.score_draws(rows.assign(networks=rows["networks"].fillna(0).astype(int)), ["device", "condition", "networks"])
