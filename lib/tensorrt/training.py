"""Training of layer models: scored on networks left out in turn, beside what they are compared with."""

import pandas as pd

from lib.errors import InputError
from lib.tensorrt import layer_model, scores
from lib.tensorrt.engine import KINDS
from lib.tensorrt.layer_model import LayerModel


def train(table: pd.DataFrame, target: str, device: str, source: str = "", licence: str = "") -> dict[str, LayerModel]:
    """Return a model for each kind of layer that has measured rows, with its scores on networks left out in turn.

    Raises InputError where no kind has enough of them.
    """
    model = layer_model.fit(table, target, device, source, licence)
    measured = layer_model.measured(table, target)
    held_out = layer_model.held_out(measured, target)
    return {kind: model.of_kind(kind, scores.score(measured.loc[rows, target], held_out[rows]))
            for kind in KINDS.values() if (rows := (measured["kind"] == kind).to_numpy()).any()}


def words(models: dict[str, LayerModel], target: str) -> str:
    """Say how well models predict networks that they were not trained on."""
    if not models:
        raise InputError(f"there are no models of {target}")
    return "\n".join(f"{target} of {kind} layers, networks left out: MAPE {100 * model.scores['mape']:.1f} %, "
                     f"RMSPE {100 * model.scores['rmspe']:.1f} %, R2 {model.scores['r2']:.2f}, n {model.scores['n']:.0f}"
                     for kind, model in models.items())
