"""A network by any name that a user may give: a workload, torchvision's, timm's or Hugging Face's, or a class of the user's."""

from dataclasses import dataclass

import torch

from lib.config import definitions
from lib.errors import InputError, choices
from lib.names import did_you_mean, known
from lib.work import models, user_code, workloads
from lib.work.building import hugging_face, inputs, timm_models
from lib.work.building.inputs import Input

_SIZES = {"inception_v3": 299, "vit_h_14": 224}
_USUAL_SIZE = {2: 224, 3: 28}
_LIBRARIES = {timm_models.PREFIX: timm_models, hugging_face.PREFIX: hugging_face}


@dataclass(frozen=True)
class Network:
    """A network that can be built, and the shape of a batch of its inputs, such as (N, C, H, W) or (N, tokens).

    ``inputs``: one or more, with element types and names; empty: one of floats of that ``shape``.
    """

    name: str
    build: user_code.Builder
    shape: tuple[int, ...]
    inputs: tuple[Input, ...] = ()

    @property
    def batch(self) -> tuple[Input, ...]:
        """Return the inputs of a batch, one at least."""
        return self.inputs or (Input(self.shape),)

    def made(self, device: torch.device | str) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Make a batch of random values: the positional and the named arguments of a model."""
        return inputs.arguments([entry.made(torch.device(device)) for entry in self.batch], self.batch)


def network(name: str, batch_size: int = 0, input_shape: str = "") -> Network:
    """Resolve ``name``: a workload id (W1), a model (resnet50, cnn3d), timm:NAME, hf:PATH of a config, or ``module:Class``.

    ``input_shape`` is one sample such as ``3x224x224`` or ``512:int64``, or a YAML file of several, see ``inputs.parse``; empty
    takes the workload's own or the model's usual one. ``batch_size`` 0 is the workload's own, or 1. Raises InputError for an
    unknown name, a wrong shape or batch size, and for channels that torchvision's classifiers do not take (a workload's first
    layer is fitted to its dataset's).
    """
    name = spelled(name)
    if batch_size < 0:
        raise InputError(f"batch size {batch_size} is negative; give 1 or more, or 0 for the usual one")
    if name in definitions.workloads():
        task, given = workloads.prepare(definitions.workload(name), batch_size), inputs.parse(input_shape)
        if given and given != (Input(task.shape),):
            raise InputError(f"workload {name} has inputs of {'x'.join(map(str, task.shape))}, not {input_shape}")
        return Network(name, task.model, (task.workload.batch_size, *task.shape))
    library, at, rest = name.partition(":")
    if at and library in _LIBRARIES:
        build, sample = _LIBRARIES[library].network(rest, input_shape)
    elif at:
        build, sample = user_code.builder(name), inputs.parse(input_shape) or (Input((3, 224, 224)),)
    else:
        build, sample = _listed(name, input_shape)
    batch = tuple(entry.batch(batch_size or 1) for entry in sample)
    return Network(name, build, batch[0].shape, batch)


def spelled(name: str) -> str:
    """Return a name as it is spelled here: resnet50 for ResNet-50, hf:org/name for org/name, timm:NAME for timm/NAME."""
    if "/" in name and ":" not in name:
        return name.replace("/", ":", 1) if name.startswith("timm/") else f"{hugging_face.PREFIX}:{name}"
    return name if ":" in name else known(name, [*definitions.workloads(), *models.names()])


def is_users(name: str) -> bool:
    """Return whether a name is of a user's own code; whether that exists shows only when it is imported."""
    library, at, _ = name.partition(":")
    return bool(at) and library not in _LIBRARIES


def _listed(name: str, input_shape: str) -> tuple[user_code.Builder, tuple[Input, ...]]:
    """Return how one of ours or of torchvision's classifiers is built, and its input."""
    spatial = models.OWN.get(name, (2, None))[0]
    size = _SIZES.get(name, _USUAL_SIZE[spatial])
    if name not in models.names():
        import timm

        listed = [*models.names(), *(f"{timm_models.PREFIX}:{name}" for name in timm.list_models())]
        raise InputError(f"no model {name!r}; there are: {choices(definitions.workloads())}, {choices(models.OWN)}, "
                         "torchvision's classifiers (resnet50, vgg16, ...), timm:NAME, hf:PATH of a config.json, and your own "
                         f"as module:Class{did_you_mean(name, listed)}")
    sample = inputs.parse(input_shape) or (Input((3 if spatial == 2 else 1, *[size] * spatial)),)
    shape = sample[0].shape
    channels = shape[0] if name in models.OWN and shape else models.CHANNELS
    if sample != (Input(shape),) or len(shape) != 1 + spatial or shape[0] != channels:
        right = "x".join(map(str, (channels, *shape[1:1 + spatial], *[size] * (1 + spatial - max(1, len(shape))))))
        raise InputError(f"model {name!r} takes {spatial}D inputs of {channels} channels, not {input_shape}; give {right}")
    return lambda: models.build(name, shape[0], 1000, len(shape) - 1, shape[1]), sample


def family(name: str) -> str:
    """Return the family of a network: the module of torchvision or timm that defines it, or Hugging Face's model type.

    All others are a family of their own, by their name.
    """
    import torchvision

    library, at, rest = name.partition(":")
    if at and library in _LIBRARIES:
        return _LIBRARIES[library].family(rest)
    listed = name in torchvision.models.list_models()
    return torchvision.models.get_model_builder(name).__module__.rpartition(".")[2] if listed else name
