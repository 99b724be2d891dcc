"""How good are the operator models? Baselines beside them on the same held-out shapes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.predict.analytic import roofline
from lib.predict.operators import cost_model, features, fitting, validation
from lib.predict.operators.regressors import LEAST_MS, nonnegative_rates
from lib.predict.scores import score_by

ROOFLINE, LINE = BASELINES = ("roofline", "linear per operator")
Family = tuple[tuple[str, ...], str]  # families of operators, and the pass
FAMILIES = {
    "conv2d forward": (("conv2d",), "forward"), "conv2d backward": (("conv2d",), "backward"),
    "matmul and linear": (("linear", "matmul"), "forward"), "batched GEMM": (("bmm",), "forward"),
    "attention forward": (("attention",), "forward"), "attention backward": (("attention",), "backward"),
    "pooling forward": (("pool2d", "pool3d"), "forward"), "pooling backward": (("pool2d", "pool3d"), "backward"),
    "memory-bound forward": (features.GROUPS["memory"], "forward"),
    "memory-bound backward": (features.GROUPS["memory"], "backward")}


@dataclass(frozen=True)
class Baselines:
    """What learners are given: rows, the ideal time in ms under a roof, and what a line is of (n, terms)."""

    rows: pd.DataFrame
    roof_ms: np.ndarray
    work: np.ndarray

    @property
    def measured(self) -> np.ndarray:
        """Return the measured times in ms."""
        return self.rows["latency_ms"].to_numpy()


def _linear(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit a FLOP's, a byte's and a call's cost for each family, never negative (as Li et al., MICRO 2023)."""
    ops, predicted = data.rows["op"].to_numpy(), np.full(len(test), np.nan)
    for op in np.unique(ops):
        alike, tested = train[ops[train] == op], ops[test] == op
        alike = alike if len(alike) > 3 else train  # noqa: PLR2004 - as many as there are costs
        predicted[tested] = data.work[test[tested]] @ nonnegative_rates(pd.DataFrame(data.work[alike]), data.measured[alike])
    return np.maximum(predicted, LEAST_MS)


def predictions(data: Baselines, split: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return ms of each held-out row by each of BASELINES, trained without the row's fold; ``split``: (train, test) numbers."""
    predicted = {name: np.full(len(data.rows), np.nan) for name in BASELINES}
    for train, test in split:
        predicted[ROOFLINE][test] = np.maximum(data.roof_ms[test], LEAST_MS)
        predicted[LINE][test] = _linear(data, train, test)
    return predicted


def compare(table: pd.DataFrame, roof: roofline.Roof,
            model: cost_model.CostModel) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare ``model`` with BASELINES on shapes that a fold left out; return their scores and the predictions of ``model``.

    ``model`` was just trained on ``table``, a usable sweep, and has the predictions of its folds. Scores: ``family, learner``,
    what ``score`` gives, and the interval's ``cover``. Predictions: the rows of ``table`` with ``family, predicted_ms, low_ms,
    high_ms, out_of_range``.
    """
    scored, predicted = [], []
    held_out = pd.concat([part.held_out for part in model.parts.values()])
    for family, (ops, passes) in FAMILIES.items():
        rows = table[table["op"].isin(ops) & (table["pass"] == passes) & table.index.isin(held_out.index)]
        if len(rows) < fitting.LEAST_ROWS:
            continue
        ours, case = rows.drop(columns=["low_ms", "high_ms"]).join(held_out), {"family": family, "measured": rows["latency_ms"]}
        work = rows[["flops", "bytes"]].to_numpy(float)
        data = Baselines(rows.reset_index(drop=True), roofline.seconds(work, roof) * 1e3,
                         np.column_stack([work, np.ones(len(rows))]))  # a line of FLOPs, bytes and a call
        answers = predictions(data, validation.folds(validation.shapes_of(rows)))
        scored += [pd.DataFrame({**case, "learner": name, "predicted": values}) for name, values in answers.items()]
        scored.append(pd.DataFrame({**case, "learner": "this model",
                                    **{end: ours[f"{end}_ms"] for end in ("predicted", "low", "high")}}))
        predicted.append(ours.assign(family=family))
    if not predicted:
        raise InputError(f"no family has {fitting.LEAST_ROWS} usable rows; there are: {choices(sorted(set(table['op'])))}; "
                         "sweep more")
    return score_by(pd.concat(scored), ["family", "learner"]), pd.concat(predicted, ignore_index=True)
