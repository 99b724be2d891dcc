"""Runs by name: the folder of a run, the run to resume, and several runs one after another."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lib import files, paths, store
from lib.errors import InputError, choices, is_out_of_memory
from lib.finetune import networks, run
from lib.finetune.config import TrainConfig
from lib.finetune.data import dataset_name, names_and_facts
from lib.finetune.devices import processes

_LONGEST_NAME, _SHOWN = 200, 4


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]+", "_", text).strip("._") or "run"


def run_name(config: TrainConfig) -> str:
    """Return ``{model}__{loss}__{pretrained|scratch}{suffix}``, or the config's own ``run_name``, as a file name."""
    start = "pretrained" if config.load_pretrained else "scratch"
    base = f"{_plain(config.model_flavour)}__{config.loss_name}__{start}{config.model_suffix}"
    return _plain(config.run_name or base)[:_LONGEST_NAME]


def _of_dataset(config: TrainConfig) -> Path:
    return paths.TRAINING / _plain(dataset_name(config))


def new_folder(config: TrainConfig) -> Path:
    """Make the folder of a new run, ``data/training/<dataset>/<name>``, or the first free one of ``-v1``, ``-v2``, ..."""
    name, version = run_name(config), 0
    files.folder(_of_dataset(config))
    while True:
        folder = _of_dataset(config) / (f"{name}-v{version}" if version else name)
        version += 1
        if any(place.exists() for place in config.folders(folder)):  # in experiments/, of a run whose folder was removed
            continue
        with files.writing(folder):
            try:
                os.mkdir(folder)  # of two runs at the same moment one makes it
            except FileExistsError:
                continue
        run.stored_config(folder, config)
        return folder


def newest(config: TrainConfig) -> Path | None:
    """Return the folder of the newest run of exactly this config, None where there is none."""
    name = re.compile(re.escape(run_name(config)) + r"(-v(\d+))?")
    versions = {int(match[2] or 0): folder for folder in _of_dataset(config).glob("*") if (match := name.fullmatch(folder.name))
                and (folder / run.CONFIG).exists() and store.read_json(folder / run.CONFIG) == config.content()}
    return versions[max(versions)] if versions else None


def finetune(configs: Iterable[TrainConfig], resume: bool = False) -> list[dict[str, Any]]:
    """Train configs one after another, each in its own folder; return their summaries.

    ``resume`` continues the newest run of a config, if there is one; a finished run is not trained again. Raises InputError for
    the first config that cannot be trained.
    """
    return [_one(config, resume) for config in configs]


def ending(summary: Mapping[str, Any]) -> str:
    """Say what a finished run reached, how long its epochs took, and where its files lie."""
    tested = [f"{name} {value:.4g}" for name, value in summary["test"].items() if isinstance(value, float)][:_SHOWN]
    on_test = f"; on test {choices(tested)}" if tested else ""
    return (f"best {summary['monitor']} {summary['best_value']:.4g} in epoch {summary['best_epoch'] + 1} of {summary['epochs']}"
            f"{on_test}; epochs took {summary['train_s']:,.1f} s; weights, metrics and profile: {summary['folder']}")


def _one(config: TrainConfig, resume: bool) -> dict[str, Any]:
    with processes(config.device) as (together, device):
        networks.network(config, names_and_facts(config)[1])  # before there is a folder
        folder = together.shared((resume and newest(config)) or new_folder(config) if together.first else None)
        if together.first:
            print(folder, flush=True)
        try:
            summary = run.train(config, folder, device, together=together)
            if together.first:
                print(ending(summary), flush=True)
            return summary
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(f"{folder}: out of memory; a smaller batch_size with more grad_accum_steps takes less") from error
