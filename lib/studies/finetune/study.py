"""The fine-tuning study: a run trained now or read back, its step as the cost model predicts it, and its resume bit for bit."""

import contextlib
import io
import operator
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib import locks, paths, store
from lib.config.base import load
from lib.config.notebooks import FinetuneParams
from lib.errors import InputError, choices, entry
from lib.finetune import finetune, networks, run
from lib.finetune.checkpoints import BEST, LAST
from lib.finetune.config import TrainConfig, load_configs
from lib.finetune.folders import CONFIG
from lib.finetune.metrics import Evaluation
from lib.finetune.tensorboard import HISTORY
from lib.measure import archive, machine
from lib.measure.training.summary import PHASES_MS, steady
from lib.predict import registry
from lib.predict.networks.step import STEP_PHASES
from lib.work import weights

PREDICTED = ("device", "source", "predicted_ms", "low_ms", "high_ms", "measured_ms", "images_per_sec",
             *(f"{name}_ms" for name in STEP_PHASES))
RESUMED = ("what", "compared", "different")
NOT_RESUMED = pd.DataFrame(columns=RESUMED)  # where the notebook is not to look
_SUMMARY = "run dataset monitor best_value best_epoch epochs batches history test device labels".split()
_INTERRUPTED_AFTER = (0.15, 0.3, 0.45)  # of a run's batches, each time
_SAMPLES, _BATCH = 20, 32  # a class, and in a batch, of the run that is interrupted


@dataclass(frozen=True)
class Study:
    """A run as the notebook shows it: its config, summary, ``history`` and ``profile`` tables, evaluations by split, a note."""

    config: TrainConfig
    summary: dict[str, Any]
    history: pd.DataFrame
    rows: pd.DataFrame
    evaluations: dict[str, Evaluation]
    facts: dict[str, Any]
    note: str

    @property
    def labels(self) -> list[str]:
        """Return the names of the classes."""
        return self.summary["labels"]

    @property
    def final(self) -> Evaluation:
        """Return the evaluation of the best weights on test; without a test split, of the last epoch on val."""
        return self.evaluations.get("test", self.evaluations["val"])


def study(p: FinetuneParams) -> Study:
    """Train a config, or read back a run of this machine or of a reference machine, as the parameters say.

    Raises InputError for a config or run that is not there, and for whatever cannot be trained.
    """
    if p.source == "replay":
        name, _ = archive.machine_with(f"finetune/*/{run.SUMMARY}", "fine-tuning runs", p.reference)
        folders = {path.parent.name: path.parent for path in sorted(paths.REFERENCE.glob(f"{name}/finetune/*/{run.SUMMARY}"))}
        chosen = p.run or next(iter(folders))
        return read(entry(folders, chosen, "run", f"of {name}"), f"REPLAY of {chosen}, trained on {name}.")
    if p.run:
        return read(paths.TRAINING / p.run, f"Run {p.run}, trained here before.")
    config = named(p)
    with locks.device(str(machine.device(config.device))):
        folder = Path(finetune.finetune(config)["folder"])
    return read(folder, f"Run {folder.parent.name}/{folder.name}, trained now.")


def named(p: FinetuneParams) -> TrainConfig:
    """Return the config of params/training.yaml that the parameters name, with what they change of it; "auto" and 0 do not."""
    config = entry(load_configs(), p.config, "config", "in params/training.yaml")
    changed = {"device": p.device, "epochs": p.epochs, "threads": p.threads}
    return config.model_copy(update={name: value for name, value in changed.items() if value not in ("auto", 0)})


def read(folder: Path, note: str) -> Study:
    """Read a run's folder; InputError where there is none, it has not ended, or a file of it is missing or damaged."""
    if not (folder / run.SUMMARY).is_file():
        ended = sorted(str(path.parent.relative_to(paths.TRAINING)) for path in paths.TRAINING.glob(f"*/*/{run.SUMMARY}"))
        raise InputError(f"{folder} holds no run that has ended; in {paths.TRAINING} there are: {choices(ended) or 'none'}")
    summary = store.read_json(folder / run.SUMMARY)
    missing = [name for name in _SUMMARY if not isinstance(summary, dict) or name not in summary]
    if missing or not summary["history"]:
        raise InputError(f"{folder / run.SUMMARY} is no summary of a run: it lacks {choices(missing or ['epochs'])}")
    evaluations = {"val": Evaluation.read(folder / "evaluation_val.json")}
    if (tested := folder / "evaluation_test.json").is_file():
        evaluations["test"] = Evaluation.read(tested)
    rows, facts = store.read_all([], "profile"), {}
    if (folder / run.PROFILE).is_file():
        rows, facts = store.read(folder / run.PROFILE, "profile"), store.read_json(folder / "profile.meta.json")
    return Study(load(TrainConfig, folder / CONFIG), summary, store.read(folder / HISTORY, "history"), rows, evaluations,
                 facts, " ".join(filter(None, (note, facts.get("data_note")))))


# ------------------------------------------------------------------------------------------------- prediction

