"""The verb of training runs: ``finetune``. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, flag, note, option
from lib.errors import InputError, choices, printable


def _finetune(options: argparse.Namespace) -> int:
    from lib.config.base import load
    from lib.finetune.config import TrainConfig, load_configs
    from lib.finetune.finetune import finetune
    from lib.work.distributed import process_count

    if (options.name is None) == (options.config is None):
        raise InputError("name a config of params/training.yaml, or all of them by all, or a file by --config FILE.json")
    named = {str(options.config): load(TrainConfig, options.config)} if options.config else load_configs()
    if options.name not in (None, "all", *named):
        raise InputError(f"no config {options.name!r} in params/training.yaml; there are: all, {choices(named)}")
    failed = False
    for name, config in named.items():
        if options.name in (None, "all", name):
            try:
                finetune(config.model_copy(update={"device": options.device or config.device}), options.resume)
            except InputError as error:
                failed = True
                note(f"error: {printable(name)}: {error}")
                if process_count() > 1:  # the others may wait for this one: its end ends them
                    break
    return 2 * failed


def add(verbs) -> None:
    """Add the verb of training runs."""
    add_verb(verbs, _finetune, "finetune", "fine-tune image classifiers: configs of params/training.yaml by name",
             option("name", "a config, or all", nargs="?"),
             option("--config", "one config in a file of its own, JSON or YAML", a_path, metavar="FILE.json"),
             option("--device", "device id, in place of the config's", default=""),
             flag("--resume", "go on with the newest run of each config that was cut short"))
