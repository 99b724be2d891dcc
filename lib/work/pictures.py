"""Folders of pictures, ROOT/{train,val,test}/CLASS/, as datasets of 8-bit RGB pictures."""

import os
from collections.abc import Callable
from glob import glob
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from lib.errors import InputError, choices, one_line
from lib.work.medmnist_files import SPLITS

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_EXTRAS = {"__MACOSX", "@eaDir"}  # folders that macOS's zip and Synology's disks add
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF: bits per sample; 0: the value 0 is white


class PictureError(InputError):
    """A picture that cannot be read; without the traceback that torch puts before it in a worker of a loader."""

    def __init__(self, message: object):
        super().__init__(str(message).rpartition(f"\n{__name__}.PictureError: ")[2])


class Pictures(torch.utils.data.Dataset):
    """One split of a folder of pictures; an item is (transformed RGB picture, class array (1,)).

    ``imgs`` lists (path, class) as torchvision's ImageFolder does, but without hidden files.
    """

    def __init__(self, folder: Path, classes: tuple[str, ...], transform: Callable | None):
        self.classes, self.transform = classes, transform
        self.imgs = [(path, index) for index, name in enumerate(classes)
                     for path in _found(folder / name)]
        self.labels = np.array([index for _, index in self.imgs], np.int64).reshape(-1, 1)

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, np.ndarray]:
        return self.transform(read(self.imgs[index][0])), self.labels[index]


def _found(folder: Path) -> list[str]:
    """Return the pictures in a folder and in its subfolders; glob leaves out hidden files."""
    names = glob("**/*", root_dir=folder, recursive=True)
    return [str(folder / name) for name in sorted(names, key=os.path.split)
            if name.lower().endswith(SUFFIXES) and _EXTRAS.isdisjoint(Path(name).parts)]


def classes(root: Path, split: str = "train") -> tuple[str, ...]:
    """Return the names of the folders in a split; InputError for a missing split or no folder."""
    if not (folder := root / split).is_dir():
        raise InputError(f"{folder} is no folder; a folder of pictures has train/ and val/, "
                         "perhaps test/, each with one folder per class")
    names = tuple(sorted({Path(name).name for name in glob("*/", root_dir=folder)} - _EXTRAS))
    if not names:
        raise InputError(f"{folder} has no folders of classes")
    return names


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

    Grey pictures of more bits are scaled: 16-bit integers from 0 to 65535, floats from 0 to 1.
    Raises PictureError, which names the file, for an unreadable picture or an unknown range.
    """
    try:  # given a path, Pillow maps the file, and then mixes up the rows of turned TIFFs
        with open(path, "rb") as file, Image.open(file) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            deep = picture.mode[0] in "IF"  # I, I;16, I;16B, ..., F
            return (_in_8_bits(picture) if deep else picture).convert("RGB")
    except InputError as error:
        raise PictureError(f"{path}: {error}") from None
    except Exception as error:  # Pillow raises errors of many types
        is_known = not isinstance(error, UnidentifiedImageError)
        why = one_line(error) if is_known else "Pillow knows no picture of this kind"
        raise PictureError(f"{path} cannot be read: {why}; replace or remove the file") from None


def central_square(picture: Image.Image) -> Image.Image:
    """Return the central square of a picture, of the length of its shorter side; a square one as it is."""
    if picture.width == picture.height:
        return picture
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def _in_8_bits(picture: Image.Image) -> Image.Image:
    """Return a grey picture of 16-bit integers or floats in 8 bits."""
    tags = getattr(picture, "tag_v2", {})  # of a TIFF
    top = 1 if picture.mode == "F" else 2 ** tags.get(_BITS, (16,))[0] - 1
    if picture.mode == "I" and picture.format not in ("PNG", "PPM"):  # these have at most 16 bits
        raise InputError("the range of signed or 32-bit integers is not known; save the picture in "
                         "8 or 16 bits")
    values = np.asarray(picture, np.float64)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):
        raise InputError(f"the values lie between {low:g} and {high:g}, but floats are read from 0 "
                         "to 1; scale them to that range, or save the picture in 8 or 16 bits")
    if 0 < high < top / 16:
        raise InputError(f"the largest value is {high:g} of {top}, so 8 bits would hold 16 levels "
                         "at most; scale the values to the whole range")
    values = top - values if tags.get(_PHOTOMETRIC) == 0 else values
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))
