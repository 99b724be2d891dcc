"""A run from its config, in a folder of its own: new or resumed."""

from typing import Any

from lib.errors import InputError, choices
from lib.finetune import folders, models
from lib.finetune.config import TrainConfig
from lib.finetune.data import names_and_facts
from lib.finetune.train import train
from lib.measure import machine
from lib.work import distributed


def finetune(config: TrainConfig, resume: bool = False) -> dict[str, Any]:
    """Train a config in its own folder; return its summary, and print what it reached.

    ``resume`` continues the newest run of the config, if there is one; a finished run is not
    trained again. Raises InputError for a config that cannot be trained.
    """
    count = distributed.process_count()
    if count != config.devices > 1:
        raise InputError(f"devices is {config.devices}, and this is one of {count} processes: "
                         f"start it with torchrun --nproc-per-node {config.devices} -m lib "
                         "finetune, or queue it in the dashboard")
    models.network(config, names_and_facts(config)[1])  # before there is a folder
    first = distributed.accelerator(machine.device(config.device).type, config.seed).is_main_process
    folder = None
    if first:
        folder = (resume and folders.newest(config)) or folders.new_folder(config)
        print(folder, flush=True)
    summary = train(config, distributed.first_value(folder), config.device)
    if first:
        tested = [f"{name} {value:.4g}" for name, value in summary["test"].items()
                  if isinstance(value, float)]
        on_test = f"; on test {choices(tested[:4])}" if tested else ""
        print(f"best {summary['monitor']} {summary['best_value']:.4g} in epoch "
              f"{summary['best_epoch'] + 1} of {summary['epochs']}{on_test}; epochs took "
              f"{summary['train_s']:,.1f} s; weights, metrics and profile: {summary['folder']}",
              flush=True)
    return summary
