"""Training of operator models from ``sweep`` tables, with intervals from held-out groups of shapes.

Intervals are conformal: the errors made on groups of shapes that a fold left out, by predicted size (cross-conformal
predictors: Vovk, 2015).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.operators import features, inputs, parts
from lib.predict.operators.augmentation import crossed
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.parts import Part
from lib.predict.operators.regressors import Boosted, Ensemble, Rates, Regressor, Student, nonnegative_rates, weights
from lib.predict.operators.validation import conformal, score, shapes_of, usable
from lib.progress import track

LEAST_ROWS = 40
FOLDS = 5
_QUICK_FOLDS = 3

Frames = Callable[[pd.DataFrame], tuple[pd.DataFrame, pd.DataFrame]]  # rows of one part -> their terms and features


def fit(table: pd.DataFrame, facts: Mapping[str, Any] | None = None, chip: Chip | None = None,
        quick: bool = False) -> CostModel:
    """Train on a ``sweep`` table, or one like it; parts with fewer than LEAST_ROWS rows are left out and named in ``facts``.

    Raises InputError for what ``usable`` refuses, and when no part has enough rows.
    """
    good = usable(table)
    model = CostModel(str(good["device"].iloc[0]) if len(good) else "", dict(facts or {}), chip=chip)
    several = dict(inputs.by_part(good, chip))
    few = {name: len(rows) for name, rows in several.items() if len(rows) < LEAST_ROWS}
    for name in track([name for name in several if name not in few], "train"):
        model.parts[name] = fit_part(several[name], partial(inputs.frames, chip=chip), quick, distilled=chip is None)
    if not model.parts:
        raise InputError(f"too few rows: a part needs {LEAST_ROWS}, there are {few or 'none'}")
    model.facts["left_out"] = few
    return model


def fit_regressor(rows: pd.DataFrame, frames: Frames, quick: bool = False, distilled: bool = True,
                  rates: bool = False) -> Regressor:
    """Train the regressor of one part on its rows, ``distilled``: as one small network, else as trees.

    ``rates``: as rates alone, which carry over to other devices.
    """
    terms, x = frames(rows)
    measured = rows["latency_ms"].to_numpy(), weights(rows)
    if rates:
        return Rates(list(terms), nonnegative_rates(terms, measured[0]))
    if not distilled:
        return Boosted.of(terms, x, *measured)
    teacher = Ensemble.of(terms, x, *measured, quick)
    return Student.of(teacher, terms, x, quick, None if quick else lambda count: frames(crossed(rows, count)))


def fit_part(rows: pd.DataFrame, frames: Frames, quick: bool = False, groups: pd.Series | None = None,
             distilled: bool = True, rates: bool = False) -> Part:
    """Train one part on its rows and validate it on groups of them that a fold left out, see ``fit_regressor``.

    ``groups``, aligned with the rows, says which rows no fold may split (default: equal shapes).
    """
    from sklearn.model_selection import GroupKFold

    terms, x = frames(rows)
    measured_ms, codes = rows["latency_ms"].to_numpy(), inputs.codes(features.columns(rows))
    groups = shapes_of(rows) if groups is None else groups
    predicted, fold, outside = np.full(len(rows), np.nan), np.zeros(len(rows), int), np.zeros(len(rows), bool)
    folds = min(_QUICK_FOLDS if quick else FOLDS, groups.nunique())
    split = GroupKFold(folds, shuffle=True, random_state=0).split(x, measured_ms, groups)
    for number, (train, test) in enumerate(split):
        part = without_intervals(rows.iloc[train], frames, quick, distilled, rates)
        predicted[test], _, out = part.predict(terms.iloc[test].to_numpy(), x.iloc[test].to_numpy())
        outside[test], fold[test] = out | ~np.isin(codes[test], part.codes), number
    error = np.log(measured_ms / predicted)
    part = without_intervals(rows, frames, quick, distilled, rates)
    part.edges_ms, part.halves = conformal(error, predicted)
    part.scores = score(measured_ms, predicted)
    part.held_out = held_out(rows, predicted, error, fold).assign(out_of_range=outside)
    return part


def without_intervals(rows: pd.DataFrame, frames: Frames, quick: bool = False, distilled: bool = False,
                      rates: bool = False) -> Part:
    """Train one part on its rows without intervals or scores."""
    _, x = frames(rows)
    regressor = fit_regressor(rows, frames, quick, distilled, rates)
    return Part(regressor, list(x), parts.ranges(x), inputs.kinds(rows), [], [np.nan], len(rows))


def held_out(rows: pd.DataFrame, predicted: np.ndarray, error: np.ndarray, fold: np.ndarray) -> pd.DataFrame:
    """Return each row's prediction by the fold that left it out, its interval from the errors of the other folds."""
    half = np.zeros(len(rows))
    for number in np.unique(fold):
        test = fold == number
        edges, halves = conformal(error[~test], predicted[~test])
        half[test] = np.array(halves)[np.searchsorted(edges, predicted[test])]
    return pd.DataFrame({"predicted_ms": predicted, "low_ms": predicted * np.exp(-half), "high_ms": predicted * np.exp(half)},
                        index=rows.index)
