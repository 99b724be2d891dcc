"""MedMNIST's files: the published ones, fetched and checked, and synthetic stand-ins of the same layout."""

import hashlib
import importlib.util
import io
import math
import os
import runpy
import tempfile
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import psutil

from lib import files, paths, store
from lib.errors import InputError, choices, entry, refused

UNOFFICIAL = "not the file that MedMNIST published (its MD5 differs)"
SPLITS = ("train", "val", "test")
_PERIOD = 64  # a synthetic split keeps its real size modulo this, so the odd last batch of every 2^k batch up to 64 is kept
_SYNTHETIC_MB = 64
_SYNTHETIC_VERSION = 1


@cache
def info() -> dict[str, dict]:
    """Return medmnist's own table of its datasets, by flag; it is a file alone, since the package loads torch."""
    package = importlib.util.find_spec("medmnist")
    if package is None:
        raise ModuleNotFoundError("No module named 'medmnist'", name="medmnist")
    return runpy.run_path(f"{package.submodule_search_locations[0]}/info.py")["INFO"]


@dataclass(frozen=True)
class Facts:
    """What a dataset decides: input channels, classes (or labels), spatial dimensions and the kind of its labels."""

    channels: int
    classes: int
    spatial: int
    multi_label: bool
    samples: tuple[int, ...]


def facts(dataset: str) -> Facts:
    """Return what MedMNIST states of one of its datasets."""
    stated = info()[dataset]
    return Facts(stated["n_channels"], len(stated["label"]), 3 if dataset.endswith("3d") else 2,
                 stated["task"].startswith("multi-label"), tuple(stated["n_samples"][split] for split in SPLITS))


def published(dataset: str, native: int) -> tuple[str, str]:
    """Return address and MD5 of a published file; InputError lists the datasets, or the sizes of one."""
    stated, key = entry(info(), dataset, "MedMNIST dataset"), "" if native == 28 else f"_{native}"
    if f"url{key}" not in stated:
        sizes = [28, *(name.removeprefix("url_") for name in stated if name.startswith("url_"))]
        raise InputError(f"{dataset} has no size {native}; there are: {choices(sizes)}")
    return stated[f"url{key}"], stated[f"MD5{key}"]


def native_size(dataset: str, size: int, resolution: str) -> int:
    """Return the MedMNIST+ size that is read for ``size``: the smallest that is not smaller, or 28 when resized.

    Sizes are 28, 64, 128, 224 (2D) and 28, 64 (3D); beyond the largest, the largest is read and enlarged.
    """
    sizes = (28, 64) if dataset.endswith("3d") else (28, 64, 128, 224)
    if resolution == "resized":
        return 28
    return next((native for native in sizes if native >= size), sizes[-1])


def file_name(dataset: str, native: int) -> str:
    """Return MedMNIST's own file name for a dataset at one native size."""
    return f"{dataset}.npz" if native == 28 else f"{dataset}_{native}.npz"


def located(dataset: str, native: int) -> Path:
    """Return where the file of a dataset is: where all output goes, or in the checkout; where it is not, where it would go."""
    places = [folder / file_name(dataset, native) for folder in (paths.MEDMNIST, paths.FETCHED)]
    return next((path for path in places if path.is_file()), places[0])


def _expected(dataset: str, native: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of one image and the number of labels that a split must have."""
    stated = facts(dataset)
    colour = (3,) if stated.channels == 3 and stated.spatial == 2 else ()
    return (native,) * stated.spatial + colour, stated.classes if stated.multi_label else 1


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn whatever a damaged file raises while it is read into an InputError that names it."""
    return refused(f"{path} is damaged or truncated (", "); remove it and fetch it again")


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype | None]:
    """Return shape and dtype of an array of an npz, or ((), None) where it has none; ValueError for one that is cut short."""
    if f"{name}.npy" not in archive.namelist():
        return (), None
    listed = archive.getinfo(f"{name}.npy")
    with archive.open(listed) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"{name} is in a format of .npy that MedMNIST does not use")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype.hasobject:
            raise InputError(f"{archive.filename}: {name} holds Python objects, not numbers; they are never loaded")
        if listed.file_size != member.tell() + math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} states shape {shape}, for which it is too short or too long")
    return shape, dtype


