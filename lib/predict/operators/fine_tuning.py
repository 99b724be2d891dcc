"""Fine-tuning: a model corrected by a few measured rows of another device, and which rows are worth measuring for it."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.predict.operators import inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.correction import Correction
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fitting import LEAST_ROWS
from lib.predict.operators.parts import Part
from lib.predict.operators.validation import conformal, folds, shapes_of, usable
from lib.predict.scores import score

_SMOOTH = ("log_flops", "log_bytes", "log_compute", "log_move", "over_ridge", "m", "n", "k", "window", "ins", "outs",
           "groups", "working", "log_served", "over_served")  # the features over which a correction is smooth
_FEW = 3.0  # rows of its own as which the other parts' factor counts


def fine_tuned(model: CostModel, table: pd.DataFrame) -> CostModel:
    """Return ``model`` corrected by a few measured rows of another device: factors, intervals and scores from them.

    Parts without LEAST_ROWS / 4 rows of several shapes get the median factor of the others (of all rows, where there are none),
    drawn towards that of the rows that they have. Intervals come from rows left out in turn.
    """
    by_name = {name: rows for name, rows in inputs.by_part(usable(table), model.chip) if name in model.parts}
    ratios = {name: _ratio(model, name, rows) for name, rows in by_name.items()}
    corrected = {name: _corrected(model, name, rows, ratios[name]) for name, rows in by_name.items()
                 if len(rows) >= LEAST_ROWS // 4 and len(set(shapes_of(rows))) > 1}
    usual = [part.correction.mean for part in corrected.values()] or [value for ratio in ratios.values() for value in ratio]
    shift = float(np.median(usual)) if usual else 0.0
    shifted = {name: replace(part, correction=Correction.constant(_drawn(shift, ratios.get(name, np.array([])))),
                             origin=part.origin or model.device) for name, part in model.parts.items()}
    return replace(model, parts=shifted | corrected)


def _drawn(shift: float, ratio: np.ndarray) -> float:
    """Return the log factor of a part of few rows: theirs, drawn towards that of the other parts."""
    return float((len(ratio) * np.median(ratio) + _FEW * shift) / (len(ratio) + _FEW)) if len(ratio) else shift


def _ratio(model: CostModel, name: str, rows: pd.DataFrame) -> np.ndarray:
    """Return the log of measured over what the model predicts without a correction."""
    return np.log(rows["latency_ms"].to_numpy() / _predicted_ms(replace(model.parts[name], correction=None), model.chip, rows))


def _predicted_ms(part: Part, chip: Chip | None, rows: pd.DataFrame) -> np.ndarray:
    terms, x = inputs.frames(rows, chip)
    return part.predict(terms.to_numpy(), x.to_numpy(), (rows["flops"].to_numpy(), rows["bytes"].to_numpy()))[0]


def _corrected(model: CostModel, name: str, rows: pd.DataFrame, ratio: np.ndarray) -> Part:
    """Return a part corrected by measured rows; its interval comes from rows that a fold of the correction left out.

    ``ratio`` is the log of measured over predicted.
    """
    part, (_, x), lengths = model.parts[name], inputs.frames(rows, model.chip), model.chip is not None
    measured_ms, groups = rows["latency_ms"].to_numpy(), shapes_of(rows)
    names = smooth_of(part.features)
    smooth, factor = x[names].to_numpy(), np.full(len(rows), np.nan)
    for train, test in folds(groups):
        factor[test] = Correction.fit(names, smooth[train], ratio[train], lengths)(smooth[test])
    base_ms = _predicted_ms(replace(part, correction=None, scaling=None), model.chip, rows)
    edges, halves = conformal(ratio - factor, base_ms, bins=2)
    return replace(part, correction=Correction.fit(names, smooth, ratio, lengths), edges_ms=edges, halves=halves, families={},
                   rows=len(rows), scores=score(measured_ms, measured_ms * np.exp(factor - ratio)), origin="")


def smooth_of(names: Iterable[str]) -> list[str]:
    """Return the features over which a correction is smooth, of those that a part has."""
    return [name for name in _SMOOTH if name in set(names)]


def farthest_first(x: np.ndarray, count: int) -> np.ndarray:
    """Return which ``count`` rows of ``x`` (n, features) lie farthest from one another: greedy, from the middle outwards.

    What is far from all that is known corrects a smooth function most (Gonzalez' farthest-first traversal, 1985).
    """
    z = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    chosen = [int(np.argmin((z ** 2).sum(axis=1)))]
    distance = ((z - z[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(z)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((z - z[chosen[-1]]) ** 2).sum(axis=1))
    return np.array(chosen)
