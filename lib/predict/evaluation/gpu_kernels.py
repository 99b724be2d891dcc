"""How good are the models of kernels on GPUs? By operator, on unseen shapes, on the largest of them, and on a GPU left out.

Beside the model, on the same held-out rows: a line a family (costs of computing, moving and a call, never negative), boosted
trees as they come, and the roofline.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.predict import registry, training
from lib.predict.evaluation.baselines import BASELINES, Baselines
from lib.predict.operators import fitting, inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.fine_tuning import farthest_first, smooth_of
from lib.predict.operators.fitting import Frames
from lib.predict.operators.validation import score, usable
from lib.predict.transfer import siblings

OPERATORS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("linear", "matmul"), "batched GEMM": ("bmm",), "element-wise": ("elementwise", "activation"),
    "softmax": ("softmax",), "layer norm": ("layer_norm",), "convolution": ("conv2d",)}
SHAPES, MATRICES, LARGEST = "unseen shapes, {} folds", "unseen N and K, {} folds", "the largest tenth"
DEVICE, SIBLING = "a GPU left out", "a GPU left out, by its sibling"
CORRECTED = "{}, {} of its kernels measured"
_INTERVALS = {"cover": ("low_ms", "high_ms"), "cover_one_interval": ("one_low_ms", "one_high_ms")}  # of families, and of all
COLUMNS = ("device", "split", "operator", "learner", "mape", "mape_low", "mape_high", "median", "p90", "bias",
           "within_10", *_INTERVALS, "n")
_LARGEST = 0.9
_BASELINES = {"line": "linear per operator", "trees": "boosted trees", "roofline": "roofline"}  # of BASELINES


def path(dtype: str) -> Path:
    """Return where the scores of the shipped models lie."""
    return registry.SHIPPED / f"kernels_{dtype}_scores.csv"


def own_scores(model: CostModel, table: pd.DataFrame) -> pd.DataFrame:
    """Return the scores (COLUMNS) of a model that was just trained on a table of its GPU's rows."""
    rows, frames, scores = usable(table), partial(inputs.frames, chip=model.chip), []
    for name, part in inputs.by_part(rows, model.chip):
        if name not in model.parts:
            continue
        held_out = _with_one_interval(part, model.parts[name].held_out)
        folds = held_out["fold"].to_numpy()
        split = [(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)) for fold in np.unique(folds)]
        folded = MATRICES if model.facts.get("source") in training.GRIDS else SHAPES
        scores += _scores(part, held_out, frames, split, (model.device, folded.format(len(split))))
        large = part["flops"].to_numpy() > part.groupby("op")["flops"].transform("quantile", _LARGEST).to_numpy()
        trained = fitting.without_intervals(part[~large], frames, form="boosted")
        terms, x = frames(part[large])
        answer = pd.DataFrame({"predicted_ms": trained.predict(terms.to_numpy(), x.to_numpy())[0]}, index=part.index[large])
        split = [(np.flatnonzero(~large), np.flatnonzero(large))]
        scores += _scores(part, answer.reindex(part.index), frames, split, (model.device, LARGEST))
    return pd.DataFrame(scores, columns=COLUMNS)


def left_out_scores(model: CostModel, tables: Mapping[str, pd.DataFrame], points: int = 0) -> pd.DataFrame:
    """Return the scores (COLUMNS) of a model of any GPU on each that was left out, and the mean of these.

    Kernels that were throttled train none, and are scored as those of a GPU that was left out. With ``points`` also the scores
    when so many of its kernels correct the model.
    """
    dtype, scores = model.facts["dtype"], []
    frames, trained = training.frames_of(tables, dtype), training.of_several(tables, dtype)
    rows = pd.concat([trained, training.of_several(tables, dtype, throttled=True)], ignore_index=True)
    for name, part in inputs.by_part(rows, Chip.of(load_devices()[next(iter(tables))], dtype)):
        if name not in model.parts:
            continue
        terms, x = frames(part)
        answer = pd.DataFrame({"predicted_ms": model.parts[name].predict(terms.to_numpy(), x.to_numpy())[0]}, index=part.index)
        answer = _with_one_interval(part, model.parts[name].held_out).combine_first(answer).loc[part.index]
        for device in part["hardware_id"].unique():
            own = (part["hardware_id"] == device).to_numpy()
            others = np.flatnonzero(~own & (part.index < len(trained)))
            split = [(others, np.flatnonzero(own))]
            own_answer = answer.where(pd.Series(own, part.index), axis=0)
            scores += _scores(part, own_answer, frames, split, (device, DEVICE))
            if points:
                scores += _corrected(part, own_answer, frames, points, (device, DEVICE))
    return _with_mean(pd.DataFrame(scores, columns=COLUMNS))


