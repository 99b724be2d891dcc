"""The composed model of a card from imported tables of whole networks: fitted, and scored on families that were left out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict.composed import card_gains, features, held_out, model_file, rows, training
from lib.predict.composed.features import Condition
from lib.predict.composed.model import Fitted
from lib.predict.composed.model_file import Composed
from lib.predict.composed.training import Cases
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import half_interval
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


def tables() -> pd.DataFrame:
    """Return every imported table ``whole_networks``; InputError says how to import them."""
    several = sorted(paths.IMPORTED.glob("*/whole_networks/*/whole_networks.parquet"))
    if not several:
        raise InputError(f"no table of whole networks in {paths.IMPORTED}; run: python -m lib import timm FOLDER (results of "
                         "huggingface/pytorch-image-models)")
    return pd.concat([store.read(path, "whole_networks") for path in several], ignore_index=True)


def condition_columns(table: pd.DataFrame) -> pd.Series:
    """Return the Condition of each row of ``whole_networks``."""
    names = ("mode", "precision", "layout", "compiled", "torch")
    return pd.Series([Condition(*values) for values in table[list(names)].itertuples(index=False, name=None)], table.index)


def folds(table: pd.DataFrame, several: int = FOLDS) -> pd.Series:
    """Return the fold of each row: families (modules) stay whole, the largest are dealt first, to the smallest fold."""
    sizes = table.drop_duplicates(["network", "image_size"])["module"].value_counts().sort_index().sort_values(
        ascending=False, kind="stable")
    loads, place = np.zeros(several), {}
    for module, size in sizes.items():
        place[module] = int(np.argmin(loads))
        loads[place[module]] += size
    return table["module"].map(place)


def cases(table: pd.DataFrame, captures: Rows, device: str,
          chip: Chip | None = None) -> dict[Condition, tuple[pd.DataFrame, Cases]]:
    """Return the networks of a card under each condition with at least LEAST of them, and what is fitted to them.

    ``chip``: its rates (default: those that its vendor states).
    """
    chip, several = chip or Chip.of(load_devices()[device], "fp16"), {}
    has_rows = np.array([key in captures for key in zip(table["network"], table["image_size"], strict=True)])
    own = table[(table["device"] == device) & has_rows]
    for condition, rows_of in own.groupby(condition_columns(own)):
        part = rows_of.drop_duplicates(["network", "image_size"]).reset_index(drop=True)
        recent = condition.mode == "train" or features.version(condition.torch) >= OLDEST
        if len(part) >= LEAST and condition.precision != "fp32" and recent:
            frames = [captures[key] for key in zip(part["network"], part["image_size"], strict=True)]
            several[condition] = (part, cases_of(part, frames, chip, condition))
    return several


def cases_of(part: pd.DataFrame, frames: Sequence[pd.DataFrame], chip: Chip, condition: Condition) -> Cases:
    """Return what is fitted to networks (``batch_size, latency_ms``) with these rows of work, a frame each."""
    network = np.repeat(np.arange(len(part)), list(map(len, frames)))
    terms = features.terms(pd.concat(frames, ignore_index=True), part["batch_size"].to_numpy(float)[network], chip, condition,
                           network, len(part))
    levels = (f"layout:{condition.layout}:{condition.way}", f"way:{condition.way}", f"exact:{condition.name}")
    return Cases(terms, np.log(part["latency_ms"].to_numpy()), levels, part["module"].to_numpy(str))


def fold_of(parts: Iterable[pd.DataFrame], fold: Callable[[pd.DataFrame], pd.Series] = folds) -> dict[str, int]:
    """Return in which fold each family of several tables lies, one fold in all of them."""
    joined = pd.concat(parts, ignore_index=True)
    return dict(zip(joined["module"], fold(joined), strict=True))


def left_out(several: Mapping[Condition, tuple[pd.DataFrame, Cases]], fold: Callable[[pd.DataFrame], pd.Series],
             iterations: int = training.ITERATIONS) -> dict[Condition, np.ndarray]:
    """Return the log ms that is predicted of each network without its family, by condition."""
    place = fold_of([part for part, _ in several.values()], fold)
    numbers = {condition: part["module"].map(place).to_numpy() for condition, (part, _) in several.items()}
    fitted = {condition.name: one for condition, (_, one) in several.items()}
    predicted = {condition: np.full(len(part), np.nan) for condition, (part, _) in several.items()}
    for number in sorted(set(place.values())):
        weights = training.fit(fitted, {one.name: numbers[one] != number for one in several}, iterations)
        for condition, (_, one) in several.items():
            test = numbers[condition] == number
            predicted[condition][test] = training.predict(one, weights)[test]
    return predicted


def of_left_out(device: str, several: Mapping[Condition, tuple[pd.DataFrame, Cases]], predicted: Mapping[Condition, np.ndarray],
                source: str, licence: str, iterations: int = training.ITERATIONS) -> Composed:
    """Fit the composed model of a card to all of its networks (``cases``), ``predicted`` as ``left_out`` predicts them."""
    weights = training.fit({condition.name: one for condition, (_, one) in several.items()},
                           {condition.name: np.full(len(part), True) for condition, (part, _) in several.items()}, iterations)
    conditions = {}
    for condition, (part, one) in several.items():
        half = half_interval(one.log_ms - predicted[condition])
        conditions[condition] = scored(weights.of(one.levels), half, part, predicted[condition], one.log_ms)
    return Composed(device, conditions, source, licence)


def scored(weights: np.ndarray, half: float, part: pd.DataFrame, log_predicted: np.ndarray, log_ms: np.ndarray,
           basis: str = "many") -> Fitted:
    """Return weights with their interval, and what ``part`` (networks whose families were left out) says of them."""
    scores = {**held_out.scores(log_predicted, log_ms), "families": float(part["module"].nunique())}
    return Fitted(weights, half, scores, (int(part["batch_size"].min()), int(part["batch_size"].max())), basis)


def is_final(modules: pd.Series) -> pd.Series:
    """Return which families are in the final set, a tenth of them by a hash of their names: no choice and no fit sees them."""
    return modules.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16) % FINAL == 0)


def captured(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Capture the networks of ``whole_networks`` as timm builds them; return the table, their rows, and why others have none.

    Tables of which timm merged parallel branches before (``--reparam``) do not say so, but their numbers of parameters do:
    their networks are named so in the table that is returned. Rows whose number is near that of neither are left out of it.
    """
    keys = list(zip(table["network"], table["image_size"], strict=True))
    merged_keys = [(name + MERGED, size) for name, size in keys]
    several, reasons = rows.of_several(keys, _network)
    own, stated = _parameters_m(keys, several), table["parameters_m"].to_numpy(float)
    unlike = np.abs(stated - own) > ROUNDED
    again, of_merged = rows.of_several([merged_keys[place] for place in np.flatnonzero(unlike)], _network)
    other = _parameters_m(merged_keys, again)
    merged = unlike & (np.abs(stated - other) < np.abs(stated - own))
    nearer = np.where(merged, other, own)
    neither = np.abs(stated - nearer) > np.maximum(ROUNDED, ALIKE * nearer)
    merged, reasons = merged & ~neither, reasons | of_merged
    for place in np.flatnonzero(neither):
        also = f", with merged branches with {other[place]:.2f} M" if np.isfinite(other[place]) else ""
        reasons[f"{' '.join(map(str, keys[place]))} of {stated[place]:.2f} M parameters"] = \
            f"timm builds it with {own[place]:.2f} M{also}"
    named = table.assign(network=table["network"].where(~merged, table["network"] + MERGED))[~neither].reset_index(drop=True)
    used, captures = set(zip(named["network"], named["image_size"], strict=True)), several | again
    return named, {key: captures[key] for key in captures if key in used}, reasons


