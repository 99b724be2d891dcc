"""A run as a task of a worker: on the devices that it is given, resumed from its last state."""

from pathlib import Path
from typing import Any


def finetune(config: dict[str, Any], folder: str, devices: list[str],
             threads: int) -> dict[str, Any]:
    """Train ``config`` in ``folder``; return the summary. Several devices share each batch.

    Raises InputError for a config that cannot be trained.
    """
    from lib.config.base import build
    from lib.finetune.config import TrainConfig
    from lib.finetune.train import train
    from lib.work import distributed

    checked = build(TrainConfig, config, "config")
    if len(devices) == 1:
        return train(checked, Path(folder), devices[0], threads)
    arguments = {"config": config, "folder": folder}
    return distributed.torchrun(f"{__name__}:finetune", arguments, devices, threads)
