"""Fine-tuning: a model corrected by a few measured rows of another device, and which rows are worth measuring for it."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.predict.operators import inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fitting import FOLDS, LEAST_ROWS
from lib.predict.operators.parts import Part
from lib.predict.operators.validation import conformal, score, shapes_of, usable

_SMOOTH = ("log_flops", "log_bytes", "log_compute", "log_move", "over_ridge", "m", "n", "k", "window", "ins", "outs",
           "groups")  # the features over which a correction is smooth


def fine_tuned(model: CostModel, table: pd.DataFrame) -> CostModel:
    """Return ``model`` corrected by a few measured rows of another device: factors, intervals and scores from them.

    Parts without LEAST_ROWS / 4 rows of several shapes get the median factor of the others. Intervals come from rows left out
    in turn.
    """
    corrected: dict[str, Part] = {}
    for name, rows in inputs.by_part(usable(table), model.chip):
        if len(rows) >= LEAST_ROWS // 4 and len(set(shapes_of(rows))) > 1 and name in model.parts:
            corrected[name] = _corrected(model, name, rows)
    shift = float(np.median([part.correction.mean for part in corrected.values()])) if corrected else 0.0
    shifted = {name: replace(part, correction=Correction.constant(shift), origin=part.origin or model.device)
               for name, part in model.parts.items()}
    return replace(model, parts=shifted | corrected)


def _corrected(model: CostModel, name: str, rows: pd.DataFrame) -> Part:
    """Return a part corrected by measured rows; its interval comes from rows that a fold of the correction left out."""
    from sklearn.model_selection import GroupKFold

    part = replace(model.parts[name], correction=None)
    terms, x = inputs.frames(rows, model.chip)
    base, _ = part.predict(terms.to_numpy(), x.to_numpy())
    measured_ms, groups = rows["latency_ms"].to_numpy(), shapes_of(rows)
    ratio, names = np.log(measured_ms / base), [column for column in _SMOOTH if column in part.features]
    smooth, factor = x[names].to_numpy(), np.full(len(rows), np.nan)
    for train, test in GroupKFold(min(FOLDS, groups.nunique()), shuffle=True, random_state=0).split(smooth, ratio, groups):
        factor[test] = Correction.of(names, smooth[train], ratio[train])(smooth[test])
    predicted = base * np.exp(factor)
    edges, halves = conformal(ratio - factor, predicted, bins=2)
    return replace(part, correction=Correction.of(names, smooth, ratio), edges_ms=edges, halves=halves, rows=len(rows),
                   scores=score(measured_ms, predicted), origin="")


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
