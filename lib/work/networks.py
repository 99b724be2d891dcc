"""A network by any name that a user may give: a torchvision or own model, a workload id, or a class of the user's."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lib.config import definitions
from lib.errors import InputError, choices
from lib.work import models, user_code, workloads

_SIZES = {"inception_v3": 299, "vit_h_14": 224}
_USUAL_SIZE = {2: 224, 3: 28}
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){2,3}")


@dataclass(frozen=True)
class Network:
    """A network that can be built, and the shape of a batch of its inputs, (N, C, H, W) or (N, C, D, H, W)."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def network(name: str, batch_size: int = 0, input_shape: str = "") -> Network:
    """Resolve ``name``: a workload id (W1), a model name (resnet50, simple_cnn, cnn3d), or ``module:Class``.

    ``input_shape`` is one sample such as ``3x224x224``; empty takes the workload's own or the model's usual one.
    ``batch_size`` 0 is the workload's own, or 1. Raises InputError for a name, shape or batch size that is none, and for
    channels that torchvision's classifiers do not take (a workload's first layer is fitted to its dataset's).
    """
    if batch_size < 0:
        raise InputError(f"batch size {batch_size} is none; give 1 or more, or 0 for the usual one")
    shape = _shape(input_shape) if input_shape else ()
    if name in definitions.workloads():
        task = workloads.prepare(definitions.workload(name), batch_size)
        if shape and shape != task.shape:
            raise InputError(f"workload {name} has inputs of {'x'.join(map(str, task.shape))}, not {input_shape}")
        return Network(name, task.model, (task.workload.batch_size, *task.shape))
    if ":" in name:
        return Network(name, user_code.builder(name), (batch_size or 1, *(shape or (3, 224, 224))))
    spatial = models.OWN.get(name, (2, None))[0]
    size = _SIZES.get(name, _USUAL_SIZE[spatial])
    shape = shape or (3 if spatial == 2 else 1, *[size] * spatial)
    if name not in models.names():
        raise InputError(f"no model {name!r}; there are: {choices(definitions.workloads())}, {choices(models.OWN)}, "
                         "torchvision's classifiers (resnet50, vgg16, ...), and your own as module:Class")
    channels = shape[0] if name in models.OWN else models.CHANNELS
    if len(shape) != 1 + spatial or shape[0] != channels:
        right = "x".join(map(str, (channels, *shape[1:1 + spatial], *[size] * (1 + spatial - len(shape)))))
        raise InputError(f"model {name!r} takes {spatial}D inputs of {channels} channels, not {input_shape}; give {right}")
    return Network(name, lambda: models.build(name, shape[0], 1000, len(shape) - 1, shape[1]), (batch_size or 1, *shape))


def family(name: str) -> str:
    """Return the family of a network: the module of torchvision that defines it; of others their own name."""
    import torchvision

    listed = name in torchvision.models.list_models()
    return torchvision.models.get_model_builder(name).__module__.rpartition(".")[2] if listed else name


def _shape(text: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text.lower()):
        raise InputError(f"input shape {text!r} is none; give channels and sizes such as 3x224x224 or 1x28x28x28")
    return tuple(map(int, text.lower().split("x")))