def sibling_scores(models: Iterable[CostModel], tables: Mapping[str, pd.DataFrame], points: int = 0) -> pd.DataFrame:
    """Return the scores (COLUMNS) on each GPU of its nearest sibling's model, which it did not train, and the mean of these.

    Kernels that were throttled on one of both are not scored: they answer for no other GPU.
    """
    several, scores = {model.device: model for model in models}, []
    for device, model in several.items():
        sibling = next((other for other in siblings(load_devices()[device]) if other in several), None)
        if sibling is None:
            continue
        dtype = model.facts["dtype"]
        rows = training.of_several({one: tables[one] for one in (sibling, device)}, dtype)
        frames = training.frames_of((sibling, device), dtype)
        for _, part in inputs.by_part(rows, model.chip):
            own = part["hardware_id"] == device
            if own.all() or not own.any():  # kernels of one of both were throttled
                continue
            answer = several[sibling].on(load_devices()[device], dtype).predict(part[own]).reindex(part.index)
            split = [(np.flatnonzero(~own), np.flatnonzero(own))]
            scores += _scores(part, answer[["predicted_ms"]], frames, split, (device, SIBLING))
            if points:
                scores += _corrected(part, answer, frames, points, (device, SIBLING))
    return _with_mean(pd.DataFrame(scores, columns=COLUMNS))


def _corrected(rows: pd.DataFrame, answer: pd.DataFrame, frames: Frames, points: int,
               named: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of predictions (NaN: of other GPUs) that ``points`` measured rows correct, on the rest.

    The points are those farthest from one another; the baselines are trained on them alone. Nothing where no more rows are.
    """
    _, x = frames(rows)
    own = np.flatnonzero(answer["predicted_ms"].notna())
    if len(own) <= points:
        return
    names = smooth_of(x)
    smooth, predicted = x[names].to_numpy()[own], answer["predicted_ms"].to_numpy()[own]
    chosen = farthest_first(smooth, points)
    rest = np.setdiff1d(np.arange(len(own)), chosen)
    ratio = np.log(rows["latency_ms"].to_numpy()[own[chosen]] / predicted[chosen])
    factor = Correction.fit(names, smooth[chosen], ratio, lengths=True)
    corrected = pd.DataFrame({"predicted_ms": np.full(len(rows), np.nan)}, index=rows.index)
    corrected.iloc[own[rest], 0] = predicted[rest] * np.exp(factor(smooth[rest]))
    yield from _scores(rows, corrected, frames, [(own[chosen], own[rest])], (named[0], CORRECTED.format(named[1], points)))


def _with_mean(table: pd.DataFrame) -> pd.DataFrame:
    """Add the means over GPUs; nothing to a table without scores."""
    if table.empty:
        return table
    mean = table.groupby(["split", "operator", "learner"], sort=False).mean(numeric_only=True).reset_index()
    return pd.concat([table, mean.assign(device="mean")[list(COLUMNS)]], ignore_index=True)


def _with_one_interval(rows: pd.DataFrame, held_out: pd.DataFrame) -> pd.DataFrame:
    """Return held-out predictions with ``one_low_ms, one_high_ms`` beside the families' intervals: of all of them together."""
    predicted, fold = (held_out[name].to_numpy() for name in ("predicted_ms", "fold"))
    one = fitting.held_out(held_out, predicted, np.log(rows["latency_ms"].loc[held_out.index].to_numpy() / predicted), fold)
    return held_out.assign(one_low_ms=one["low_ms"], one_high_ms=one["high_ms"])


def _scores(rows: pd.DataFrame, held_out: pd.DataFrame, frames: Frames, split: list[tuple[np.ndarray, np.ndarray]],
            named: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of a model's predictions of held-out rows (NaN: not held out), and of the baselines on the same.

    ``named`` are the device and the split.
    """
    several = {"this model": held_out["predicted_ms"].to_numpy(), **_baselines(rows, frames, split)}
    measured, tested = rows["latency_ms"].to_numpy(), held_out["predicted_ms"].notna().to_numpy()
    covered = {name: np.full(len(rows), np.nan) for name in _INTERVALS}
    if "low_ms" in held_out and held_out["low_ms"][tested].notna().all():
        covered = {name: rows["latency_ms"].between(held_out[low], held_out[high]).to_numpy() * 100.0
                   for name, (low, high) in _INTERVALS.items()}
    for operator, ops in OPERATORS.items():
        own = rows["op"].isin(ops).to_numpy() & tested
        if not own.any():
            continue
        for learner, predicted in several.items():
            bias = float((predicted[own] / measured[own] - 1).mean() * 100)
            cover = {name: float(inside[own].mean()) if learner == "this model" else np.nan for name, inside in covered.items()}
            yield {"device": named[0], "split": named[1], "operator": operator, "learner": learner, "bias": bias,
                   **cover, **score(measured[own], predicted[own])}


def _baselines(rows: pd.DataFrame, frames: Frames, split: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return predicted ms of held-out rows by each baseline."""
    (_, x), work = frames(rows), _work(rows)
    data = Baselines(rows, x, work[:, :2].max(axis=1), work)
    predicted = {name: np.full(len(rows), np.nan) for name in _BASELINES}
    for train, test in split:
        for name, learner in _BASELINES.items():
            predicted[name][test] = BASELINES[learner](data, train, test)
    return predicted


def _work(rows: pd.DataFrame) -> np.ndarray:
    """Return what the line is of (n, 3): computing and moving at a chip's ceilings, in ms, and a call."""
    dtype, vendors = str(rows["dtype"].iloc[0]), load_devices()
    own = [vendors[one.removeprefix("published:")] for one in rows["hardware_id"]]
    compute_ms = rows["flops"] / np.array([vendor.peak_gflops[dtype] * 1e6 for vendor in own])
    move_ms = rows["bytes"] / np.array([vendor.peak_gbps * 1e6 for vendor in own])
    return np.column_stack([compute_ms, move_ms, np.ones(len(rows))])