def predicted(results: Study, shipped: bool) -> pd.DataFrame:
    """Return what a step takes by the cost models, a row a device, part by part, beside what the run's steps took.

    The run's device stands first. ``shipped``: the models are those that ship, whatever was calibrated or learned here. Where
    nothing can be predicted there are no rows, and ``attrs["reason"]`` says why.
    """
    try:
        predictors = registry.for_devices((), results.config.precision, shipped)
        kinds = sorted({predictor.device_type for predictor in predictors})
        loops = {kind: networks.captured(results.config, ("train",), kind) for kind in kinds}
    except InputError as error:
        nothing = pd.DataFrame(columns=PREDICTED)
        nothing.attrs["reason"] = str(error)
        return nothing
    device = _device(results)
    rows = []
    for predictor in sorted(predictors, key=lambda predictor: predictor.device != device):
        step = loops[predictor.device_type].step(predictor)
        rows.append({"device": predictor.device,
                     "source": f"zero-shot from {predictor.origin}" if predictor.origin else "predicted",
                     "predicted_ms": step.predicted_ms, "low_ms": step.low_ms, "high_ms": step.high_ms,
                     "measured_ms": measured_ms(results.rows)["step_time_ms"] if predictor.device == device else np.nan,
                     "images_per_sec": results.config.batch_size / step.predicted_ms * 1e3, **step.columns})
    return pd.DataFrame(rows, columns=PREDICTED)


def _device(results: Study) -> str:
    """Return the device that a run was trained on by the name that the cost models have for it."""
    backend = results.summary["device"].partition(":")[0]
    gpus = results.facts.get("hardware", {}).get("gpus", [])
    if backend != "cuda" or not gpus:
        return backend
    try:
        return registry.vendor_of(gpus[0]["name"])
    except InputError:  # a GPU that params/devices.yaml does not have
        return backend


def measured_ms(rows: pd.DataFrame) -> pd.Series:
    """Return the medians of step, forward and backward, and each phase of the steady training steps; NaN without a profile."""
    train = steady(rows.query("task_type == 'train'"))
    passes = train["forward_time_ms"] + train["backward_time_ms"]
    return train[["step_time_ms", *PHASES_MS]].assign(passes_ms=passes).median()


# ------------------------------------------------------------------------------------------------- resume

class _InterruptedError(Exception):
    """Ends a run at once, wherever it is."""


def resumed(config: TrainConfig) -> pd.DataFrame:
    """Train a few samples of a config twice on the CPU, once in one go and once interrupted three times; compare all bits.

    Columns: what is compared, how many values or tensors, and how many of them differ.
    """
    small = config.model_copy(update={"epochs": 2, "max_datapoints_per_class": _SAMPLES, "batch_size": _BATCH, "profile": False,
                                      "checkpoint_steps": 1, "run_name": None, "device": "cpu",
                                      "tb_root": "runs", "ckpt_dir": "checkpoints"})
    with tempfile.TemporaryDirectory() as home, contextlib.redirect_stdout(io.StringIO()):
        single, resumed = Path(home) / "run" / "one", Path(home) / "run" / "several"
        calls = _trained(small, single, np.inf)
        for share in _INTERRUPTED_AFTER:
            with contextlib.suppress(_InterruptedError):
                _trained(small, resumed, share * calls)
        _trained(small, resumed, np.inf)
        return pd.DataFrame(list(_compared(single, resumed, small)), columns=RESUMED)


def _trained(config: TrainConfig, folder: Path, most: float) -> int:
    """Train until the run has looked ``most`` times whether it shall stop; return how often it did."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > most:
            raise _InterruptedError

    run.train(config, folder, machine.device(config.device), check=check)
    return calls


def _compared(first: Path, second: Path, config: TrainConfig) -> Iterator[tuple[str, int, int]]:
    """Yield what is compared of two runs: what, how many, how many differ."""
    last = [weights.load(folder / config.ckpt_dir / LAST) for folder in (first, second)]
    for name, what in (("model", "weights after the last epoch"), ("optimizer", "state of the optimizer"),
                       ("random", "states of the random generators")):
        yield what, *_differing(*(content[name] for content in last))
    best = (weights.load(folder / config.ckpt_dir / BEST) for folder in (first, second))
    yield "weights of the best epoch", *_differing(*best)
    histories = [store.read(folder / HISTORY, "history") for folder in (first, second)]
    values = [table[table["name"].str.match("train|val|test|best")].sort_values(["name", "step"])["value"].tolist()
              for table in histories]
    yield "losses of steps and metrics in the history", *_differing(*values)


def _differing(first: Any, second: Any) -> tuple[int, int]:
    """Return how many values two nested structures have, and how many of them differ in a bit."""
    values, others = ([_bits(leaf) for leaf in _leaves(content)] for content in (first, second))
    most = max(len(values), len(others))
    return most, most - sum(map(operator.eq, values, others))


def _leaves(content: Any) -> Iterator[Any]:
    """Yield the values of nested dicts and lists, dicts by name."""
    if isinstance(content, dict):
        content = [content[key] for key in sorted(content, key=str)]
    if isinstance(content, list | tuple):
        for part in content:
            yield from _leaves(part)
    else:
        yield content


def _bits(value: Any) -> tuple:
    """Return what is equal for values that are the same bit for bit; NaN is the same as NaN."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return type(value), repr(value)
