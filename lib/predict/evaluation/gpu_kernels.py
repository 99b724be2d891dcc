"""How good are the models of kernels on GPUs? By operator, on unseen shapes, on the largest of them, and on a GPU left out.

Beside the model, on the same held-out rows: a line a family (costs of computing, moving and a call, never negative), boosted
trees as they come, and the roofline.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.predict import registry, training
from lib.predict.operators import fitting, inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.fitting import Frames
from lib.predict.operators.regressors import LEAST_MS, nonnegative_rates
from lib.predict.operators.validation import score, shapes_of, usable

OPERATORS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("linear", "matmul"), "batched GEMM": ("bmm",), "element-wise": ("elementwise", "activation"),
    "softmax": ("softmax",), "layer norm": ("layer_norm",), "convolution": ("conv2d",)}
SHAPES, LARGEST, DEVICE = "unseen shapes, 5 folds", "the largest tenth", "a GPU left out"
COLUMNS = ("device", "split", "operator", "learner", "mape", "mape_low", "mape_high", "median", "p90", "bias",
           "within_10", "cover", "n")
_LARGEST = 0.9
_SEED = 0


def path(dtype: str) -> Path:
    """Return where the scores of the shipped models lie."""
    return registry.SHIPPED / f"kernels_{dtype}_scores.csv"


def own_scores(model: CostModel, table: pd.DataFrame) -> pd.DataFrame:
    """Return the scores (COLUMNS) of a model that was just trained on a table of its GPU's rows."""
    rows, frames, scores = usable(table), partial(inputs.frames, chip=model.chip), []
    for name, part in inputs.by_part(rows, model.chip):
        if name not in model.parts:
            continue
        scores += _scores(part, model.parts[name].held_out, frames, list(_folds(part)), (model.device, SHAPES))
        large = part["flops"].to_numpy() > part.groupby("op")["flops"].transform("quantile", _LARGEST).to_numpy()
        trained = fitting.without_intervals(part[~large], frames)
        terms, x = frames(part[large])
        answer = pd.DataFrame({"predicted_ms": trained.predict(terms.to_numpy(), x.to_numpy())[0]}, index=part.index[large])
        split = [(np.flatnonzero(~large), np.flatnonzero(large))]
        scores += _scores(part, answer.reindex(part.index), frames, split, (model.device, LARGEST))
    return pd.DataFrame(scores, columns=COLUMNS)


def left_out_scores(model: CostModel, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the scores (COLUMNS) of a model of any GPU on each that was left out, and the mean of these.

    Kernels that were throttled train none, and are scored as those of a GPU that was left out.
    """
    dtype, scores = model.facts["dtype"], []
    frames, trained = training.frames_of(tables, dtype), training.of_several(tables, dtype)
    rows = pd.concat([trained, training.of_several(tables, dtype, throttled=True)], ignore_index=True)
    for name, part in inputs.by_part(rows, Chip.of(load_devices()[next(iter(tables))], dtype)):
        if name not in model.parts:
            continue
        terms, x = frames(part)
        answer = pd.DataFrame({"predicted_ms": model.parts[name].predict(terms.to_numpy(), x.to_numpy())[0]}, index=part.index)
        answer = model.parts[name].held_out.combine_first(answer).loc[part.index]
        for device in part["hardware_id"].unique():
            own = (part["hardware_id"] == device).to_numpy()
            others = np.flatnonzero(~own & (part.index < len(trained)))
            split = [(others, np.flatnonzero(own))]
            scores += _scores(part, answer.where(pd.Series(own, part.index), axis=0), frames, split, (device, DEVICE))
    table = pd.DataFrame(scores, columns=COLUMNS)
    mean = table.groupby(["split", "operator", "learner"], sort=False).mean(numeric_only=True).reset_index()
    return pd.concat([table, mean.assign(device="mean")[list(COLUMNS)]], ignore_index=True)


def _folds(rows: pd.DataFrame) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import GroupKFold

    yield from GroupKFold(fitting.FOLDS, shuffle=True, random_state=_SEED).split(rows, groups=shapes_of(rows))


def _scores(rows: pd.DataFrame, held_out: pd.DataFrame, frames: Frames, split: list[tuple[np.ndarray, np.ndarray]],
            named: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of a model's predictions of held-out rows (NaN: not held out), and of the baselines on the same.

    ``named`` are the device and the split.
    """
    several = {"this model": held_out["predicted_ms"].to_numpy(), **_baselines(rows, frames, split)}
    measured, tested = rows["latency_ms"].to_numpy(), held_out["predicted_ms"].notna().to_numpy()
    covered = np.full(len(rows), np.nan)
    if "low_ms" in held_out and held_out["low_ms"][tested].notna().all():
        covered = rows["latency_ms"].between(held_out["low_ms"], held_out["high_ms"]).to_numpy() * 100.0
    for operator, ops in OPERATORS.items():
        own = rows["op"].isin(ops).to_numpy() & tested
        if not own.any():
            continue
        for learner, predicted in several.items():
            bias = float((predicted[own] / measured[own] - 1).mean() * 100)
            cover = float(covered[own].mean()) if learner == "this model" else np.nan
            yield {"device": named[0], "split": named[1], "operator": operator, "learner": learner, "bias": bias,
                   "cover": cover, **score(measured[own], predicted[own])}


def _baselines(rows: pd.DataFrame, frames: Frames, split: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return predicted ms of held-out rows by each baseline."""
    (_, x), line = frames(rows), _line(rows)
    measured, ops = rows["latency_ms"].to_numpy(), rows["op"].to_numpy()
    roof = np.maximum(line.to_numpy()[:, :2].max(axis=1), LEAST_MS)
    predicted = {name: np.full(len(rows), np.nan) for name in ("line", "trees")} | {"roofline": roof}
    for train, test in split:
        for op in np.unique(ops[test]):
            own, same = train[ops[train] == op], test[ops[test] == op]
            costs = nonnegative_rates(line.iloc[own], measured[own])
            predicted["line"][same] = np.maximum(line.iloc[same].to_numpy() @ costs, LEAST_MS)
        answer = _trees(x.iloc[train], np.log(measured[train] / roof[train]), x.iloc[test])
        predicted["trees"][test] = roof[test] * np.exp(answer)
    return predicted


def _line(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what the line is of: computing and moving at a chip's ceilings, in ms, and a call."""
    dtype, vendors = str(rows["dtype"].iloc[0]), load_devices()
    own = [vendors[one.removeprefix("published:")] for one in rows["hardware_id"]]
    compute = rows["flops"] / np.array([vendor.peak_gflops[dtype] * 1e6 for vendor in own])
    return pd.DataFrame({"compute_ms": compute, "move_ms": rows["bytes"] / np.array([vendor.peak_gbps * 1e6 for vendor in own]),
                         "call": 1.0})


def _trees(x: pd.DataFrame, answer: np.ndarray, other: pd.DataFrame) -> np.ndarray:
    import lightgbm

    fitted = lightgbm.train({"verbosity": -1, "seed": _SEED, "num_threads": 1}, lightgbm.Dataset(x, answer), 100)
    return fitted.predict(other)
