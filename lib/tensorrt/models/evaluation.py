"""Evaluation of models of layers: each network is predicted by models that were trained on the other networks."""

import numpy as np
import pandas as pd

from lib.tensorrt.models import baselines, lasso, layer_model
from lib.tensorrt.models.training import Settings

OURS, ORIGINAL = "work terms (ours)", "original pipeline"
COLUMNS = ("network", "layer_name", "kind", "model", "measured_ms", "predicted_ms")


def _original(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    return lasso.predict(test, lasso.fit(train, target, corrected=False))


BASELINES = {"mean": baselines.mean, "roofline": baselines.roofline, ORIGINAL: _original}


def held_out(layers: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Predict the runtime of every measured layer by each model without having seen the layer's network.

    ``layers`` is the table of ``dataset.read_training``. Returns one row per layer and model in ``COLUMNS``. A kind of
    layer that was measured in one network alone has no rows.
    """
    table, parts = layer_model.measured(layers, "runtime"), []
    for kind, rows in table.groupby("kind", sort=False):
        if rows["network"].nunique() < 2:
            continue
        ours = layer_model.held_out(table, kind, "runtime", settings.of("runtime", kind))
        predicted = {OURS: ours[(table["kind"] == kind).to_numpy()]}
        for name, model in BASELINES.items():
            values = pd.Series(np.nan, rows.index)
            for network in rows["network"].unique():
                is_test = rows["network"] == network
                values[is_test] = model(rows[~is_test], rows[is_test], "runtime")
            predicted[name] = values.to_numpy()
        shown = rows[["network", "layer_name", "kind"]].assign(measured_ms=rows["runtime"])
        parts += [shown.assign(model=name, predicted_ms=values) for name, values in predicted.items()]
    return pd.concat(parts or [layers.head(0)], ignore_index=True).reindex(columns=COLUMNS)
