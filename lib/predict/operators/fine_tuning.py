"""Fine-tuning: a CPU's model corrected by a few measured rows of another CPU, and which rows are worth measuring for it."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.predict.operators import inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fitting import LEAST_ROWS
from lib.predict.operators.parts import Part
from lib.predict.operators.validation import conformal, folds, shapes_of, usable
from lib.predict.scores import score

_SMOOTH = ("log_flops", "log_bytes", "m", "n", "k", "window", "ins", "outs", "groups")  # over which a correction is smooth
_FEW = 3.0  # rows of its own as which the other parts' factor counts


def fine_tuned(model: CostModel, table: pd.DataFrame) -> CostModel:
    """Return ``model`` corrected by a few measured rows of another CPU: factors, intervals and scores from them.

    Parts without LEAST_ROWS / 4 rows of several shapes get the median factor of the others (of all rows, where there are none),
    drawn towards that of the rows that they have. Intervals come from rows left out in turn.
    """
    ratios, parts = {}, {}
    for name, rows in inputs.by_part(usable(table), None):
        if name in model.parts:
            plain, (terms, x) = replace(model.parts[name], correction=None), inputs.frames(rows, None)
            predicted_ms, *_ = plain.predict(terms, x, rows[["flops", "bytes"]].to_numpy(float).T)
            ratios[name] = np.log(rows["latency_ms"].to_numpy() / predicted_ms)
            if len(rows) >= LEAST_ROWS // 4 and len(set(shapes_of(rows))) > 1:
                parts[name] = _corrected(plain, rows, terms, x, ratios[name])
    usual = [part.correction.mean for part in parts.values()] or [value for ratio in ratios.values() for value in ratio]
    shift = float(np.median(usual)) if usual else 0.0
    for name, part in model.parts.items():
        own, weight = np.median(ratios.get(name, shift)), len(ratios.get(name, ()))
        drawn = float((weight * own + _FEW * shift) / (weight + _FEW))
        parts.setdefault(name, replace(part, correction=Correction.constant(drawn), origin=part.origin or model.device))
    return replace(model, parts={name: parts[name] for name in model.parts})


def _corrected(part: Part, rows: pd.DataFrame, terms: pd.DataFrame, x: pd.DataFrame, ratio: np.ndarray) -> Part:
    """Return a part corrected by measured rows; its interval comes from rows that a fold of the correction left out.

    ``ratio`` is the log of measured over predicted.
    """
    names = [name for name in _SMOOTH if name in part.features]
    measured_ms, factor = rows["latency_ms"].to_numpy(), np.full(len(rows), np.nan)
    smooth = x[names].to_numpy()
    for train, test in folds(shapes_of(rows)):
        factor[test] = Correction.fit(names, smooth[train], ratio[train])(smooth[test])
    base_ms, *_ = replace(part, scaling=None).predict(terms, x)
    edges, halves = conformal(ratio - factor, base_ms, bins=2)
    return replace(part, correction=Correction.fit(names, smooth, ratio), edges_ms=edges, halves=halves, families={},
                   rows=len(rows), scores=score(measured_ms, measured_ms * np.exp(factor - ratio)), origin="")


def farthest_first(x: np.ndarray, count: int) -> np.ndarray:
    """Return which ``count`` rows of ``x`` (n, features) lie farthest from one another: greedy, from the middle outwards.

    What is far from all that is known corrects a smooth function most (Gonzalez' farthest-first traversal, 1985).
    """
    z = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    chosen, distance = [int(np.argmin((z ** 2).sum(axis=1)))], np.inf
    while len(chosen) < min(count, len(z)):
        distance = np.minimum(distance, ((z - z[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(np.argmax(distance)))
    return np.array(chosen)
