"""A finished run, read from its folder: config, summary, history, profile and evaluations; and its step as predicted."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lib import paths, store
from lib.config.base import load
from lib.errors import InputError, choices, entry
from lib.finetune import models, train
from lib.finetune.config import TrainConfig
from lib.finetune.folders import CONFIG
from lib.finetune.metrics import Evaluation
from lib.finetune.reports import HISTORY
from lib.measure import archive
from lib.predict import registry
from lib.predict.networks.step import STEP_PHASES

PREDICTED = ("device", "source", "predicted_ms", "low_ms", "high_ms", *[f"{phase}_ms" for phase in STEP_PHASES])
_SUMMARY = ["run", "dataset", "monitor", "best_value", "best_epoch", "epochs", "batches", "history", "test", "device", "labels"]


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its config, summary, ``history``, profile ``rows`` (perhaps none), evaluations by split.

    ``facts`` is the provenance of the profile; ``note`` says where the run is from.
    """

    config: TrainConfig
    summary: dict[str, Any]
    history: pd.DataFrame
    rows: pd.DataFrame
    evaluations: dict[str, Evaluation]
    facts: Mapping[str, Any]
    note: str

    @property
    def final(self) -> Evaluation:
        """Return the evaluation of the best weights on test; without a test split, of the last epoch on val."""
        return self.evaluations.get("test", self.evaluations["val"])


def read(folder: Path, note: str = "") -> FinishedRun:
    """Read a run's folder; InputError where there is none, it has not ended, or a file of it is missing or damaged."""
    if not (folder / train.SUMMARY).is_file():
        ended = sorted(str(path.parent.relative_to(paths.TRAINING)) for path in paths.TRAINING.glob(f"*/*/{train.SUMMARY}"))
        raise InputError(f"{folder} holds no run that has ended; in {paths.TRAINING} there are: {choices(ended) or 'none'}")
    summary = store.read_json(folder / train.SUMMARY)
    missing = [name for name in _SUMMARY if not isinstance(summary, dict) or name not in summary]
    if missing or not summary["history"]:
        raise InputError(f"{folder / train.SUMMARY} is no summary of a run: it lacks {choices(missing or ['epochs'])}")
    evaluations = {"val": Evaluation.read(folder / "evaluation_val.json")}
    if (tested := folder / "evaluation_test.json").is_file():
        evaluations["test"] = Evaluation.read(tested)
    rows, facts = store.read_all([], "profile"), {}
    if (folder / train.PROFILE).is_file():
        rows, facts = store.read(folder / train.PROFILE, "profile"), store.read_json(folder / "profile.meta.json")
    return FinishedRun(load(TrainConfig, folder / CONFIG), summary, store.read(folder / HISTORY, "history"), rows, evaluations,
                       facts, " ".join(filter(None, (note, facts.get("data_note")))))


def reference(name: str = "", machine: str = "") -> FinishedRun:
    """Read a committed run (empty: the first) of a reference machine (empty: the first that has a run)."""
    owner, _ = archive.machine_with(f"finetune/*/{train.SUMMARY}", "fine-tuning runs", machine)
    folders = {path.parent.name: path.parent
               for path in sorted(archive.machine_folder(owner).glob(f"finetune/*/{train.SUMMARY}"))}
    chosen = name or next(iter(folders))
    return read(entry(folders, chosen, "run", f"of {owner}"), f"REPLAY of {chosen}, trained on {owner}.")


def predicted_steps(finished: FinishedRun, config: TrainConfig | None = None, shipped: bool = False) -> pd.DataFrame:
    """Predict the training step on every device with a cost model, part by part (PREDICTED); the run's device comes first.

    Args:
        finished: the run.
        config: another config for the prediction, such as one with a larger batch.
        shipped: use the shipped models only, whatever was calibrated or learned on this machine.

    Raises:
        InputError: if the network cannot be captured, or no model fits.
    """
    config, own = config or finished.config, _device(finished)
    predictors = registry.for_devices((), config.precision, shipped)
    kinds = sorted({predictor.device_type for predictor in predictors})
    loops = {kind: models.captured(config, ("train",), kind) for kind in kinds}
    rows = []
    for predictor in sorted(predictors, key=lambda predictor: predictor.device != own):
        step = loops[predictor.device_type].step(predictor)
        source = f"zero-shot from {predictor.origin}" if predictor.origin else "predicted"
        rows.append({"device": predictor.device, "source": source, "predicted_ms": step.predicted_ms, "low_ms": step.low_ms,
                     "high_ms": step.high_ms, **step.columns})
    return pd.DataFrame(rows, columns=PREDICTED)


def _device(finished: FinishedRun) -> str:
    """Return the device that a run was trained on, by its name in the cost models."""
    backend = finished.summary["device"].partition(":")[0]
    gpus = finished.facts.get("hardware", {}).get("gpus", [])
    if backend != "cuda" or not gpus:
        return backend
    try:
        return registry.vendor_of(gpus[0]["name"])
    except InputError:  # a GPU that params/devices.yaml does not have
        return backend
