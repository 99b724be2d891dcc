"""Training of layer models: each kind and target as ``params/layer_power.yaml`` says, scored on networks left out in turn."""

from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field

from lib import paths
from lib.config.base import PlainName, Strict, load
from lib.errors import InputError
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models import layer_model
from lib.tensorrt.models.layer_model import LayerModel, Setting

SETTINGS = paths.PARAMS / "layer_power.yaml"


class KindSettings(Strict):
    """The setting of each kind of layer."""

    convolutional: Setting = Setting()
    pooling: Setting = Setting()
    dense: Setting = Setting()


class Settings(Strict):
    """``params/layer_power.yaml``: networks that no choice sees, and the settings of each target and kind."""

    test: Annotated[tuple[PlainName, ...], Field(min_length=1)]
    runtime: KindSettings = KindSettings()
    power: KindSettings = KindSettings()

    def of(self, target: str, kind: str) -> Setting:
        """Return the setting of a target and kind."""
        return getattr(getattr(self, target), kind)


def load_settings(path: Path = SETTINGS) -> Settings:
    """Read the settings; InputError names what is wrong."""
    return load(Settings, path)


def train(table: pd.DataFrame, target: str, device: str, source: str = "", licence: str = "",
          settings: Settings | None = None, learner: str = "") -> tuple[list[LayerModel], list[str]]:
    """Return a model for each kind of layer that has measured rows, and of each other kind why there is none.

    ``learner`` stands in for the one of the settings.
    """
    settings, models, refused = settings or load_settings(), [], []
    changed = {"learner": learner} if learner else {}
    for kind in KINDS.values():
        setting = settings.of(target, kind).model_copy(update=changed)
        try:
            models.append(layer_model.fit(table, kind, target, device, setting, source, licence))
        except InputError as error:
            refused.append(str(error))
    return models, refused


def words(model: LayerModel) -> str:
    """Say how well a model predicts networks that it was not trained on."""
    scores = model.scores
    return (f"{model.target} of {model.kind} layers, networks left out: MAPE {100 * scores['mape']:.1f} %, RMSPE "
            f"{100 * scores['rmspe']:.1f} %, R2 {scores['r2']:.2f}, n {scores['n']:.0f}")
