"""Card models learned from imported tables of whole networks, and scored on families that were left out."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out
from lib.predict.cards import card_errors, card_model, features, fitting, rows
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.features import Condition
from lib.predict.cards.fitting import Cases
from lib.predict.cards.model import Fitted
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import half_interval
from lib.predict.scores import score, score_by
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.networks import Network

FOLDS = 5
LEAST = 50  # networks under a condition, and it is learned
OLDEST = (2, 4)  # torch, of inference: older tables hold fewer networks
FINAL = 10  # one family of so many is kept for a final score
ROUNDED = 0.0051  # million parameters: tables state two digits
ALIKE = 1e-3  # of its parameters: timm has changed some networks by less since, such as TNT
SOURCE = ("timm", "Apache-2.0, huggingface/pytorch-image-models results")
Rows = Mapping[tuple[str, int], pd.DataFrame]
Measured = Mapping[Condition, tuple[pd.DataFrame, Cases]]  # networks, and what is fitted to them


def tables() -> pd.DataFrame:
    """Return every imported table ``whole_networks``; InputError says how to import them."""
    paths_of = sorted(paths.IMPORTED.glob("*/whole_networks/*/whole_networks.parquet"))
    if not paths_of:
        raise InputError(f"no table of whole networks in {paths.IMPORTED}; run: python -m lib import timm FOLDER (results of "
                         "huggingface/pytorch-image-models)")
    return pd.concat([store.read(path, "whole_networks") for path in paths_of], ignore_index=True)


def folds(table: pd.DataFrame) -> pd.Series:
    """Return the fold of each row: families (modules) stay whole, the largest are dealt first, to the smallest fold."""
    sizes = table.drop_duplicates(["network", "image_size"])["module"].value_counts().sort_index().sort_values(
        ascending=False, kind="stable")
    loads, place = np.zeros(FOLDS), {}
    for module, size in sizes.items():
        place[module] = int(np.argmin(loads))
        loads[place[module]] += size
    return table["module"].map(place)


def fold_of(parts: Iterable[pd.DataFrame]) -> dict[str, int]:
    """Return in which fold each family of several tables lies, one fold in all of them."""
    joined = pd.concat(parts, ignore_index=True)
    return dict(zip(joined["module"], folds(joined), strict=True))


def cases(table: pd.DataFrame, captures: Rows, device: str, chip: Chip | None = None) -> Measured:
    """Return the networks of a card under each condition with at least LEAST of them, and what is fitted to them.

    ``chip``: its rates (default: those that its vendor states).
    """
    chip, conditions = chip or Chip.of(load_devices()[device], "fp16"), {}
    captured_rows = [key in captures for key in zip(table["network"], table["image_size"], strict=True)]
    table = table[(table["device"] == device) & np.array(captured_rows)]
    for values, rows_of in table.groupby(["mode", "precision", "layout", "compiled", "torch"]):
        condition, part = Condition(*values), rows_of.drop_duplicates(["network", "image_size"]).reset_index(drop=True)
        recent = condition.mode == "train" or features.version(condition.torch) >= OLDEST
        if len(part) >= LEAST and condition.precision != "fp32" and recent:
            frames = [captures[key] for key in zip(part["network"], part["image_size"], strict=True)]
            conditions[condition] = (part, cases_of(part, frames, chip, condition))
    return conditions


def cases_of(part: pd.DataFrame, frames: Sequence[pd.DataFrame], chip: Chip, condition: Condition) -> Cases:
    """Return what is fitted to networks (``batch_size, latency_ms``) with these rows of work, a frame each."""
    network = np.repeat(np.arange(len(part)), list(map(len, frames)))
    terms = features.terms(pd.concat(frames, ignore_index=True), part["batch_size"].to_numpy(float)[network], chip, condition,
                           network, len(part))
    levels = (f"layout:{condition.layout}:{condition.way}", f"way:{condition.way}", f"exact:{condition.name}")
    return Cases(terms, np.log(part["latency_ms"].to_numpy()), levels, part["module"].to_numpy(str))


def left_out(conditions: Measured) -> dict[Condition, np.ndarray]:
    """Return the log ms that is predicted of each network without its family, by condition."""
    place = fold_of([part for part, _ in conditions.values()])
    fold = {condition: part["module"].map(place).to_numpy() for condition, (part, _) in conditions.items()}
    predicted = {condition: np.full(len(part), np.nan) for condition, (part, _) in conditions.items()}
    for number in sorted(set(place.values())):
        weights = _fit(conditions, {condition: folds != number for condition, folds in fold.items()})
        for condition, (_, measured) in conditions.items():
            test = fold[condition] == number
            predicted[condition][test] = fitting.predict(measured, weights.of(measured.levels))[test]
    return predicted


def _fit(conditions: Measured, keep: Mapping[Condition, np.ndarray]) -> fitting.Weights:
    return fitting.fit({condition.name: measured for condition, (_, measured) in conditions.items()},
                        {condition.name: mask for condition, mask in keep.items()})


def fit(device: str, conditions: Measured, predicted: Mapping[Condition, np.ndarray], source: str, licence: str) -> CardModel:
    """Fit the model of a card to all of its networks (``cases``), ``predicted`` as ``left_out`` predicts them."""
    weights, fitted = _fit(conditions, {condition: np.full(len(part), True) for condition, (part, _) in conditions.items()}), {}
    for condition, (part, measured) in conditions.items():
        half = half_interval(measured.log_ms - predicted[condition])
        fitted[condition] = scored(weights.of(measured.levels), half, part, predicted[condition], measured.log_ms)
    return CardModel(device, fitted, source, licence)


def scored(weights: np.ndarray, half: float, part: pd.DataFrame, log_predicted: np.ndarray, log_ms: np.ndarray,
           basis: str = "many") -> Fitted:
    """Return weights with their interval, and what ``part`` (networks whose families were left out) says of them."""
    scores = {**score(np.exp(log_ms), np.exp(log_predicted), interval=False), "families": part["module"].nunique()}
    return Fitted(weights, half, scores, (int(part["batch_size"].min()), int(part["batch_size"].max())), basis)


def is_final(modules: pd.Series) -> pd.Series:
    """Return which families are in the final set, a tenth of them by a hash of their names: no choice and no fit sees them."""
    return modules.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16) % FINAL == 0)


def captured(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Capture the networks of ``whole_networks`` as timm builds them; return the table, their rows, and why others have none.

    Tables of which timm merged parallel branches before (``--reparam``) do not say so, but their numbers of parameters do:
    their networks are named so in the table that is returned. Rows whose number is near that of neither are left out of it.
    """
    keys, stated = list(zip(table["network"], table["image_size"], strict=True)), table["parameters_m"].to_numpy(float)
    merged_keys = [(name + MERGED, size) for name, size in keys]
    captures, reasons = rows.of_networks(keys, _network)
    usual_m = _parameters_m(keys, captures)
    unlike = np.abs(stated - usual_m) > ROUNDED
    merged_captures, merged_reasons = rows.of_networks([merged_keys[place] for place in np.flatnonzero(unlike)], _network)
    merged_m = _parameters_m(merged_keys, merged_captures)
    merged = unlike & (np.abs(stated - merged_m) < np.abs(stated - usual_m))
    nearer_m = np.where(merged, merged_m, usual_m)
    neither = np.abs(stated - nearer_m) > np.maximum(ROUNDED, ALIKE * nearer_m)
    captures, reasons = captures | merged_captures, reasons | merged_reasons
    for place in np.flatnonzero(neither):
        also = f", with merged branches with {merged_m[place]:.2f} M" if np.isfinite(merged_m[place]) else ""
        reasons[f"{' '.join(map(str, keys[place]))} of {stated[place]:.2f} M parameters"] = \
            f"timm builds it with {usual_m[place]:.2f} M{also}"
    names = table["network"].where(~(merged & ~neither), table["network"] + MERGED)
    named = table.assign(network=names)[~neither].reset_index(drop=True)
    used = set(zip(named["network"], named["image_size"], strict=True))
    return named, {key: frame for key, frame in captures.items() if key in used}, reasons


