"""From a picture to the input of a model, and the augmentations of a batch on the device."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from lib.work.pictures import central_square


@dataclass(frozen=True)
class Inputs:
    """The input of a model: channels, pixels along each side, mean and deviation of a channel (of 0 to 1), PIL's resampling."""

    channels: int
    size: int
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    resample: int = int(Image.Resampling.BILINEAR)


class Prepare:
    """Turn a picture of any shape into a normalised (channels, size, size) tensor of its central square."""

    def __init__(self, inputs: Inputs, color_jitter: bool = False):
        self._inputs = inputs
        self._mean, self._std = (torch.tensor(values).reshape(-1, 1, 1) for values in (inputs.mean, inputs.std))
        self._jitter = None
        if color_jitter:
            from torchvision.transforms import v2

            self._jitter = v2.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.02)

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        """Return the tensor; random changes draw from torch's generator."""
        size = self._inputs.size
        picture = picture.convert("L" if self._inputs.channels == 1 else "RGB")
        picture = central_square(picture).resize((size, size), self._inputs.resample)
        if self._jitter:
            picture = self._jitter(picture)
        array = np.array(picture, dtype=np.float32).reshape(size, size, -1).transpose(2, 0, 1)
        return torch.from_numpy(array).contiguous().div_(255).sub_(self._mean).div_(self._std)


def gpu_augmentation() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return flips, shifts, turns and zooms of a whole batch (N, C, H, W), on its device, that keep its shape (Kornia).

    They move pixels only and fill with the mean, so normalised values stay normalised; they draw from torch's generator.
    """
    from kornia import augmentation

    changes = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.RandomAffine(degrees=10.0, translate=(0.06, 0.06), scale=(0.9, 1.1), p=0.5), data_keys=["input"])
    return torch.no_grad()(lambda batch: changes(batch).to(batch.dtype))
