"""Card models learned from imported tables of whole networks, and scored on families that were left out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out
from lib.predict.cards import card_errors, card_model, features, fitting, kernel_sum, rows
from lib.predict.cards.fitting import ConditionNetworks, WeightsByCondition
from lib.predict.networks import architectures
from lib.predict.operators.chip import Chip
from lib.predict.scores import half_interval, score, score_by
from lib.work import networks
from lib.work.building.timm_models import MERGED

FOLDS = 5
LEAST = 50  # networks under a condition, and it is learned
OLDEST = (2, 4)  # torch, of inference: older tables hold fewer networks
FINAL = 10  # one family of so many is kept for a final score
ROUNDED = 0.0051  # million parameters: tables state two digits
PARAMETER_TOLERANCE = 1e-3  # share of its parameters: timm has changed some networks by less since, such as TNT
CONDITION = "mode precision layout compiled torch".split()
_KEY = ["network", "image_size"]


def tables() -> pd.DataFrame:
    """Return every imported table ``whole_networks``; InputError says how to import them."""
    paths_of = sorted(paths.IMPORTED.glob("*/whole_networks/*/whole_networks.parquet"))
    if not paths_of:
        raise InputError(f"no table of whole networks in {paths.IMPORTED}; run: python -m lib import timm FOLDER (results of "
                         "huggingface/pytorch-image-models)")
    return pd.concat([store.read(path, "whole_networks") for path in paths_of], ignore_index=True)


def with_rows(table: pd.DataFrame, captures: Mapping[tuple, pd.DataFrame]) -> pd.DataFrame:
    """Return the networks of a table that were captured, with their ``rows`` of work and ``kind``."""
    frames = pd.Series([captures.get(key) for key in zip(*(table[name] for name in _KEY), strict=True)], table.index, object)
    table = table.assign(rows=frames)[frames.notna()].reset_index(drop=True)
    return table.assign(kind=table["rows"].map(architectures.of_rows))


def with_folds(cases: Sequence[ConditionNetworks]) -> list[ConditionNetworks]:
    """Return networks with the ``fold`` of each, the same in all conditions.

    Families (modules) stay whole, the largest are dealt first, to the smallest fold.
    """
    distinct = pd.concat([part.table for part in cases]).drop_duplicates(_KEY)
    sizes = distinct["module"].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    loads, place = np.zeros(FOLDS), {}
    for module, size in sizes.items():
        place[module] = int(np.argmin(loads))
        loads[place[module]] += size
    return [replace(part, table=part.table.assign(fold=part.table["module"].map(place))) for part in cases]


def shared(condition: features.Condition) -> tuple[str, ...]:
    """Return the levels that conditions share, on a card that nobody measured as well."""
    return f"layout:{condition.layout}:{condition.execution}", f"way:{condition.execution}"


def cases(table: pd.DataFrame, device: str, chip: Chip | None = None) -> list[ConditionNetworks]:
    """Return the networks of a card (``with_rows``) under each condition with at least LEAST of them.

    ``chip``: its rates (default: those that its vendor states).
    """
    chip, conditions = chip or Chip.of(load_devices()[device], "fp16"), []
    for values, part in table[(table["device"] == device) & (table["precision"] != "fp32")].groupby(CONDITION):
        condition, distinct = features.Condition(*values), part.drop_duplicates(_KEY).reset_index(drop=True)
        recent = condition.mode == "train" or features.version(condition.torch) >= OLDEST
        if len(distinct) >= LEAST and recent:
            conditions.append(ConditionNetworks(distinct, condition, chip, (*shared(condition), f"exact:{condition.name}")))
    return with_folds(conditions) if conditions else []


def without(parts: Iterable[ConditionNetworks], fold: int) -> list[ConditionNetworks]:
    """Return the conditions without the fold's families; drop those left empty."""
    return [part.of(mask) for part in parts if (mask := (part.table["fold"] != fold).to_numpy()).any()]


def left_out(parts: Sequence[ConditionNetworks],
             learn: Callable[[list[ConditionNetworks]], WeightsByCondition]) -> pd.DataFrame:
    """Predict each network without its family (``ConditionNetworks.predicted``), in the order of the conditions.

    ``learn`` takes networks, and returns what gives the weights of a condition.
    """
    predicted = [[] for _ in parts]
    for fold in sorted({fold for part in parts for fold in part.table["fold"]}):
        weights = learn(without(parts, fold))
        for part, folds in zip(parts, predicted, strict=True):
            test = (part.table["fold"] == fold).to_numpy()
            if test.any():
                folds.append(part.of(test).predicted(weights(part)))
    return pd.concat([pd.concat(folds).sort_index() for folds in predicted], ignore_index=True)


