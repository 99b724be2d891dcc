"""The composed model of a card from imported tables of whole networks: fitted, and scored on families that were left out."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.composed import features, held_out, model_file, rows, training
from lib.predict.composed.features import Condition
from lib.predict.composed.model import Fitted
from lib.predict.composed.model_file import Composed
from lib.predict.composed.training import Cases
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import conformal
from lib.progress import track
from lib.work import networks

FOLDS = 5
LEAST = 50  # networks under a condition, and it is learned
OLDEST = (2, 4)  # torch, of inference: older tables hold fewer networks
FINAL = 10  # one family of so many is kept for a final score
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
        recent = condition.mode == "train" or tuple(map(int, condition.torch.split("."))) >= OLDEST
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
    return Cases(terms, np.log(part["latency_ms"].to_numpy()), levels)


def fold_of(several: Mapping[Condition, tuple[pd.DataFrame, Cases]], fold: Callable[[pd.DataFrame], pd.Series] = folds) -> \
        dict[str, int]:
    """Return in which fold each family lies, one fold under all conditions."""
    joined = pd.concat([part for part, _ in several.values()], ignore_index=True)
    return dict(zip(joined["module"], fold(joined), strict=True))


def left_out(several: Mapping[Condition, tuple[pd.DataFrame, Cases]], fold: Callable[[pd.DataFrame], pd.Series],
             iterations: int = training.ITERATIONS) -> dict[Condition, np.ndarray]:
    """Return the log ms that is predicted of each network without its family, by condition."""
    place = fold_of(several, fold)
    numbers = {condition: part["module"].map(place).to_numpy() for condition, (part, _) in several.items()}
    fitted = {condition.name: one for condition, (_, one) in several.items()}
    predicted = {condition: np.full(len(part), np.nan) for condition, (part, _) in several.items()}
    for number in sorted(set(place.values())):
        weights = training.fit(fitted, {one.name: numbers[one] != number for one in several}, iterations)
        for condition, (_, one) in several.items():
            test = numbers[condition] == number
            predicted[condition][test] = training.predict(one, weights)[test]
    return predicted


def train(table: pd.DataFrame, captures: Rows, device: str, source: str, licence: str,
          iterations: int = training.ITERATIONS) -> Composed:
    """Fit the composed model of a card to all of its networks; interval and scores are those of families left out.

    Raises InputError where no condition has LEAST networks.
    """
    several = cases(table, captures, device)
    if not several:
        raise InputError(f"{device} has no condition with {LEAST} networks or more that were captured")
    return of_left_out(device, several, left_out(several, folds, iterations), source, licence, iterations)


def of_left_out(device: str, several: Mapping[Condition, tuple[pd.DataFrame, Cases]], predicted: Mapping[Condition, np.ndarray],
                source: str, licence: str, iterations: int = training.ITERATIONS) -> Composed:
    """Fit the composed model of a card to all of its networks (``cases``), ``predicted`` as ``left_out`` predicts them."""
    weights = training.fit({condition.name: one for condition, (_, one) in several.items()},
                           {condition.name: np.full(len(part), True) for condition, (part, _) in several.items()}, iterations)
    conditions = {}
    for condition, (part, one) in several.items():
        _, (half,) = conformal(one.log_ms - predicted[condition], np.zeros(len(part)), bins=1)
        several_scores = {**held_out.scores(predicted[condition], one.log_ms), "families": float(part["module"].nunique())}
        batches = int(part["batch_size"].min()), int(part["batch_size"].max())
        conditions[condition] = Fitted(weights.of(one.levels), half, several_scores, batches)
    return Composed(device, conditions, source, licence)


def is_final(modules: pd.Series) -> pd.Series:
    """Return which families are in the final set, a tenth of them by a hash of their names: no choice and no fit sees them."""
    return modules.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16) % FINAL == 0)


def captured(table: pd.DataFrame) -> tuple[dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Capture the networks of ``whole_networks`` as timm builds them; return their rows, and why others have none."""
    several, reasons = {}, {}
    distinct = table[["network", "image_size"]].drop_duplicates()
    for name, size in track(list(distinct.itertuples(index=False, name=None)), "capture"):
        try:
            several[name, size] = rows.of_network(networks.network(f"timm:{name}", rows.BATCH, f"3x{size}x{size}"))
        except InputError as error:
            reasons[f"{name} at {size}"] = str(error)
    return several, reasons


def material() -> tuple[pd.DataFrame, dict[tuple[str, int], pd.DataFrame], dict[str, str]]:
    """Return the imported networks of cards that nothing keeps for a final score, their rows, and why others have none."""
    table = tables()
    table = table[table["device"].isin(load_devices()) & ~is_final(table["module"])]
    return table, *captured(table)


def ship(table: pd.DataFrame, captures: Rows) -> pd.DataFrame:
    """Train and save the composed model of every card of a table, and how wrong they are on families left out.

    Returns the scores of each condition (``held_out.COLUMNS``).
    """
    lines = []
    for device in sorted(table["device"].unique()):
        several = cases(table, captures, device)
        predicted = left_out(several, folds)
        of_left_out(device, several, predicted, *SOURCE).save(model_file.FOLDER / f"{device}.json")
        lines.append(held_out.table(device, several, predicted, fold_of(several), captures))
    scores = pd.concat(lines, ignore_index=True)
    held_out.save(scores)
    return scores[scores["group"] == held_out.ALL].drop(columns=["group", "name"])
