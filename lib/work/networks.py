"""A network by any name: a workload, torchvision's, timm's or Hugging Face's, or a user's class."""

from dataclasses import dataclass

import torch

from lib.config import definitions
from lib.errors import InputError, choices
from lib.names import did_you_mean, known
from lib.work import models, user_code, workloads
from lib.work.building import hugging_face, inputs, timm_models
from lib.work.building.inputs import Input

LIBRARIES = {timm_models.PREFIX: timm_models, hugging_face.PREFIX: hugging_face}
_SIZES = {"inception_v3": 299, "cnn3d": 28}  # of usual inputs; others 224


@dataclass(frozen=True)
class Network:
    """A network that can be built, and the shape of a batch: (N, C, H, W), (N, tokens), ...

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

    def made(self, device: torch.device | str) -> tuple[list, dict[str, torch.Tensor]]:
        """Make a batch of random values: the positional and the named arguments of a model."""
        values = [item.made(torch.device(device)) for item in self.batch]
        return inputs.arguments(values, self.batch)


def network(name: str, batch_size: int = 0, input_shape: str = "") -> Network:
    """Resolve the name of a network.

    Args:
        name: a workload id (W1), a model (resnet50, cnn3d), timm:NAME, hf:PATH of a config, or
            module:Class.
        batch_size: 0 is the workload's own, or 1.
        input_shape: one sample such as 3x224x224 or 512:int64, or a YAML file of several inputs,
            see ``inputs.parse``; empty takes the usual one.

    Raises InputError for an unknown name, a wrong shape or batch size.
    """
    name = spelled(name)
    if batch_size < 0:
        raise InputError(f"batch size {batch_size} is negative; give 1 or more, or 0 for the usual "
                         "one")
    given = inputs.parse(input_shape)
    if name in definitions.workloads():
        task = workloads.prepare(definitions.workload(name), batch_size)
        if given and given != (Input(task.shape),):
            raise InputError(f"workload {name} has inputs of {'x'.join(map(str, task.shape))}, not "
                             f"{input_shape}")
        return Network(name, task.model, (task.workload.batch_size, *task.shape))
    library, colon, rest = name.partition(":")
    if library in LIBRARIES and colon:
        build, sample = LIBRARIES[library].network(rest, input_shape)
    elif colon:
        build, sample = user_code.builder(name), given or (Input((3, 224, 224)),)
    else:
        sample = _sample(name, input_shape, given)
        channels, *sides = sample[0].shape

        def build() -> torch.nn.Module:
            return models.build(name, channels, 1000, len(sides), sides[0])
    batch = tuple(item.batch(batch_size or 1) for item in sample)
    return Network(name, build, batch[0].shape, batch)


def _sample(name: str, input_shape: str, given: tuple[Input, ...]) -> tuple[Input, ...]:
    """Return the input of a torchvision classifier or of a network of this project."""
    if name not in models.names():
        import timm

        listed = [*models.names(), *(f"timm:{other}" for other in timm.list_models())]
        raise InputError(f"no model {name!r}; there are: {choices(definitions.workloads())}, "
                         f"{choices(models.OWN)}, torchvision's classifiers (resnet50, vgg16, ...), "
                         "timm:NAME, hf:PATH of a config.json, and your own as module:Class"
                         + did_you_mean(name, listed))
    spatial = models.OWN.get(name, (2, None))[0]
    usual = (3 if spatial == 2 else 1, *[_SIZES.get(name, 224)] * spatial)
    sample = given or (Input(usual),)
    shape = sample[0].shape
    is_any = name in models.OWN and len(shape) == len(usual)  # any number of channels
    channels = shape[0] if is_any else usual[0]
    if sample != (Input(shape),) or len(shape) != len(usual) or shape[0] != channels:
        right = "x".join(map(str, (channels, *usual[1:])))
        raise InputError(f"model {name!r} takes {spatial}D inputs of {channels} channels, not "
                         f"{input_shape}; give {right}")
    return sample


def spelled(name: str) -> str:
    """Return a name as it is spelled here: resnet50 for ResNet-50, hf:org/name for org/name."""
    if "/" in name and ":" not in name:
        is_timm = name.startswith("timm/")
        return name.replace("/", ":", 1) if is_timm else f"{hugging_face.PREFIX}:{name}"
    return name if ":" in name else known(name, [*definitions.workloads(), *models.names()])


def is_users(name: str) -> bool:
    """Return whether a name is of a user's own code."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library not in LIBRARIES


def family(name: str) -> str:
    """Return the module of torchvision or timm that defines a network, or Hugging Face's type.

    Any other network is a family by itself, of its name.
    """
    import torchvision

    library, colon, rest = name.partition(":")
    if colon and library in LIBRARIES:
        return LIBRARIES[library].family(rest)
    if name not in torchvision.models.list_models():
        return name
    return torchvision.models.get_model_builder(name).__module__.rpartition(".")[2]