def fit(parts: list[ConditionNetworks]) -> WeightsByCondition:
    """Fit to the networks of a card; return what gives the weights of a condition."""
    fitted = fitting.fit(parts)
    return lambda part: fitting.weights_of(fitted, part.levels)


def scored(weights: np.ndarray, half: float, predicted: pd.DataFrame, basis: str = "many") -> kernel_sum.FittedWeights:
    """Return weights with their interval, and what predicted networks whose families were left out say of them."""
    scores = score(np.exp(predicted["log_ms"]), np.exp(predicted["log_predicted"]), interval=False)
    batches = predicted["batch_size"]
    return kernel_sum.FittedWeights(weights, half, {**scores, "families": predicted["module"].nunique()},
                  (int(batches.min()), int(batches.max())), basis)


def error(predicted: pd.DataFrame) -> np.ndarray:
    """Return the log of measured over predicted."""
    return (predicted["log_ms"] - predicted["log_predicted"]).to_numpy()


def is_final(modules: pd.Series) -> pd.Series:
    """Return which families are in the final set, a tenth of them by a hash of their names: no choice and no fit sees them."""
    return modules.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16) % FINAL == 0)


def captured(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Capture the networks of ``whole_networks`` as timm builds them (``with_rows``); return them, and why others are not.

    Networks whose parallel branches timm had merged (``--reparam``) are recognised by their parameter count and named so. Rows
    whose count fits neither form are left out.
    """
    captures, reasons = {}, {}

    def built_m(names):
        """Capture networks by their names; return the million parameters of each row of the table (NaN: not captured)."""
        keys = list(zip(names, table.loc[names.index, "image_size"], strict=True))
        frames, why = rows.of_networks(keys, lambda name, size: networks.network(f"timm:{name}", rows.BATCH,
                                                                                 f"3x{size}x{size}"))
        captures.update(frames)
        reasons.update(why)
        counts = [rows.parameters(frames[key]) / 1e6 if key in frames else np.nan for key in keys]
        return pd.Series(counts, names.index).reindex(table.index).to_numpy()

    names, stated = table["network"], table["parameters_m"].to_numpy(float)
    usual_m = built_m(names)
    merged_m = built_m((names + MERGED)[np.abs(stated - usual_m) > ROUNDED])
    merged = np.abs(stated - merged_m) < np.abs(stated - usual_m)
    nearer_m = np.where(merged, merged_m, usual_m)
    neither = np.abs(stated - nearer_m) > np.maximum(ROUNDED, PARAMETER_TOLERANCE * nearer_m)
    for place in np.flatnonzero(neither):
        also = f", with merged branches with {merged_m[place]:.2f} M" if np.isfinite(merged_m[place]) else ""
        name, size = table.loc[table.index[place], _KEY]
        reasons[f"{name} {size} of {stated[place]:.2f} M parameters"] = f"timm builds it with {usual_m[place]:.2f} M{also}"
    named = table.assign(network=names.mask(merged, names + MERGED))[~neither]
    return with_rows(named, captures), reasons


def material() -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the imported networks of cards that nothing keeps for a final score, and why others are not among them."""
    table = tables()
    return captured(table[table["device"].isin(load_devices()) & ~is_final(table["module"])].reset_index(drop=True))


def ship(table: pd.DataFrame) -> pd.DataFrame:
    """Train and save the model of whole networks of every card of a table, beside it its predictions of families left out.

    Returns the scores of each condition. Raises InputError for a card with fewer than LEAST networks.
    """
    cards = {device: cases(table, device) for device in sorted(table["device"].unique())}
    if few := [device for device, parts in cards.items() if not parts]:
        raise InputError(f"{choices(few)}: no condition with {LEAST} networks or more that were captured")
    tables_of = []
    for device, parts in cards.items():
        predicted, weights, fitted = left_out(parts, fit), fit(parts), {}
        for part in parts:
            of_condition = predicted[predicted["condition"] == part.condition.name]
            fitted[part.condition] = scored(weights(part), half_interval(error(of_condition)), of_condition)
        path = card_model.CardModel(device, fitted, **card_model.SOURCE).save(card_model.FOLDER / f"{device}.json")
        tables_of.append(card_errors.table(predicted))
        held_out.save(tables_of[-1], path)
    return score_by(pd.concat(tables_of, ignore_index=True), ["device", "condition"])
