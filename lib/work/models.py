"""The networks that workloads name: two CNNs, ResNet-18 2D and torchvision's classifiers."""

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from lib.errors import InputError, choices
from lib.names import did_you_mean

CHANNELS = 3  # of torchvision's classifiers, unless their first layer is fitted to a dataset


def simple_cnn(channels: int, classes: int) -> nn.Module:
    """Return three 3x3 convolutions (32, 64, 128 channels) with max-pooling, two linear layers.

    Input (N, channels, H, W) with H, W >= 8; output (N, classes) logits.
    """
    return _CNN([channels, 32, 64, 128], classes, nn.Conv2d, None, nn.MaxPool2d,
                nn.AdaptiveAvgPool2d)


def cnn3d(channels: int, classes: int) -> nn.Module:
    """Return ``simple_cnn`` of 3x3x3 convolutions (16, 32, 64 channels), each with a batch norm.

    Input (N, channels, D, H, W) with D, H, W >= 8; output (N, classes) logits.
    """
    return _CNN([channels, 16, 32, 64], classes, nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d,
                nn.AdaptiveAvgPool3d)


class _CNN(nn.Module):
    def __init__(self, widths, classes, convolution, norm, max_pool, mean_pool):
        super().__init__()
        layers = []
        for inner, outer in zip(widths, widths[1:], strict=False):
            layers.append(convolution(inner, outer, 3, padding=1))
            if norm:
                layers.append(norm(outer))
            layers += [nn.ReLU(), max_pool(2)]
        self.features = nn.Sequential(*layers, mean_pool(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(widths[-1], 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(inputs))


def resnet18_2d(channels: int, classes: int) -> nn.Module:
    """Return torchvision's ResNet-18, its first and last layer fitted to the data."""
    return build("resnet18", channels, classes)


OWN: dict[str, tuple[int, Callable[[int, int], nn.Module]]] = {
    "simple_cnn": (2, simple_cnn), "resnet18_2d": (2, resnet18_2d), "cnn3d": (3, cnn3d)}


@cache
def names() -> tuple[str, ...]:
    """Return every model name that ``build`` takes."""
    from torchvision import models

    return (*OWN, *models.list_models(module=models))


def build(name: str, channels: int, classes: int, spatial: int = 2, size: int = 224) -> nn.Module:
    """Build a model with random weights, for inputs with ``spatial`` sides of ``size``.

    Raises InputError for an unknown name, and for a 2D model on 3D data or the reverse.
    """
    from torchvision import models

    if name not in names():
        raise InputError(f"no model {name!r}; there are: {choices(OWN)} and torchvision's "
                         "classifiers (resnet50, vgg16, ...)" + did_you_mean(name, names()))
    takes, make = OWN.get(name, (2, None))
    if takes != spatial:
        fitting = [other for other, (sides, _) in OWN.items() if sides == spatial]
        raise InputError(f"model {name!r} takes {takes}D inputs, but the dataset is {spatial}D; "
                         f"{spatial}D models: {choices(fitting)}")
    if make:
        return make(channels, classes)
    options = {"image_size": size} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": False}
    try:
        model = models.get_model(name, weights=None, num_classes=classes, **options)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise InputError(f"model {name!r} cannot be built for inputs of size {size}: "
                         f"{error}") from None
    if channels != CHANNELS:
        place, first = next((place, layer) for place, layer in model.named_modules()
                            if isinstance(layer, nn.Conv2d))
        model.set_submodule(place, nn.Conv2d(
            channels, first.out_channels, first.kernel_size, first.stride, first.padding,
            first.dilation, first.groups, first.bias is not None))
    return model
