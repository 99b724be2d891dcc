"""Search for the settings of layer models with Optuna, on training networks alone; its study is kept in SQLite."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lib import files, paths
from lib.errors import InputError, choices
from lib.tensorrt.models import layer_model
from lib.tensorrt.models.layer_model import TERMS, Setting, score
from lib.tensorrt.models.training import SETTINGS, Settings

STORAGE = paths.DATA / "layer_power" / "optuna.sqlite"
_OPTIONAL = TERMS[1:-1]
_LEAST_NETWORKS = 2


def training_rows(table: pd.DataFrame, test: Iterable[str]) -> pd.DataFrame:
    """Return the rows of networks that choices may see; InputError for a test network without rows, or fewer than two left."""
    networks = sorted(set(table["network"]))
    unknown = [name for name in test if name not in networks]
    if unknown:
        raise InputError(f"{SETTINGS.relative_to(paths.ROOT)}: test names {choices(unknown)}, of which there are no rows; the "
                         f"networks of this training data are: {choices(networks)}")
    rows = table[~table["network"].isin(list(test))]
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
        return score(rows.loc[of_kind, target], predicted)["rmspe"]

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
    import io

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 128
    content = yaml.load(path.read_text(encoding="utf-8"))
    for (target, kind), setting in settings.items():
        content[target][kind].update(setting.model_dump(mode="json"))
    text = io.StringIO()
    yaml.dump(content, text)
    return files.replace(path, text.getvalue().encode())
