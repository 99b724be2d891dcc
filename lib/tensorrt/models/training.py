"""Trained layer models: as ``params/layer_power.yaml`` says, scored on networks left out.

They are kept as ``<kind>/<target>/<device>.json``.

The shipped ones are in ``data/trained_models``, this machine's own beside its data.
"""

from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field

from lib import paths
from lib.config.base import PlainName, Strict, load
from lib.errors import InputError, choices
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models import layer_model
from lib.tensorrt.models.layer_model import TARGETS, LayerModel, Setting

SETTINGS = paths.PARAMS / "layer_power.yaml"
SHIPPED = paths.ROOT / "data" / "trained_models"
OWN = paths.DATA / "trained_models"
SHIPPED_DEVICE = "rtx-3060-laptop"
_Settings = dict[Literal[tuple(KINDS.values())], Setting]


class Settings(Strict):
    """``params/layer_power.yaml``: networks that no choice sees, and the settings of each target and kind."""

    test: Annotated[tuple[PlainName, ...], Field(min_length=1)]
    runtime: _Settings = {}
    power: _Settings = {}

    def of(self, target: str, kind: str) -> Setting:
        """Return the setting of a target and kind."""
        return getattr(self, target).get(kind, Setting())


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


def save(model: LayerModel, folder: Path = OWN) -> Path:
    """Write a model to its place; an earlier one of the same device, kind and target is replaced."""
    return model.save(folder / model.kind / model.target / f"{model.device}.json")


def _files(folders: tuple[Path, ...]) -> dict[tuple[str, str, str], Path]:
    """Return the files of models by device, kind and target, each from the first of ``folders`` that has it."""
    return {(path.stem, kind, target): path for folder in reversed(folders) for kind in KINDS.values() for target in TARGETS
            for path in folder.glob(f"{kind}/{target}/*.json")}


def devices(folders: tuple[Path, ...]) -> list[str]:
    """Return the devices that have models in ``folders``."""
    return sorted({device for device, _, _ in _files(folders)})


def load_models(device: str = "", folders: tuple[Path, ...] = (OWN, SHIPPED)) -> list[LayerModel]:
    """Read a device's models from the first of ``folders`` that has each; no name: the only device there is.

    Raises InputError, which lists the devices.
    """
    names = devices(folders)
    name = device or (names[0] if len(names) == 1 else "")
    if name not in names:
        which = f" of {device!r}" if device else ""
        raise InputError(f"{'no' if device or not names else 'several'} layer models{which} in {choices(folders)}; "
                         f"there are those of: {choices(names) or 'no device'}")
    models = []
    for (owner, kind, target), path in _files(folders).items():
        if owner == name:
            models.append(model := LayerModel.load(path))
            if (model.kind, model.target) != (kind, target):
                raise InputError(f"{path} is a model of {model.target} of {model.kind} layers, not of {target} of {kind} ones")
    return models
