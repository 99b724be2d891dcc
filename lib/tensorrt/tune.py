"""Search the settings of layer models with Optuna, on training networks alone; kept in SQLite."""

import io
from pathlib import Path

import pandas as pd

from lib import files, paths
from lib.errors import InputError, choices, refused
from lib.tensorrt.layer_model import Setting, layer_scores, predict_left_out, with_measured
from lib.tensorrt.physics import TERMS
from lib.tensorrt.training import SETTINGS, Settings

STORAGE = paths.DATA / "layer_power" / "optuna.sqlite"
_OPTIONAL_TERMS = TERMS[1:-1]


def tune(table: pd.DataFrame, kind: str, target: str, device: str, settings: Settings, trials: int,
         seed: int = 0, storage: Path = STORAGE):
    """Return the Optuna study after more trials; its value is the RMSPE of networks left out.

    The present setting is the first trial; networks of ``settings.test`` are not used. Raises
    InputError for too few networks and for storage that cannot be used.
    """
    import optuna

    if unknown := set(settings.test) - set(table["network"]):
        raise InputError(f"params/{SETTINGS.name}: test names {choices(sorted(unknown))}, but the "
                         f"networks are: {choices(sorted(set(table['network'])))}")
    rows = with_measured(table[~table["network"].isin(settings.test)], target)
    of_kind = (rows["kind"] == kind).to_numpy()
    if not of_kind.any() or rows["network"].nunique() < 2:
        raise InputError(f"a search needs {kind} layers with a measured {target} in two networks "
                         f"apart from {choices(settings.test)}")

    def objective(trial) -> float:
        predicted = predict_left_out(rows, kind, target, suggested(trial))[of_kind]
        return layer_scores(rows.loc[of_kind, target], predicted)["rmspe"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    files.folder(storage.parent)
    with refused(f"{storage} cannot be used as Optuna's storage: ", "; move it away"):
        study = optuna.create_study(
            storage=f"sqlite:///{storage}", study_name=f"{device} {target} {kind}",
            load_if_exists=True, sampler=optuna.samplers.TPESampler(seed=seed))
    if not study.trials:
        setting = settings.of(target, kind)
        study.enqueue_trial({"together": setting.together, "relative": setting.relative,
                             **{name: name not in setting.without for name in _OPTIONAL_TERMS}})
    study.optimize(objective, n_trials=trials)
    return study


def suggested(trial) -> Setting:
    """Return the setting that an Optuna trial asks for."""
    without = [name for name in _OPTIONAL_TERMS
               if not trial.suggest_categorical(name, [True, False])]
    return Setting(together=trial.suggest_categorical("together", [True, False]),
                   relative=trial.suggest_float("relative", 0, 1, step=0.25), without=without)


def write_settings(settings: dict[tuple[str, str], Setting], path: Path = SETTINGS) -> Path:
    """Write settings by (target, kind) into the params file; its comments stay."""
    from ruamel.yaml import YAML

    yaml, text = YAML(), io.StringIO()
    yaml.width = 128
    content = yaml.load(path.read_text(encoding="utf-8"))
    for (target, kind), setting in settings.items():
        content[target][kind].update(setting.model_dump(mode="json"))
    yaml.dump(content, text)
    return files.replace(path, text.getvalue().encode())