def check_file(path: Path, dataset: str, native: int) -> dict[str, int]:
    """Check that an npz has MedMNIST's layout, shapes, dtypes and labels in range; return the number of samples a split.

    Raises InputError naming the file and what is wrong with it, and where it does not fit into memory.
    """
    published(dataset, native)
    if not path.is_file():
        raise InputError(f"{path} is missing; get it with: python -m lib data fetch {dataset} --size {native}")
    with reading(path), zipfile.ZipFile(path) as archive:
        headers = {split: (_header(archive, f"{split}_images"), _header(archive, f"{split}_labels")) for split in SPLITS}
    (shape, width), stated = _expected(dataset, native), facts(dataset)
    for split, ((images, dtype), (labels, label_dtype)) in headers.items():
        if not images or images[1:] != shape or dtype != np.uint8 or labels != (images[0], width) or images[0] == 0 \
                or label_dtype.kind not in "iu":
            raise InputError(f"{path}: {split} has images {images} {dtype} and labels {labels} {label_dtype}; {dataset} at "
                             f"{native} needs images (n, {choices(shape)}) uint8 and labels (n, {width}) of whole numbers")
    images_bytes, free = sum(math.prod(images) for (images, _), _ in headers.values()), psutil.virtual_memory().available
    if images_bytes > free:  # however small it is on disk
        raise InputError(f"{path} holds {images_bytes / 1e9:,.1f} GB of images; {free / 1e9:,.1f} GB of memory are free")
    most = 1 if stated.multi_label else stated.classes - 1
    with reading(path), np.load(path) as arrays:
        for split in SPLITS:  # with a label that is no class a loss fails in the middle of an epoch
            labels = arrays[f"{split}_labels"]
            wrong = ((labels < 0) | (labels > most)).any(axis=1)
            if wrong.any():
                row = int(wrong.argmax())
                raise InputError(f"{path}: label {row} of {split} is {labels[row].tolist()}; {dataset} has 0 to {most}")
    return {split: images[0] for split, ((images, _), _) in headers.items()}


def is_official(path: Path, dataset: str, native: int) -> bool:
    """Return whether the file's MD5 is the one that MedMNIST published for it."""
    state = path.stat()
    return _md5(path, state.st_size, state.st_mtime_ns) == published(dataset, native)[1]


@cache
def _md5(path: Path, size: int, changed_ns: int) -> str:  # noqa: ARG001 - another file of that name is read again
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def fetch(dataset: str, native: int) -> Path:
    """Download one MedMNIST file with progress and check its MD5; a file that is there is kept.

    Raises InputError with the reason when it cannot be had, or when what is there is another file.
    """
    from torchvision.datasets.utils import download_url

    url, md5 = published(dataset, native)
    path = located(dataset, native)
    files.folder(path.parent)
    if path.exists() and not is_official(path, dataset, native):
        raise InputError(f"{path} is there already and is {UNOFFICIAL}; move it away, then fetch again")
    if not path.exists():
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as scratch:
                download_url(url, scratch, path.name, md5)
                os.replace(Path(scratch) / path.name, path)
        except (OSError, RuntimeError) as error:
            raise InputError(f"cannot fetch {path.name} from {url}: {error}; put the file there by hand: {path}") from None
    check_file(path, dataset, native)
    return path


# ------------------------------------------------------------------------------------------------ synthetic files

def _synthetic_split(dataset: str, native: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw images whose texture depends on the label, so that a network can learn them, and their labels.

    How many is bounded in bytes, and equal to the real size modulo 64.
    """
    stated, (shape, width), number = facts(dataset), _expected(dataset, native), SPLITS.index(split)
    real, most = stated.samples[number], min(max(1, _SYNTHETIC_MB * 10**6 // math.prod(shape) // _PERIOD), 32) * _PERIOD
    count = min(real, most + real % _PERIOD)
    draw = np.random.default_rng([_SYNTHETIC_VERSION, native, *dataset.encode(), number])
    labels = draw.integers(0, 2 if width > 1 else stated.classes, (count, width))
    images = draw.integers(0, 96, (count, *shape), dtype=np.uint8)
    rows = np.arange(native)
    for row, label in enumerate(labels):
        wave = sum((np.sin(2 * np.pi * (kind + 1) * rows / native) for kind in np.flatnonzero(label)), np.zeros(native)) \
            if width > 1 else np.sin(2 * np.pi * (label[0] + 1) * rows / native)
        wave = (80 + 60 * wave / max(1.0, np.abs(wave).max())).astype(np.uint8)
        images[row] += wave.reshape(native, *[1] * (len(shape) - 1))
    return images, labels.astype(np.uint8)


def synthesise(dataset: str, native: int) -> Path:
    """Write a synthetic file of the same layout, shapes, dtypes and classes as the real one, once; return its path."""
    path = paths.SYNTHETIC / file_name(dataset, native)
    if path.is_file():
        return path
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = _synthetic_split(dataset, native, split)
    content = io.BytesIO()
    np.savez(content, **arrays)
    files.replace(path, content.getvalue())
    store.write_meta(path, "synthetic", version=_SYNTHETIC_VERSION, dataset=dataset, size=native)
    return path
