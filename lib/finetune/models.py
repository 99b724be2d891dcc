"""The model of a run, from Hugging Face (hub or folder), torchvision or this project: its inputs, head and frozen layers."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from lib import paths
from lib.config.definitions import Workload
from lib.errors import InputError, refused
from lib.finetune import data, losses
from lib.finetune.config import Classes, TrainConfig
from lib.finetune.transforms import Inputs
from lib.measure import worker
from lib.names import did_you_mean
from lib.predict.networks import work
from lib.predict.steps import Loop, Recipe
from lib.work import datasets, dtypes, medmnist_files, models, networks
from lib.work.workloads import Task

_FOLDER_SIZE, _MEDMNIST_SIZE = 224, 28


@dataclass(frozen=True)
class Network:
    """A model that can be built for classes of given names, and its inputs."""

    inputs: Inputs
    build: Callable[[Classes], nn.Module]


def network(config: TrainConfig, facts: datasets.Facts) -> Network:
    """Resolve ``model_flavour`` for a dataset; InputError where there is no such model or checkpoint, or it does not fit."""
    name = config.model_flavour
    if name not in models.names():
        resolved = _hugging_face(config)
    elif name in models.OWN or not config.load_pretrained:
        resolved = _scratch(config, facts)
    else:
        resolved = _torchvision(config)
    if facts.spatial == 3 and models.OWN.get(name, (2, None))[0] != 3:
        raise InputError(f"model_flavour {name!r} takes pictures, but {config.root} holds volumes; use cnn3d")
    return resolved


@dataclass(frozen=True)
class FinetuneTask(Task):
    """A task whose model and loss are those of a config."""

    network: Network
    labels: Classes
    loss_name: str

    def model(self) -> torch.nn.Module:
        """Build the model for the classes."""
        return self.network.build(self.labels)

    def loss(self) -> torch.nn.Module:
        """Return the config's loss."""
        return losses.build(self.loss_name, self.multi_label)


def prepare(config: TrainConfig, run: str) -> tuple[FinetuneTask, data.Data]:
    """Resolve data and model of a run; InputError where they are missing or do not fit."""
    names_there, facts = data.names_and_facts(config)
    resolved = network(config, facts)
    opened = data.open_data(config, resolved.inputs, names_there)
    facts = replace(facts, channels=resolved.inputs.channels, classes=len(opened.labels))
    workload = Workload.model_construct(id=run, dataset=config.dataset,
                                        size=resolved.inputs.size, model=config.model_flavour,
                                        batch_size=config.batch_size)
    return FinetuneTask(workload, facts, resolved, opened.labels, config.loss_name), opened


def captured(config: TrainConfig, modes: tuple[str, ...] = ("train", "infer"), device_type: str = "cpu") -> Loop:
    """Capture a config's training step (train) and evaluated batch (infer) on a device type, for the cost models.

    Its weights are not read. Pictures of a folder count as resized. Decoding, gradient clipping and augmentation are not
    included. Raises InputError where data or network are missing or cannot be captured.
    """
    names, facts = data.names_and_facts(config)
    resolved = network(config, facts)
    sample = (resolved.inputs.channels, *[resolved.inputs.size] * facts.spatial)
    built = networks.Network(config.model_flavour, lambda: resolved.build(config.labels or names), (config.batch_size, *sample))
    dtype = dtypes.torch_name(config.precision)
    works = {mode: work.captured(built, mode, dtype, config.channels_last, device_type) for mode in modes}
    resized = not config.medmnist or \
        medmnist_files.native_size(config.medmnist, resolved.inputs.size, "native") != resolved.inputs.size
    return Loop(works, resized, Recipe(config.optimizer, config.num_workers, config.grad_accum_steps))


def _scratch(config: TrainConfig, facts: datasets.Facts) -> Network:
    name, size = config.model_flavour, config.image_size or (_MEDMNIST_SIZE if ":" in config.root else _FOLDER_SIZE)
    if config.load_pretrained:
        raise InputError(f"model_flavour {name!r} has no pretrained weights; set load_pretrained to false")
    return Network(Inputs(facts.channels, size),
                   lambda labels: _frozen(models.build(name, facts.channels, len(labels), facts.spatial, size), config))


