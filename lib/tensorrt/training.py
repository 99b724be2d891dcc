"""Train, save and find layer models: ``<kind>/<target>/<device>.json`` in a folder of models."""

from pathlib import Path
from typing import Literal

import pandas as pd

from lib import paths
from lib.config.base import PlainName, Strict, load, some
from lib.errors import InputError, choices
from lib.tensorrt.engine import KINDS
from lib.tensorrt.layer_model import LayerModel, Setting, fit_layer_model

SETTINGS = paths.PARAMS / "layer_power.yaml"
SHIPPED = paths.ROOT / "data" / "trained_models"
OWN = paths.DATA / "trained_models"
SHIPPED_DEVICE = "rtx-3060-laptop"
_Settings = dict[Literal[tuple(KINDS.values())], Setting]


class Settings(Strict):
    """``params/layer_power.yaml``: test networks, and the settings of each target and kind."""

    test: some(PlainName)
    runtime: _Settings = {}
    power: _Settings = {}

    def of(self, target: str, kind: str) -> Setting:
        """Return the setting of a target and kind."""
        return getattr(self, target).get(kind, Setting())


def load_settings(path: Path = SETTINGS) -> Settings:
    """Read the settings; InputError names what is wrong."""
    return load(Settings, path)


def train_models(table: pd.DataFrame, target: str, device: str, learner: str = "",
                 **origin: str) -> tuple[list[LayerModel], list[str]]:
    """Return a model of each kind of layer with measured rows, and why the others have none.

    ``learner`` replaces that of the settings; ``origin`` is the data's ``source`` and ``licence``.
    """
    settings, models, refused = load_settings(), [], []
    for kind in KINDS.values():
        setting = settings.of(target, kind)
        if learner:
            setting = setting.model_copy(update={"learner": learner})
        try:
            models.append(fit_layer_model(table, kind, target, device, setting, **origin))
        except InputError as error:
            refused.append(str(error))
    return models, refused


def save_model(model: LayerModel, folder: Path = OWN) -> Path:
    """Write a model to its place, over an earlier one of the same device, kind and target."""
    return model.save(folder / model.kind / model.target / f"{model.device}.json")


def load_models(device: str, folders: tuple[Path, ...], or_else: str = "") -> list[LayerModel]:
    """Read a device's models, each from the first folder that has it.

    Without a name: those of ``or_else`` if there are any, or of the only device there is.
    """
    paths_of = {}
    for folder in reversed(folders):
        for path in sorted(folder.glob("*/*/*.json")):
            paths_of.setdefault(path.stem, {})[path.parts[-3:-1]] = path
    name = device or or_else
    if not device and or_else not in paths_of and len(paths_of) == 1:
        name = next(iter(paths_of))
    if name not in paths_of:
        raise InputError(f"no layer models of {name!r} in {choices(folders)}; there are those of: "
                         f"{choices(sorted(paths_of)) or 'no device'} (--model-device)")
    return [LayerModel.load(path) for path in paths_of[name].values()]