def _network(name: str, size: int) -> Network:
    return networks.network(f"timm:{name}", rows.BATCH, f"3x{size}x{size}")


def _parameters_m(keys: Sequence[tuple[str, int]], captures: Rows) -> np.ndarray:
    """Return the million parameters of each network, NaN where it was not captured."""
    return np.array([rows.parameters(captures[key]) / 1e6 if key in captures else np.nan for key in keys])


def material() -> tuple[pd.DataFrame, dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Return the imported networks of cards that nothing keeps for a final score, their rows, and why others have none."""
    table = tables()
    return captured(table[table["device"].isin(load_devices()) & ~is_final(table["module"])].reset_index(drop=True))


def ship(table: pd.DataFrame, captures: Rows) -> pd.DataFrame:
    """Train and save the model of whole networks of every card of a table, beside it its predictions of families left out.

    Returns the scores of each condition. Raises InputError for a card with fewer than LEAST networks.
    """
    cards = {device: cases(table, captures, device) for device in sorted(table["device"].unique())}
    if few := [device for device, conditions in cards.items() if not conditions]:
        raise InputError(f"{choices(few)}: no condition with {LEAST} networks or more that were captured")
    tables_of = []
    for device, conditions in cards.items():
        predicted = left_out(conditions)
        path = fit(device, conditions, predicted, *SOURCE).save(card_model.FOLDER / f"{device}.json")
        fold = fold_of([part for part, _ in conditions.values()])
        tables_of.append(card_errors.table(device, conditions, predicted, fold, captures, *SOURCE))
        held_out.save(tables_of[-1], path)
    return score_by(pd.concat(tables_of, ignore_index=True), ["device", "condition"])
