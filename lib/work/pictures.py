"""Folders of pictures, ROOT/{train,val,test}/CLASS/: what belongs to them, and how a picture is read in 8 bits."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from lib.errors import InputError, choices, one_line
from lib.work.medmnist_files import SPLITS

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_EXTRAS = ("__MACOSX", "@eaDir")  # folders that macOS's zip and Synology's disks add
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF: bits per sample; 0: the value 0 is white


class Pictures(torch.utils.data.Dataset):
    """One split of a folder of pictures; an item is (what ``transform`` makes of an RGB picture, array (1,) of its class).

    ``imgs`` are (path, class) by class and path, as in torchvision's ImageFolder. Pictures in deeper folders belong to the
    class; hidden files and folders do not.
    """

    def __init__(self, folder: Path, classes: tuple[str, ...], transform: Callable | None = None):
        self.classes, self.transform = classes, transform
        self.imgs = [(path, index) for index, name in enumerate(classes) for path in _found(folder / name)]
        self.labels = np.array([index for _, index in self.imgs], np.int64).reshape(-1, 1)

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, np.ndarray]:
        return self.transform(read(self.imgs[index][0])), self.labels[index]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _EXTRAS


def _found(folder: Path) -> list[str]:
    """Return the pictures in a folder and in the folders below it."""
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found += [(place, name) for name in names if name.lower().endswith(SUFFIXES) and not _is_hidden(name)]
    return [os.path.join(*each) for each in sorted(found)]


def classes(root: Path, split: str = "train") -> tuple[str, ...]:
    """Return the classes of a split, which are its folders; InputError without the folder or without classes."""
    if not (folder := root / split).is_dir():
        raise InputError(f"{folder} is no folder; a folder of pictures has train/ and val/, perhaps test/, and in each of them "
                         "one folder per class")
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not _is_hidden(entry.name)))
    if not names:
        raise InputError(f"{folder} holds no folder of a class")
    return names


def splits(root: Path, transforms: dict[str, Callable]) -> dict[str, Pictures]:
    """Return train, val and, where there is one, test, all with the classes of train, and their transforms by split.

    Raises InputError for a class without pictures in train, a class that train has not, and a split without pictures.
    """
    names, found = classes(root), {}
    for split in SPLITS:
        if split == "test" and not (root / split).is_dir():
            continue
        if unknown := sorted(set(classes(root, split)) - set(names)):
            raise InputError(f"{root / split} has classes that train/ has not: {choices(unknown)}; that has: {choices(names)}")
        found[split] = Pictures(root / split, names, transforms.get(split))
        if not found[split].imgs:
            raise InputError(f"{root / split} holds no pictures ({choices(SUFFIXES)})")
    if empty := [name for index, name in enumerate(names) if index not in found["train"].labels]:
        raise InputError(f"{root / 'train'}: no pictures ({choices(SUFFIXES)}) in {choices(empty)}; add some, or remove the "
                         "folder of the class")
    return found


def read(path: str | Path) -> Image.Image:
    """Return a picture as RGB of 8 bits, upright as its EXIF orientation says; of several pages the first.

    Grey pictures of more bits are scaled: 16-bit integers from 0 to 65535, floats from 0 to 1.
    Raises InputError, which names the file, for a picture that cannot be read or whose range is not known.
    """
    try:
        with Image.open(path) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            return (_in_8_bits(picture) if picture.mode[0] in "IF" else picture).convert("RGB")
    except UnidentifiedImageError:
        raise InputError(f"{path}: this is no picture that Pillow can read; replace or remove the file") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # Pillow raises many kinds
        raise InputError(f"{path}: the picture cannot be read ({one_line(error)}); replace or remove the file") from None


def _in_8_bits(picture: Image.Image) -> Image.Image:
    """Return a grey picture of 16-bit integers or floats in 8 bits."""
    tags = getattr(picture, "tag_v2", {})  # of a TIFF
    top = 1 if picture.mode == "F" else 2 ** tags.get(_BITS, (16,))[0] - 1
    if picture.mode == "I" and (tags or picture.format not in ("PNG", "PPM")):  # these hold at most 16 bits
        raise InputError("signed or 32-bit integers have no range that is known; save the picture in 8 or 16 bits")
    values = np.asarray(picture, np.float64)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):
        raise InputError(f"the values lie between {low:g} and {high:g}, but floats are read from 0 to 1; scale them to that "
                         "range, or save the picture in 8 or 16 bits")
    if 0 < high < top / 16:
        raise InputError(f"the largest value is {high:g} of {top}, so 8 bits would hold 16 levels at most; scale the values to "
                         "the whole range")
    values = top - values if tags.get(_PHOTOMETRIC) == 0 else values
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))