def _torchvision(config: TrainConfig) -> Network:
    from torchvision.models import get_model, get_model_weights

    name = config.model_flavour
    weights = get_model_weights(name).DEFAULT
    usual = weights.transforms()
    inputs = Inputs(3, config.image_size or usual.crop_size[0], tuple(usual.mean), tuple(usual.std))

    def build(labels: Classes) -> nn.Module:
        advice = f"; put {weights.url} into {torch.hub.get_dir()}/checkpoints, or set load_pretrained to false"
        with refused(f"model_flavour {name!r}: its weights cannot be had (", f"){advice}"), \
                worker.environ({"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}):  # torchvision itself would unpickle
            model = get_model(name, weights=weights)
        head = _head(model)
        model.set_submodule(head, nn.Linear(model.get_submodule(head).in_features, len(labels)))
        return _frozen(model, config)
    return Network(inputs, build)


def _head(model: nn.Module) -> str:
    """Return the name of the last linear layer; InputError where there is none."""
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"{type(model).__name__} has no linear layer to be its head; train all of it from scratch")
    return linear[-1]


def _frozen(model: nn.Module, config: TrainConfig) -> nn.Module:
    """Freeze all but the head, where the config says so."""
    if config.freeze_backbone:
        model.requires_grad_(False)
        model.get_submodule(_head(model)).requires_grad_(True)
    return model


def _place(name: str) -> str:
    """Return the folder of a local checkpoint, or the hub id; InputError where it is neither."""
    folder = paths.ROOT / Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"model_flavour {name!r}: {folder} has no config.json, so it is no Hugging Face checkpoint")
        return str(folder)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise InputError(f"model_flavour {name!r} is no folder, no torchvision classifier (resnet50, ...), none of ours "
                         f"({', '.join(models.OWN)}), nor a hub id such as google/vit-base-patch16-224-in21k"
                         + did_you_mean(name, models.names()))
    return name


def _hugging_face(config: TrainConfig) -> Network:
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    name = config.model_flavour
    where = _place(name)
    token = config.hf_token.get_secret_value() if config.hf_token else None
    with refused(f"model_flavour {name!r} cannot be read (",
                 "); name a folder that holds it, or a model of the hub that this machine can reach", 400):
        stated = AutoConfig.from_pretrained(where, token=token)

    def build(labels: Classes) -> nn.Module:
        """Build the classifier: its checkpoint with a head for these classes, or from its config alone."""
        from transformers import AutoModelForImageClassification

        with refused(f"model_flavour {name!r}: no image classifier can be made of it (",
                     "); without weights set load_pretrained to false", 400):
            headed = AutoConfig.from_pretrained(where, token=token, num_labels=len(labels), id2label=dict(enumerate(labels)),
                                                label2id={label: index for index, label in enumerate(labels)})
            if not config.load_pretrained:
                model = AutoModelForImageClassification.from_config(headed)
            else:
                model, report = AutoModelForImageClassification.from_pretrained(
                    where, config=headed, token=token, ignore_mismatched_sizes=True, use_safetensors=True,
                    output_loading_info=True)
                keys = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
                if absent := sorted(key for key in keys if key.startswith(f"{model.base_model_prefix}.")):
                    raise InputError(f"model_flavour {name!r}: its weights do not fit its config: {len(absent)} missing or of "
                                     f"another shape, such as {absent[0]}")
        if config.freeze_backbone:
            model.base_model.requires_grad_(False)
        return model
    return Network(_processed(where, stated, token, config), build)


def _processed(where: str, stated, token: str | None, config: TrainConfig) -> Inputs:
    """Return the inputs of the model's image processor; without one, its image size (or 224), mean and deviation 0.5."""
    from transformers import AutoImageProcessor

    channels = getattr(stated, "num_channels", 3)
    size = getattr(stated, "image_size", _FOLDER_SIZE)
    try:
        processor = AutoImageProcessor.from_pretrained(where, token=token)
    except (OSError, ValueError):  # it has none
        return Inputs(channels, config.image_size or (size if isinstance(size, int) else size[0]))
    sizes = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    size = next((sizes[key] for key in ("height", "shortest_edge", "longest_edge") if sizes.get(key)), size)
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,), (1.0,))
    return Inputs(channels, config.image_size or size, tuple(mean), tuple(std), int(processor.resample))
