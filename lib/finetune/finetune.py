"""A run from its config: in its own folder, new or resumed, alone or as one of the processes that torchrun started."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from lib.errors import InputError, choices, is_out_of_memory
from lib.finetune import folders, networks, run
from lib.finetune.config import TrainConfig
from lib.finetune.data import names_and_facts
from lib.measure import machine
from lib.work.processes import ALONE, Processes, joined

_SHOWN = 4  # metrics of a test that an ending names


@contextmanager
def processes(wanted: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if it did; give them, and the device of this process.

    Each takes its own GPU, or a share of the CPU. Raises InputError for a device that is not here.
    """
    device, together = machine.device(wanted), ALONE
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1":
        together = Processes(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
        if device.type == "cuda":
            device = machine.device(f"cuda:{together.local_rank}")
        machine.use(device)
    with joined(together, device):
        yield together, device


def ending(summary: Mapping[str, Any]) -> str:
    """Say what a finished run reached, how long its epochs took, and where its files lie."""
    tested = [f"{name} {value:.4g}" for name, value in summary["test"].items() if isinstance(value, float)][:_SHOWN]
    on_test = f"; on test {choices(tested)}" if tested else ""
    return (f"best {summary['monitor']} {summary['best_value']:.4g} in epoch {summary['best_epoch'] + 1} of {summary['epochs']}"
            f"{on_test}; epochs took {summary['train_s']:,.1f} s; weights, metrics and profile: {summary['folder']}")


def finetune(config: TrainConfig, resume: bool = False) -> dict[str, Any]:
    """Train a config in its own folder; return its summary.

    ``resume`` continues the newest run of the config, if there is one; a finished run is not trained again. Raises InputError
    for a config that cannot be trained.
    """
    with processes(config.device) as (together, device):
        if together.count != config.devices > 1:
            raise InputError(f"devices is {config.devices}, and this is one of {together.count} processes: start it with "
                             f"torchrun --nproc-per-node {config.devices} -m lib finetune, or queue it in the dashboard")
        networks.network(config, names_and_facts(config)[1])  # before there is a folder
        folder = together.shared((resume and folders.newest(config)) or folders.new_folder(config) if together.first else None)
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
