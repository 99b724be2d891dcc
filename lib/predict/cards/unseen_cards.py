"""Cards that no network was measured on: what measured cards share, scored on each card left out with families."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out, scores
from lib.predict.cards import card_errors, card_model, features, fitting, learning
from lib.predict.scores import half_interval

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


def left_out(cards: OfCards) -> pd.DataFrame:
    """Return one row per network, condition and card, as in ``ConditionNetworks.predicted``.

    Each card is left out in turn, and of the others each fifth of the families: no network, and none of its family, was seen.
    """
    rows = []
    for device in cards:
        rest = [part for other, parts in cards.items() if other != device for part in parts]
        for fold in range(learning.FOLDS):
            fitted = fitting.fit(learning.without(rest, fold))
            for part in cards[device]:
                levels, test = learning.shared(part.condition), (part.table["fold"] == fold).to_numpy()
                if set(levels) <= set(fitted.index) and test.any():  # other cards ran so
                    rows.append(part.of(test).predicted(fitting.weights_of(fitted, levels)))
    if not rows:
        raise InputError(f"no two cards ran networks alike: {choices(cards)}")
    return pd.concat(rows, ignore_index=True)


def table(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return ``left_out`` as rows ``held_out``; the interval of each card comes from the errors of the other cards."""
    half = pd.Series(np.nan, predicted.index)
    for _, alike in predicted.groupby(predicted["condition"].str.partition("-")[0]):
        for device, part in alike.groupby("device"):
            half[part.index] = interval(alike[alike["device"] != device])
    return card_errors.rows(predicted.assign(half=half), what=held_out.NEW_CARDS, left_out="the card and families of timm")


def interval(predicted: pd.DataFrame) -> float:
    """Return half the interval in log time that holds 90 % of the networks of each card, the widest of them."""
    return max(half_interval(learning.error(part)) for _, part in predicted.groupby("device"))


def train(cards: OfCards, predicted: pd.DataFrame) -> card_model.CardModel:
    """Fit what all cards share; interval and scores of a condition are those of cards left out (``left_out``).

    A condition that no card could be left out of, such as training on one card, is not in it.
    """
    every = [part for parts in cards.values() for part in parts]
    weights, fitted, name = fitting.fit(every), {}, predicted["condition"]
    for condition in sorted({part.condition for part in every}):
        alike, measured = predicted[name.str.startswith(condition.execution)], predicted[name == condition.name]
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
    return scores.score_draws(rows, ["device", "condition"])
