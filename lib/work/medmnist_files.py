"""MedMNIST's files: the published ones, fetched and checked, and synthetic stand-ins of the same layout."""

import hashlib
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from lib import paths, store
from lib.errors import InputError, choices

SPLITS = ("train", "val", "test")
_PERIOD = 64  # a synthetic split keeps its real size modulo this, so the odd last batch of every 2^k batch up to 64 is kept
_SYNTHETIC_MB = 64
_SYNTHETIC_VERSION = 1


def info() -> dict[str, dict]:
    """Return medmnist's own table of its datasets, by flag."""
    from medmnist import INFO

    return INFO


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


def _expected(dataset: str, native: int, split: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of one image and the number of labels that a split must have."""
    entry = info()[dataset]
    spatial = 3 if dataset.endswith("3d") else 2
    colour = (3,) if entry["n_channels"] == 3 and spatial == 2 else ()
    labels = len(entry["label"]) if entry["task"].startswith("multi-label") else 1
    return ((native,) * spatial + colour, labels)


def _headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return shape and dtype of every array of an npz, without reading the arrays."""
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                headers[name.removesuffix(".npy")] = (shape, dtype)
    return headers


def check_file(path: Path, dataset: str, native: int) -> dict[str, int]:
    """Check that an npz has MedMNIST's layout, shapes and dtypes; return the number of samples a split.

    Raises InputError naming the file and what is wrong with it.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing; get it with: python -m lib data fetch {dataset} --size {native}")
    try:
        headers = _headers(path)
    except DAMAGE as error:
        raise damaged(path, error) from None
    sizes = {}
    for split in SPLITS:
        shape, width = _expected(dataset, native, split)
        (images, dtype), (labels, _) = (headers.get(f"{split}_{part}", ((), None)) for part in ("images", "labels"))
        if not images or images[1:] != shape or dtype != np.uint8 or labels != (images[0], width) or images[0] == 0:
            raise InputError(f"{path}: {split} has images {images} {dtype} and labels {labels}; "
                             f"{dataset} at {native} needs images (n, {choices(shape)}) uint8 and labels (n, {width})")
        sizes[split] = images[0]
    return sizes


DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError)


def damaged(path: Path, error: Exception) -> InputError:
    """Return the error that says that a file cannot be read."""
    return InputError(f"{path} is damaged or truncated ({error}); remove it and fetch it again")


def is_official(path: Path, dataset: str, native: int) -> bool:
    """Return whether the file's MD5 is the one that MedMNIST published for it."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    return digest == info()[dataset]["MD5" if native == 28 else f"MD5_{native}"]


def fetch(dataset: str, native: int, folder: Path | None = None) -> Path:
    """Download one MedMNIST file with progress and check its MD5; a good file that is there is kept.

    Raises InputError with the reason when it cannot be had.
    """
    from torchvision.datasets.utils import download_url

    if dataset not in info():
        raise InputError(f"no MedMNIST dataset {dataset!r}; there are: {choices(info())}")
    key = "" if native == 28 else f"_{native}"
    entry = info()[dataset]
    if f"url{key}" not in entry:
        sizes = [28, *(name.removeprefix("url_") for name in entry if name.startswith("url_"))]
        raise InputError(f"{dataset} has no size {native}; there are: {choices(sizes)}")
    folder = folder or paths.MEDMNIST
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(dataset, native)
    try:
        download_url(entry[f"url{key}"], str(folder), path.name, entry[f"MD5{key}"])
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot fetch {path.name} from {entry[f'url{key}']}: {error}; "
                         f"put the file there by hand: {path}") from None
    check_file(path, dataset, native)
    return path


# ------------------------------------------------------------------------------------------------ synthetic files

def _capped(real: int, image_bytes: int) -> int:
    """Return how many samples a synthetic split has: bounded in bytes, equal to the real size modulo 64."""
    most = max(_PERIOD, _SYNTHETIC_MB * 10**6 // image_bytes // _PERIOD * _PERIOD)
    most = min(most, 32 * _PERIOD)
    return min(real, most + real % _PERIOD)


def _synthetic_split(dataset: str, native: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw images whose texture depends on the label, so that a network can learn them, and their labels."""
    entry = info()[dataset]
    shape, width = _expected(dataset, native, split)
    count = _capped(entry["n_samples"][split], int(np.prod(shape)))
    draw = np.random.default_rng([_SYNTHETIC_VERSION, native, *dataset.encode(), SPLITS.index(split)])
    classes = len(entry["label"])
    labels = draw.integers(0, 2, (count, width)) if width > 1 else draw.integers(0, classes, (count, 1))
    images = draw.integers(0, 96, (count, *shape), dtype=np.uint8)
    rows = np.arange(native)
    for row, label in enumerate(labels):
        wave = sum((np.sin(2 * np.pi * (kind + 1) * rows / native) for kind in np.flatnonzero(label)), np.zeros(native)) \
            if width > 1 else np.sin(2 * np.pi * (label[0] + 1) * rows / native)
        wave = (80 + 60 * wave / max(1.0, np.abs(wave).max())).astype(np.uint8)
        images[row] += wave.reshape(native, *[1] * (len(shape) - 1))
    return images, labels.astype(np.uint8)


def synthesise(dataset: str, native: int, folder: Path | None = None) -> Path:
    """Write a synthetic file of the same layout, shapes, dtypes and classes as the real one, once; return its path."""
    folder = folder or paths.SYNTHETIC
    path = folder / file_name(dataset, native)
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = _synthetic_split(dataset, native, split)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot write the synthetic data ({error.strerror or error})") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    store.write_meta(path, "synthetic", version=_SYNTHETIC_VERSION, dataset=dataset, size=native)
    return path
