"""The verb ``finetune``: training runs. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, flag, note, option
from lib.errors import InputError, entry, printable


def _finetune(options: argparse.Namespace) -> int:
    from lib.config.base import load
    from lib.finetune.config import TrainConfig, load_configs
    from lib.finetune.finetune import finetune
    from lib.work.distributed import process_count

    if (options.name is None) == (options.config is None):
        raise InputError("name a config of params/training.yaml, or all of them by all, "
                         "or a file by --config FILE.json")
    if options.config:
        configs = {str(options.config): load(TrainConfig, options.config)}
    else:
        configs = load_configs()
        entry(["all", *configs], options.name, "config", "in params/training.yaml")
        if options.name != "all":
            configs = {options.name: configs[options.name]}
    failed = False
    for name, config in configs.items():
        try:
            device = options.device or config.device
            finetune(config.model_copy(update={"device": device}), options.resume)
        except InputError as error:
            failed = True
            note(f"error: {printable(name)}: {error}")
            if process_count() > 1:  # the other processes may wait for this one
                break
    return 2 * failed


def add(verbs) -> None:
    """Add the verb."""
    verb = add_verb(verbs, "finetune", "fine-tune image classifiers: configs of "
                    "params/training.yaml by name", _finetune)
    option(verb, "name", "a config, or all", nargs="?")
    option(verb, "--config", "a config in its own file, JSON or YAML", a_path, metavar="FILE")
    option(verb, "--device", "device id, instead of the config's")
    flag(verb, "--resume", "go on with the newest run of each config that was cut short")
