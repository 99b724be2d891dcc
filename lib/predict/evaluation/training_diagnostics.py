"""What training rests on: errors by size, a learning curve, and the effect of each feature."""

from functools import partial

import numpy as np
import pandas as pd

from lib.predict.operators import cost_model, fitting, inputs, validation
from lib.predict.scores import score

_SEED = 0


def learning_curve(rows: pd.DataFrame, counts: tuple[int, ...], quick: bool = False) -> pd.DataFrame:
    """Return the error on unseen shapes against the number of measured points: ``points, mape, median, n``."""
    train, test = validation.folds(validation.shapes_of(rows))[0]
    order = np.random.default_rng(_SEED).permutation(train)
    measured, frames = rows["latency_ms"].to_numpy()[test], partial(inputs.frames, chip=None)
    (terms, x), lines = frames(rows.iloc[test]), []
    for count in sorted({min(count, len(train)) for count in counts}):
        part = fitting.without_intervals(rows.iloc[order[:count]], frames, quick)
        predicted = part.predict(terms.to_numpy(), x.to_numpy())[0]
        lines.append({"points": count, **score(measured, predicted)})
    return pd.DataFrame(lines)


def by_size(predictions: pd.DataFrame, bins: int = 6) -> pd.DataFrame:
    """Return the median and p90 error by measured time: ``family, from_ms, to_ms, median, p90, n``."""
    lines = []
    for family, part in predictions.groupby("family", sort=False):
        edges = np.quantile(part["latency_ms"], np.linspace(0, 1, bins + 1))
        place = np.clip(np.searchsorted(edges, part["latency_ms"], side="right") - 1, 0, bins - 1)
        by_place = (part["relative_error"].abs() * 100).groupby(place)
        ends = pd.DataFrame({"family": family, "from_ms": edges[:-1], "to_ms": edges[1:]})
        lines.append(ends.join(by_place.agg(median="median", p90=lambda size: size.quantile(0.9), n="size"), how="inner"))
    return pd.concat(lines, ignore_index=True)


def effects(model: cost_model.CostModel, rows: pd.DataFrame) -> pd.DataFrame:
    """Return by how many points the MAPE on ``rows`` grows when a feature is shuffled: ``feature, added_mape``, the most first.

    Uses the part with the most rows. The model was trained on them: errors are too low, but the ranking holds.
    """
    parts = [(name, part) for name, part in inputs.by_part(rows, model.chip) if name in model.parts]
    name, rows = max(parts, key=lambda part: (bool(model.parts[part[0]].regressor.names), len(part[1])))
    part, measured = model.parts[name], rows["latency_ms"].to_numpy()
    terms, x = (frame.to_numpy() for frame in inputs.frames(rows, model.chip))
    work, draw, added = (rows["flops"].to_numpy(), rows["bytes"].to_numpy()), np.random.default_rng(_SEED), []

    def error(features):
        return float(np.abs(part.predict(terms, features, work)[0] / measured - 1).mean())

    for feature in part.regressor.names:
        column, shuffled = part.features.index(feature), x.copy()
        shuffled[:, column] = draw.permutation(shuffled[:, column])
        added.append({"feature": feature, "added_mape": (error(shuffled) - error(x)) * 100})
    return pd.DataFrame(added, columns=["feature", "added_mape"]).sort_values("added_mape", ascending=False, ignore_index=True)