def _network(name: str, size: int) -> Network:
    return networks.network(f"timm:{name}", rows.BATCH, f"3x{size}x{size}")


def _parameters_m(keys: Sequence[tuple[str, int]], captures: Rows) -> np.ndarray:
    """Return the million parameters of each network, NaN where it was not captured."""
    several = {key: rows.parameters(own) / 1e6 for key, own in captures.items()}
    return np.array([several.get(key, np.nan) for key in keys])


def material() -> tuple[pd.DataFrame, dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Return the imported networks of cards that nothing keeps for a final score, their rows, and why others have none."""
    table = tables()
    return captured(table[table["device"].isin(load_devices()) & ~is_final(table["module"])].reset_index(drop=True))


def ship(table: pd.DataFrame, captures: Rows) -> pd.DataFrame:
    """Train and save the composed model of every card of a table, and how wrong they and their gains are on families left out.

    Returns the scores of each condition (``held_out.COLUMNS``). Raises InputError for a card with fewer than LEAST networks.
    """
    cards = {device: cases(table, captures, device) for device in sorted(table["device"].unique())}
    if few := [device for device, several in cards.items() if not several]:
        raise InputError(f"{choices(few)}: no condition with {LEAST} networks or more that were captured")
    lines, of_gains = [], []
    for device, several in cards.items():
        predicted = left_out(several, folds)
        of_left_out(device, several, predicted, *SOURCE).save(model_file.FOLDER / f"{device}.json")
        place = fold_of([part for part, _ in several.values()])
        lines.append(held_out.table(device, several, predicted, place, captures))
        of_gains.append(card_gains.table(device, {
            condition: part.assign(log_ms=one.log_ms, log_predicted=predicted[condition])
            for condition, (part, one) in several.items()}, place))
    scores = pd.concat(lines, ignore_index=True)
    held_out.save(scores)
    card_gains.save(pd.concat(of_gains, ignore_index=True))
    return scores[scores["group"] == held_out.ALL].drop(columns=["group", "name"])
