"""Trained layer models: as ``params/layer_power.yaml`` says, scored on networks left out; and the search for these settings.

Models are kept as ``<kind>/<target>/<device>.json``: the shipped ones in ``data/trained_models``, this machine's own beside its
data. The search is Optuna's, on training networks alone; its study is kept in SQLite.
"""

import io
from pathlib import Path
from typing import Literal

import pandas as pd

from lib import files, paths
from lib.config.base import PlainName, Strict, load, some
from lib.errors import InputError, choices
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models import layer_model
from lib.tensorrt.models.layer_model import TARGETS, LayerModel, Setting

SETTINGS = paths.PARAMS / "layer_power.yaml"
SHIPPED = paths.ROOT / "data" / "trained_models"
OWN = paths.DATA / "trained_models"
SHIPPED_DEVICE = "rtx-3060-laptop"
STORAGE = paths.DATA / "layer_power" / "optuna.sqlite"
_OPTIONAL = layer_model.TERMS[1:-1]
_LEAST_NETWORKS = 2
_Settings = dict[Literal[tuple(KINDS.values())], Setting]


class Settings(Strict):
    """``params/layer_power.yaml``: networks that no choice sees, and the settings of each target and kind."""

    test: some(PlainName)
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


def load_models(device: str, folders: tuple[Path, ...]) -> list[LayerModel]:
    """Read a device's models from the first of ``folders`` that has each; with an empty name: of the only device there is.

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


# ---------------------------------------------------------------------------------------------- search for settings

def training_rows(table: pd.DataFrame, test: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows of networks that choices may see; InputError for a test network without rows, or fewer than two left."""
    networks = sorted(set(table["network"]))
    unknown = [name for name in test if name not in networks]
    if unknown:
        raise InputError(f"{SETTINGS.relative_to(paths.ROOT)}: test names {choices(unknown)}, of which there are no rows; the "
                         f"networks of this training data are: {choices(networks)}")
    rows = table[~table["network"].isin(test)]
    if rows["network"].nunique() < _LEAST_NETWORKS:
        raise InputError(f"a choice needs {_LEAST_NETWORKS} networks apart from {choices(test)}; there are: "
                         f"{choices(sorted(set(rows['network']))) or 'none'}")
    return rows


def search(table: pd.DataFrame, kind: str, target: str, device: str, settings: Settings, trials: int, seed: int = 0,
           storage: Path = STORAGE):
    """Return the Optuna study of a kind's setting after ``trials`` more trials; the value is the RMSPE of networks left out.

    The present setting is its first trial. The networks of ``settings.test`` are not looked at. Raises InputError where too
    few rows or networks are left, or where the storage cannot be used.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    rows = layer_model.measured(training_rows(table, settings.test), target)
    of_kind = (rows["kind"] == kind).to_numpy()
    if not of_kind.any():
        raise InputError(f"no {kind} layers with a measured {target} are among the training networks")

    def objective(trial) -> float:
        predicted = layer_model.held_out(rows, kind, target, _suggested(trial))[of_kind]
        return layer_model.score(rows.loc[of_kind, target], predicted)["rmspe"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    files.folder(storage.parent)
    try:
        study = optuna.create_study(storage=f"sqlite:///{storage}", study_name=f"{device} {target} {kind}",
                                    load_if_exists=True, sampler=optuna.samplers.TPESampler(seed=seed))
        if not study.trials:
            study.enqueue_trial(_parameters(settings.of(target, kind)))
        study.optimize(objective, n_trials=trials)
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError, RuntimeError) as error:  # the last: of another version
        raise InputError(f"{storage} cannot be used as Optuna's storage: {str(error).splitlines()[0]}; move it away") from None
    return study


def _suggested(trial) -> Setting:
    return Setting(together=trial.suggest_categorical("together", [True, False]),
                   relative=trial.suggest_float("relative", 0, 1, step=0.25),
                   without=tuple(name for name in _OPTIONAL if not trial.suggest_categorical(name, [True, False])))


def _parameters(setting: Setting) -> dict[str, bool | float]:
    return {"together": setting.together, "relative": setting.relative,
            **{name: name not in setting.without for name in _OPTIONAL}}


def best(study) -> Setting:
    """Return the setting of a study's best trial."""
    return _suggested(study.best_trial)


def write(settings: dict[tuple[str, str], Setting], path: Path = SETTINGS) -> Path:
    """Put settings (target, kind) into the params file, whose comments stay, for somebody to review."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 128
    content = yaml.load(path.read_text(encoding="utf-8"))
    for (target, kind), setting in settings.items():
        content[target][kind].update(setting.model_dump(mode="json"))
    text = io.StringIO()
    yaml.dump(content, text)
    return files.replace(path, text.getvalue().encode())
