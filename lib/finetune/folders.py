"""Runs by name: whether data and model of a config exist, the folder of a run, and the run to resume. Loads no torch."""

import itertools
import re
from contextlib import suppress
from pathlib import Path

from lib import files, paths, store
from lib.config.base import json_mapping
from lib.errors import InputError, choices
from lib.finetune.config import TrainConfig

CONFIG = "train_config.json"


def check(config: TrainConfig) -> None:
    """Raise InputError for a dataset or model that exists on no machine; folders and the hub are not checked."""
    model = config.model_flavour
    pictures = config.medmnist and not config.medmnist.endswith("3d") or ":" not in config.root
    scratch = model in ("simple_cnn", "resnet18_2d") and not config.load_pretrained
    if pictures and ("/" in model or scratch):
        return
    from lib.finetune import data, models
    from lib.work.datasets import Facts

    facts = data.names_and_facts(config)[1] if ":" in config.root else Facts(3, 2, 2, False, (0, 0, 0))
    if "/" not in model:
        models.network(config, facts)


def plain_name(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._@-]+", "_", text).strip("._") or "run"


def run_name(config: TrainConfig) -> str:
    """Return ``{model}__{loss}__{pretrained|scratch}{suffix}``, or the config's own ``run_name``, as a file name."""
    start = "pretrained" if config.load_pretrained else "scratch"
    base = f"{plain_name(config.model_flavour)}__{config.loss_name}__{start}{config.model_suffix}"
    return plain_name(config.run_name or base)[:200]


def new_folder(config: TrainConfig) -> Path:
    """Make the folder of a new run, ``data/training/<dataset>/<name>``, or the first free one of ``-v1``, ``-v2``, ..."""
    parent, name = files.folder(paths.TRAINING / plain_name(config.dataset)), run_name(config)
    names = itertools.chain([name], (f"{name}-v{number}" for number in itertools.count(1)))
    while True:
        folder = parent / next(names)
        if any(place.exists() for place in config.folders(folder)):  # in experiments/, of a run whose folder was removed
            continue
        with files.writing(folder), suppress(FileExistsError):
            folder.mkdir()  # of two runs at the same moment one makes it
            stored_config(folder, config)
            return folder


def newest(config: TrainConfig) -> Path | None:
    """Return the folder of the newest run of exactly this config, None where there is none."""
    parent = paths.TRAINING / plain_name(config.dataset)
    same = [path.parent for path in parent.glob(f"{run_name(config)}*/{CONFIG}")
            if store.read_json(path) == config.content()]
    return max(same, key=lambda folder: (len(folder.name), folder.name), default=None)  # -v10 after -v9


def stored_config(folder: Path, config: TrainConfig) -> None:
    """Write ``train_config.json`` into a new folder; InputError where it holds a run of another config, and in which fields."""
    path = folder / CONFIG
    if not path.exists():
        store.write_json(config.content(), path)
    elif (stored := json_mapping(path)) != config.content():
        differing = [name for name, value in config.content().items() if stored.get(name) != value]
        raise InputError(f"{folder} holds a run of another config (other: {choices(differing)}); name another folder")
