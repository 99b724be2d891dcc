"""What training rests on: errors by size, a learning curve, and the effect of each feature."""

from functools import partial

import numpy as np
import pandas as pd

from lib.predict.operators import inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fitting import FOLDS, without_intervals
from lib.predict.operators.validation import shapes_of
from lib.predict.scores import score

_SEED = 0


def learning_curve(rows: pd.DataFrame, counts: tuple[int, ...], quick: bool = False) -> pd.DataFrame:
    """Return the error on unseen shapes against the number of measured points: ``points, mape, median, n``."""
    from sklearn.model_selection import GroupKFold

    split = GroupKFold(FOLDS, shuffle=True, random_state=_SEED).split(rows, groups=shapes_of(rows))
    train, test = next(split)
    order = np.random.default_rng(_SEED).permutation(train)
    measured, scores = rows["latency_ms"].to_numpy()[test], []
    for count in sorted({min(count, len(train)) for count in counts}):
        predicted = _predicted(rows.iloc[order[:count]], rows.iloc[test], quick)
        scores.append({"points": count, **score(measured, predicted)})
    return pd.DataFrame(scores)


def _predicted(train: pd.DataFrame, test: pd.DataFrame, quick: bool) -> np.ndarray:
    frames = partial(inputs.frames, chip=None)
    terms, x = frames(test)
    return without_intervals(train, frames, quick).predict(terms.to_numpy(), x.to_numpy())[0]


def by_size(predictions: pd.DataFrame, bins: int = 6) -> pd.DataFrame:
    """Return the median and p90 error by measured time: ``family, from_ms, to_ms, median, p90, n``."""
    rows = []
    for family, part in predictions.groupby("family", sort=False):
        edges = np.quantile(part["latency_ms"], np.linspace(0, 1, bins + 1))
        place = np.clip(np.searchsorted(edges, part["latency_ms"], side="right") - 1, 0, bins - 1)
        for number in range(bins):
            error = part["relative_error"].abs().to_numpy()[place == number] * 100
            if len(error):
                rows.append({"family": family, "from_ms": edges[number], "to_ms": edges[number + 1],
                             "median": float(np.median(error)), "p90": float(np.percentile(error, 90)), "n": len(error)})
    return pd.DataFrame(rows)


def effects(model: CostModel, rows: pd.DataFrame) -> pd.DataFrame:
    """Return by how many points the MAPE on ``rows`` grows when a feature is shuffled: ``feature, added_mape``, the most first.

    Of the rows of the part that most are of; the model was trained on them, which makes the level of the error too low, not the
    order.
    """
    parts = [(name, part) for name, part in inputs.by_part(rows, model.chip) if name in model.parts]
    name, rows = max(parts, key=lambda part: (bool(model.parts[part[0]].regressor.names), len(part[1])))
    part, measured = model.parts[name], rows["latency_ms"].to_numpy()
    terms, x = (frame.to_numpy() for frame in inputs.frames(rows, model.chip))
    work = rows["flops"].to_numpy(), rows["bytes"].to_numpy()

    def error(features: np.ndarray) -> float:
        return float(np.abs(part.predict(terms, features, work)[0] / measured - 1).mean())

    draw, added, level = np.random.default_rng(_SEED), [], error(x)
    for feature in part.regressor.names:
        column, shuffled = part.features.index(feature), x.copy()
        shuffled[:, column] = draw.permutation(shuffled[:, column])
        added.append({"feature": feature, "added_mape": (error(shuffled) - level) * 100})
    return pd.DataFrame(added, columns=["feature", "added_mape"]).sort_values("added_mape", ascending=False, ignore_index=True)
