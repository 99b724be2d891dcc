"""How good are the models of kernels on GPUs? By operator, on unseen shapes and on a GPU left out.

Beside the model, on the same held-out rows: a line per family (costs of computing, moving and a call, never negative) and the
roofline.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.predict import registry, training
from lib.predict.evaluation.baselines import LINE, Baselines, predictions
from lib.predict.operators import features_gpu, fitting, inputs, validation
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.parts import Part
from lib.predict.scores import score_by

_OPERATOR = {"linear": "GEMM", "matmul": "GEMM", "bmm": "batched GEMM", "elementwise": "element-wise",
             "activation": "element-wise", "softmax": "softmax", "layer_norm": "layer norm", "conv2d": "convolution"}
SHAPES, MATRICES, DEVICE = "unseen shapes, {} folds", "unseen N and K, {} folds", "a GPU left out"
_CASE = ["device", "split", "operator", "learner"]
COLUMNS = [*_CASE, *"mape mape_low mape_high median p90 bias within_10 cover n".split()]
OURS = "this model"
_NAMES = {LINE: "line"}  # how baselines are called here


def path(dtype: str) -> Path:
    """Return where the scores of the shipped models lie."""
    return registry.SHIPPED / f"kernels_{dtype}_scores.csv"


@dataclass(frozen=True)
class Case:
    """Rows of a device, some of them held out, and what was predicted of these (NaN: of a row that was not held out).

    ``split`` are (train, test) row numbers, for the baselines; ``name`` says how they were held out.
    """

    device: str
    name: str
    rows: pd.DataFrame
    held_out: pd.DataFrame
    split: list[tuple[np.ndarray, np.ndarray]]


def own(model: CostModel, table: pd.DataFrame) -> Iterator[Case]:
    """Yield the cases of a model that was just trained on a table of its GPU's rows: unseen shapes."""
    for name, part in inputs.by_part(validation.usable(table), model.chip):
        if name not in model.parts:
            continue
        held_out = model.parts[name].held_out
        folds = held_out["fold"].to_numpy()
        split = [(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)) for fold in np.unique(folds)]
        folded = MATRICES if model.facts.get("source") in training.GRIDS else SHAPES
        yield Case(model.device, folded.format(len(split)), part, held_out, split)


def _answer(part: Part, rows: pd.DataFrame, frames: fitting.Frames) -> pd.DataFrame:
    terms, x = frames(rows)
    return pd.DataFrame({"predicted_ms": part.predict(terms.to_numpy(), x.to_numpy())[0]}, index=rows.index)


def left_out(model: CostModel, tables: Mapping[str, pd.DataFrame]) -> Iterator[Case]:
    """Yield the cases of a model of any GPU on each that was left out.

    Kernels that were throttled train none, and are scored as those of a GPU that was left out.
    """
    dtype = model.facts["dtype"]
    frames, trained = training.frames_of(tables, dtype), training.of_several(tables, dtype)
    rows = pd.concat([trained, training.of_several(tables, dtype, of_throttled=True)], ignore_index=True)
    for name, part in inputs.by_part(rows, features_gpu.Chip.of(load_devices()[next(iter(tables))], dtype)):
        if name not in model.parts:
            continue
        answer = model.parts[name].held_out.combine_first(_answer(model.parts[name], part, frames)).loc[part.index]
        for device in part["hardware_id"].unique():
            tested = (part["hardware_id"] == device).to_numpy()
            split = [(np.flatnonzero(~tested & (part.index < len(trained))), np.flatnonzero(tested))]
            yield Case(device, DEVICE, part, answer.where(pd.Series(tested, part.index), axis=0), split)


def scores(cases: Iterable[Case]) -> pd.DataFrame:
    """Return the scores (COLUMNS) of the model and of the baselines on the rows that were held out, by operator.

    Of GPUs that were left out also the means.
    """
    parts = [_predictions(case) for case in cases]
    if not parts:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat(parts, ignore_index=True)
    table = score_by(rows, _CASE).reindex(columns=COLUMNS)
    mean = table[table["split"] == DEVICE].groupby(_CASE[1:], sort=False).mean(numeric_only=True).reset_index()
    return pd.concat([table, mean.assign(device="mean")[COLUMNS]], ignore_index=True)


def _predictions(case: Case) -> pd.DataFrame:
    """Return the rows of a case that were held out: what each learner predicted of them, and the intervals of the model."""
    work, held_out = _work(case.rows), case.held_out
    data = Baselines(case.rows, work[:, :2].max(axis=1), work)
    shared = {"device": case.device, "split": case.name, "operator": case.rows["op"].map(_OPERATOR),
              "measured": case.rows["latency_ms"]}
    ends = {end: held_out.get(f"{end}_ms", np.nan) for end in ("predicted", "low", "high")}
    answers = [pd.DataFrame({**shared, "learner": OURS, **ends})]
    answers += [pd.DataFrame({**shared, "learner": _NAMES.get(name, name), "predicted": predicted})
                for name, predicted in predictions(data, case.split).items()]
    return pd.concat([answer[held_out["predicted_ms"].notna()] for answer in answers])


def _work(rows: pd.DataFrame) -> np.ndarray:
    """Return what the line is of (n, 3): computing and moving at a chip's ceilings, in ms, and a call."""
    dtype, vendors = str(rows["dtype"].iloc[0]), load_devices()
    of_rows = [vendors[hardware_id.removeprefix("published:")] for hardware_id in rows["hardware_id"]]
    compute_ms = rows["flops"] / np.array([vendor.peak_gflops[dtype] * 1e6 for vendor in of_rows])
    move_ms = rows["bytes"] / np.array([vendor.peak_gbps * 1e6 for vendor in of_rows])
    return np.column_stack([compute_ms, move_ms, np.ones(len(rows))])
