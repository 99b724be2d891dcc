"""The networks that workloads name: SimpleCNN, ResNet-18 2D, a 3D CNN, and every torchvision classifier."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise

import torch
from torch import nn

from lib.errors import InputError, choices
from lib.names import did_you_mean

CHANNELS = 3  # that torchvision's classifiers take, unless their first layer is fitted to a dataset


class _CNN(nn.Module):
    """Blocks of layers, mean pooling, then two linear layers; ``width`` is the channels of the last block."""

    def __init__(self, blocks: Iterable[nn.Module], pool: nn.Module, width: int, classes: int):
        super().__init__()
        self.features = nn.Sequential(*blocks, pool, nn.Flatten())
        self.head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map images to logits."""
        return self.head(self.features(inputs))


def simple_cnn(channels: int, classes: int) -> nn.Module:
    """Return three 3x3 convolutions (32, 64, 128 channels), each with ReLU and 2x2 max-pooling, then two linear layers.

    Input (N, channels, H, W) with H, W >= 8; output (N, classes) logits.
    """
    blocks = [layer for inner, outer in pairwise((channels, 32, 64, 128))
              for layer in (nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    return _CNN(blocks, nn.AdaptiveAvgPool2d(1), 128, classes)


def cnn3d(channels: int, classes: int) -> nn.Module:
    """Return three 3x3x3 convolutions (16, 32, 64 channels), each with batch norm, ReLU and max-pooling, then linear layers.

    Input (N, channels, D, H, W) with D, H, W >= 8; output (N, classes) logits.
    """
    blocks = [layer for inner, outer in pairwise((channels, 16, 32, 64))
              for layer in (nn.Conv3d(inner, outer, 3, padding=1), nn.BatchNorm3d(outer), nn.ReLU(), nn.MaxPool3d(2))]
    return _CNN(blocks, nn.AdaptiveAvgPool3d(1), 64, classes)


def resnet18_2d(channels: int, classes: int) -> nn.Module:
    """Return torchvision's ResNet-18 with random weights, its first and last layer fitted to the data."""
    return build("resnet18", channels, classes)


OWN: dict[str, tuple[int, Callable[[int, int], nn.Module]]] = {
    "simple_cnn": (2, simple_cnn), "resnet18_2d": (2, resnet18_2d), "cnn3d": (3, cnn3d)}


@cache
def names() -> tuple[str, ...]:
    """Return every model name that ``build`` takes."""
    from torchvision import models

    return (*OWN, *models.list_models(module=models))


def build(name: str, channels: int, classes: int, spatial: int = 2, size: int = 224) -> nn.Module:
    """Build model ``name`` with random weights for inputs of ``channels`` and ``spatial`` dimensions of ``size``.

    Raises InputError for an unknown name (listing the own ones and where the others are listed) and for a 2D model
    on 3D data or the reverse.
    """
    from torchvision import models

    if name not in names():
        raise InputError(f"no model {name!r}; there are: {choices(OWN)} and torchvision's classifiers (resnet50, vgg16, ...)"
                         + did_you_mean(name, names()))
    takes, make = OWN.get(name, (2, None))
    if takes != spatial:
        raise InputError(f"model {name!r} takes {takes}D inputs, but the dataset is {spatial}D; "
                         f"{spatial}D models: {choices(n for n, (d, _) in OWN.items() if d == spatial)}")
    if make:
        return make(channels, classes)
    options = {"image_size": size} if name.startswith("vit_") else {}
    options |= {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    try:
        model = models.get_model(name, weights=None, num_classes=classes, **options)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise InputError(f"model {name!r} cannot be built for inputs of size {size}: {error}") from None
    if channels != CHANNELS:
        place, first = next((place, layer) for place, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
        fitted = nn.Conv2d(channels, first.out_channels, first.kernel_size, first.stride, first.padding,
                           first.dilation, first.groups, first.bias is not None)
        model.set_submodule(place, fitted)
    return model
