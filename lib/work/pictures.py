"""Folders of pictures, ROOT/{train,val,test}/CLASS/, as datasets of 8-bit RGB pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.datasets import ImageFolder

from lib.errors import InputError, choices, one_line
from lib.work.medmnist_files import SPLITS

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_EXTRAS = {"__MACOSX", "@eaDir"}  # folders that macOS's zip and Synology's disks add
_WHITE = 65535  # of a grey picture of 16 bits


class PictureError(InputError):
    """A picture that cannot be read; without the traceback that torch's loader puts before it."""

    def __init__(self, message: object):
        super().__init__(str(message).rpartition(f"\n{__name__}.PictureError: ")[2])


class Pictures(ImageFolder):
    """One split of a folder of pictures; an item is (transformed RGB picture, class array (1,))."""

    def __init__(self, folder: Path, names: tuple[str, ...], transform: Callable | None):
        self._names = list(names)
        super().__init__(str(folder), transform, loader=read, allow_empty=True,
                         is_valid_file=lambda path: _is_picture(Path(path).relative_to(folder)))
        self.labels = np.array(self.targets, np.int64).reshape(-1, 1)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """Return the classes of the training split, and their numbers."""
        return self._names, {name: number for number, name in enumerate(self._names)}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, np.ndarray]:
        return super().__getitem__(index)[0], self.labels[index]


def _is_picture(path: Path) -> bool:
    """Return whether a file is a picture, and neither it nor a folder above it is hidden."""
    hidden = any(part.startswith(".") or part in _EXTRAS for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def classes(root: Path, split: str = "train") -> tuple[str, ...]:
    """Return the names of the folders in a split; InputError for a missing split or no folder."""
    if not (folder := root / split).is_dir():
        raise InputError(f"{folder} is no folder; a folder of pictures has train/ and val/, "
                         "perhaps test/, each with one folder per class")
    names = {path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."}
    if not names - _EXTRAS:
        raise InputError(f"{folder} has no folders of classes")
    return tuple(sorted(names - _EXTRAS))


def splits(root: Path, transforms: dict[str, Callable]) -> dict[str, Pictures]:
    """Return train, val and, if the folder has it, test; ``transforms`` by split.

    Classes are numbered as in train. Raises InputError for a class without pictures in train, a
    class that train has not, and a split without pictures.
    """
    names, found = classes(root), {}
    for split in SPLITS:
        if split == "test" and not (root / split).is_dir():
            continue
        if unknown := sorted(set(classes(root, split)) - set(names)):
            raise InputError(f"{root / split} has classes that train/ has not: {choices(unknown)}; "
                             f"train/ has: {choices(names)}")
        found[split] = images = Pictures(root / split, names, transforms.get(split))
        empty = [name for index, name in enumerate(names) if index not in images.labels]
        if empty and (split == "train" or not images.imgs):
            raise InputError(f"{root / split} has no pictures ({choices(SUFFIXES)}) in "
                             f"{choices(empty)}; add some, or remove the folder")
    return found


def read(path: str | Path) -> Image.Image:
    """Return a picture, of several pages the first, as 8-bit RGB in its EXIF orientation.

    Grey pictures of 16 bits are scaled from 0 to 65535. Raises PictureError, which names the file,
    also for those of which 8 bits would hold 16 levels at most.
    """
    try:  # given a path, Pillow maps the file, and then mixes up the rows of turned TIFFs
        with open(path, "rb") as file, Image.open(file) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            deep = picture.mode[0] in "IF"  # I, I;16, I;16B, ..., F
            return (_in_8_bits(picture) if deep else picture).convert("RGB")
    except UnidentifiedImageError:
        why = "Pillow knows no picture of this kind"
    except Exception as error:  # Pillow raises errors of many types
        why = str(error) if isinstance(error, InputError) else one_line(error)
    raise PictureError(f"{path} cannot be read: {why}; replace or remove the file")


def _in_8_bits(picture: Image.Image) -> Image.Image:
    """Return a grey picture of 16 bits in 8 bits; InputError for an unknown range or a dark one."""
    is_deep = picture.mode == "I" and picture.format not in ("PNG", "PPM")  # these have 16 bits
    if picture.mode == "F" or is_deep:
        raise InputError("it holds floats or integers of 32 bits, whose range is not known; save "
                         "it in 8 or 16 bits")
    values = np.asarray(picture, np.float64)
    if 0 < (most := values.max()) < _WHITE / 16:
        raise InputError(f"its largest value is {most:g} of {_WHITE}, so 8 bits would hold 16 "
                         "levels at most; scale the values to the whole range")
    return Image.fromarray(np.rint(values * (255 / _WHITE)).astype(np.uint8))


def central_square(picture: Image.Image) -> Image.Image:
    """Return the central square of a picture, of the length of its shorter side."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))
