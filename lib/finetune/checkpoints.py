"""The weights of a run: the best, those of each epoch, and the last state, from which a run resumes bit for bit."""

import math
import random
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib import store
from lib.errors import InputError
from lib.finetune.config import TrainConfig
from lib.work import weights
from lib.work.processes import Processes
from lib.work.training import Trainer

LAST, BEST, BEST_META = "last.pt", "best.pt", "_best_meta.json"
_SUMS = ("loss", "right", "samples")  # of a position: these differ between processes
_SHARE = 20.0  # between two checkpoints within an epoch training takes so many times as long as a checkpoint


@dataclass
class Position:
    """The progress of a run: the epoch, its finished batches, all batches and optimizer steps, and their results.

    ``loss``, ``right`` and ``samples`` are sums of this epoch's batches. ``history`` has one record per epoch.
    """

    epoch: int = 0
    batch: int = 0
    batches: int = 0
    steps: int = 0
    loss: float = 0.0
    right: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    rows: int = 0
    best: float = math.nan
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.batch = self.samples = 0
        self.loss = self.right = self.seconds = 0.0


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators that training draws from, as plain values and tensors."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - what users' augmentations draw from
    states = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "torch": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Restore what ``random_states`` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


class Checkpoints:
    """The checkpoints of one run in its folder; the first process writes them, each in one step."""

    def __init__(self, folder: Path, config: TrainConfig, processes: Processes):
        self.folder, self._config, self._processes = folder, config, processes
        self._took_s, self._saved_s = 0.0, time.monotonic()

    def due(self, steps: int) -> bool:
        """Return whether to save within an epoch: every so many optimizer steps, where that costs little."""
        if steps % self._config.checkpoint_steps:
            return False
        return self._processes.shared(time.monotonic() - self._saved_s >= _SHARE * self._took_s)

    def save(self, trainer: Trainer, position: Position) -> None:
        """Write the last state; InputError on a full disk, where the state before stays."""
        begin = time.monotonic()
        state = [random_states(trainer.options.device), [getattr(position, name) for name in _SUMS]]
        states, sums = map(list, zip(*self._processes.gathered(state), strict=True))
        if self._processes.first:
            weights.save({"config": self._config.hash, "position": asdict(position), "random": states, "sums": sums,
                          **trainer.state()}, self.folder / LAST)
        self._saved_s = time.monotonic()
        self._took_s = self._saved_s - begin

    def resume(self, trainer: Trainer) -> Position:
        """Put a trainer into the last state, if there is one; return its position.

        Raises InputError for a damaged file, or one of another config, model, or number of processes.
        """
        path = self.folder / LAST
        if not path.exists():
            return Position()
        content = weights.load(path)
        try:
            states, position = content["random"], Position(**content["position"])
            if content["config"] != self._config.hash:
                raise InputError(f"{path} is of a run with another config")
            if len(states) != self._processes.count:
                raise InputError(f"{path} is of {len(states)} processes, not {self._processes.count}; resume with as many")
            trainer.load_state(content)
            set_random_states(states[self._processes.rank], trainer.options.device)
            return replace(position, **dict(zip(_SUMS, content["sums"][self._processes.rank], strict=True)))
        except InputError:
            raise
        except Exception as error:  # whatever a file may hold
            raise InputError(f"{path} is no checkpoint of this run: {type(error).__name__}: {error}") from None

    def after_epoch(self, trainer: Trainer, position: Position, values: dict[str, float]) -> None:
        """Keep the weights of an epoch where it is the best so far by the monitored metric, or all are kept."""
        value, epoch, config = values[self._config.monitor_metric], position.epoch, self._config
        better = value < position.best if config.monitor_mode == "min" else value > position.best
        if better or (math.isnan(position.best) and not math.isnan(value)):
            position.best, position.best_epoch = value, epoch
            if self._processes.first:
                weights.save(trainer.model.state_dict(), self.folder / BEST)
                store.write_json({"best_value": value, "epoch": epoch, "monitor": config.monitor_metric,
                                  "mode": config.monitor_mode, "best_ckpt": BEST}, self.folder / BEST_META)
        if config.save_per_epoch_checkpoint and self._processes.first:
            weights.save(trainer.model.state_dict(), self.folder / f"epoch_{epoch:03d}.pt")
