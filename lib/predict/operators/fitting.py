"""Training of operator models from ``sweep`` tables, with intervals from held-out groups of shapes.

Intervals are conformal: the errors made on groups of shapes that a fold left out, by predicted size (cross-conformal
predictors: Vovk, 2015).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.operators import features, inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.parts import FAMILY, Interval, Part
from lib.predict.operators.regressors import Boosted, Rates, nonnegative_rates, weights
from lib.predict.operators.validation import conformal, folds, shapes_of, usable
from lib.predict.scores import score
from lib.progress import track

LEAST_ROWS = 40
_LEAST_OF_FAMILY = 60  # groups from which on a family has intervals of its own: five GPUs say little of a sixth

Form = Literal["boosted", "rates"]  # of a regressor
Frames = Callable[[pd.DataFrame], list[pd.DataFrame]]  # rows of one part -> their terms and features


def fit(table: pd.DataFrame, facts: Mapping[str, Any] | None = None, chip: Chip | None = None,
        groups: Callable[[pd.DataFrame], pd.Series] = shapes_of) -> CostModel:
    """Train on a ``sweep`` table, or one like it; parts with fewer than LEAST_ROWS rows are left out and named in ``facts``.

    ``groups`` says which rows no fold may split. Raises InputError for what ``usable`` refuses, and when no part has enough
    rows.
    """
    good, few = usable(table), {}
    model = CostModel(str(good["device"].iloc[0]) if len(good) else "", dict(facts or {}), chip=chip)
    for name, rows in track(list(inputs.by_part(good, chip)), "train"):
        if len(rows) < LEAST_ROWS:
            few[name] = len(rows)
        else:
            model.parts[name] = fit_part(rows, partial(inputs.frames, chip=chip), groups(rows))
    if not model.parts:
        raise InputError(f"too few rows: a part needs {LEAST_ROWS}, there are {few or 'none'}")
    model.facts["left_out"] = few
    return model


def fit_part(rows: pd.DataFrame, frames: Frames, groups: pd.Series, form: Form = "boosted") -> Part:
    """Train one part on its rows and validate it on groups of them that a fold left out, see ``_without_intervals``.

    ``groups``, aligned with the rows, says which rows no fold may split. Folds do not see UNASKED columns.
    """
    asked = rows.drop(columns=features.UNASKED, errors="ignore")
    (terms, x), codes = frames(asked), inputs.codes(features.columns(rows))
    predicted, fold, outside = np.full(len(rows), np.nan), np.zeros(len(rows), int), np.zeros(len(rows), bool)
    for number, (train, test) in enumerate(folds(groups)):
        part = _without_intervals(asked.iloc[train], frames, form)
        predicted[test], _, out = part.predict(terms.iloc[test], x.iloc[test])
        outside[test], fold[test] = out | ~np.isin(codes[test], part.codes), number
    counts = groups.groupby(rows["op"]).nunique()
    large = counts.index[counts >= _LEAST_OF_FAMILY] if FAMILY in x and len(counts) > 1 else []
    part = _validated(_without_intervals(rows, frames, form), rows, predicted, fold,
                      rows["op"].where(rows["op"].isin(large), "").to_numpy(str))
    part.held_out["out_of_range"] = outside
    return part


def _without_intervals(rows: pd.DataFrame, frames: Frames, form: Form) -> Part:
    """Train one part on its rows without intervals or scores.

    ``form``: rates and trees (boosted), or rates alone, which carry over to other devices.
    """
    terms, x = frames(rows)
    measured_ms = rows["latency_ms"].to_numpy()
    if form == "rates":
        regressor = Rates(list(terms), nonnegative_rates(terms, measured_ms))
    else:
        regressor = Boosted.fit(terms, x, measured_ms, weights(rows))
    return Part.trained(regressor, rows, x)


def _validated(part: Part, rows: pd.DataFrame, predicted: np.ndarray, fold: np.ndarray, ops: np.ndarray) -> Part:
    """Give a part intervals, scores and ``held_out`` by what was predicted of each row by the fold that left it out.

    ``ops`` are the families of rows that have intervals of their own, empty where that is of all rows. In ``held_out`` a row's
    interval is by the errors of the other folds.
    """
    measured, widths = rows["latency_ms"].to_numpy(), np.zeros(len(rows))
    error = np.log(measured / predicted)
    of_all, part.families = _intervals(error, predicted, ops)
    part.edges_ms, part.halves, part.scores = of_all.edges_ms, of_all.halves, score(measured, predicted)
    for number in np.unique(fold):
        test = fold == number
        of_others, families = _intervals(error[~test], predicted[~test], ops[~test])
        widths[test] = of_others.half(predicted[test], families, ops[test])
    part.held_out = pd.DataFrame({"predicted_ms": predicted, "low_ms": predicted * np.exp(-widths),
                                  "high_ms": predicted * np.exp(widths), "fold": fold}, index=rows.index)
    return part


def _intervals(error: np.ndarray, predicted: np.ndarray, ops: np.ndarray) -> tuple[Interval, dict[str, Interval]]:
    """Return the intervals of all rows, and those of each family that has its own (``ops`` is empty where it has none)."""
    def interval(rows) -> Interval:
        edges, halves = conformal(error[rows], predicted[rows])
        return Interval(edges_ms=edges, halves=halves)

    return interval(...), {str(op): interval(ops == op) for op in np.unique(ops) if op}
