"""MedMNIST by its own package: what it states of its datasets, and where its files are read."""

import importlib.util
import os
import runpy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lib import files, paths
from lib.errors import InputError, choices, entry, one_line, refused

SPLITS = ("train", "val", "test")


@cache
def info() -> dict[str, dict]:
    """Return medmnist's table of its datasets, by flag; importing the package would load torch."""
    package = importlib.util.find_spec("medmnist")
    return runpy.run_path(f"{package.submodule_search_locations[0]}/info.py")["INFO"]


@dataclass(frozen=True)
class Facts:
    """What a dataset decides: channels, classes, dimensions (2 or 3), samples of its splits."""

    channels: int
    classes: int
    spatial: int
    multi_label: bool
    samples: tuple[int, ...] = ()


def facts(dataset: str) -> Facts:
    """Return what MedMNIST states of a dataset."""
    stated = info()[dataset]
    return Facts(stated["n_channels"], len(stated["label"]), 3 if dataset.endswith("3d") else 2,
                 stated["task"].startswith("multi-label"),
                 tuple(stated["n_samples"][split] for split in SPLITS))


def published(dataset: str, size: int) -> tuple[str, str]:
    """Return URL and MD5 of a published file; InputError lists the datasets, or the sizes."""
    stated, key = entry(info(), dataset, "MedMNIST dataset"), "" if size == 28 else f"_{size}"
    if f"url{key}" not in stated:
        sizes = [28, *(name.removeprefix("url_") for name in stated if name.startswith("url_"))]
        raise InputError(f"{dataset} has no size {size}; there are: {choices(sizes)}")
    return stated[f"url{key}"], stated[f"MD5{key}"]


def native_size(dataset: str, size: int, resolution: str) -> int:
    """Return the MedMNIST+ size that is read for ``size``: the next larger one, or the largest.

    ``resolution`` "resized" reads 28 in any case.
    """
    sizes = (28, 64) if dataset.endswith("3d") else (28, 64, 128, 224)
    if resolution == "resized":
        return 28
    return next((native for native in sizes if native >= size), sizes[-1])


def file_name(dataset: str, size: int) -> str:
    """Return MedMNIST's name of a file."""
    return f"{dataset}.npz" if size == 28 else f"{dataset}_{size}.npz"


def located(dataset: str, size: int) -> Path:
    """Return the path of a file, below LIB_OUTPUT or in the checkout; else where it would go."""
    folders = (paths.MEDMNIST, paths.FETCHED)
    places = [folder / file_name(dataset, size) for folder in folders]
    return next((path for path in places if path.is_file()), places[0])


@files.until_changed
def _md5(path: Path) -> str:
    from torchvision.datasets.utils import calculate_md5

    return calculate_md5(path)


def check_md5(path: Path, dataset: str, size: int) -> None:
    """Check a file's MD5; InputError where the file is missing or is not the published one."""
    _, md5 = published(dataset, size)
    command = f"python -m lib data fetch {dataset} --size {size}"
    if not path.is_file():
        raise InputError(f"{path} is missing; get it with: {command}")
    if _md5(path) != md5:
        raise InputError(f"{path} is damaged or not the file that MedMNIST published (its MD5 "
                         f"differs); move it away and get the published one: {command}")


def _dataset_class(dataset: str) -> type:
    import medmnist

    return getattr(medmnist, info()[dataset]["python_class"])


def fetch(dataset: str, size: int) -> Path:
    """Download a file by the medmnist package, which checks its MD5; a file that is there stays.

    Raises InputError where it cannot be downloaded, or where another file has its name.
    """
    url, _ = published(dataset, size)
    path = located(dataset, size)
    if path.exists():
        check_md5(path, dataset, size)
        return path
    files.folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as scratch:
            _dataset_class(dataset)("test", root=scratch, size=size, download=True)
            os.replace(Path(scratch) / path.name, path)
    except (OSError, RuntimeError) as error:
        reason = one_line(error.__context__ or error)  # medmnist hides the reason
        raise InputError(f"cannot fetch {path.name} from {url}: {reason}; put the file there by "
                         f"hand: {path}") from None
    return path


def load_splits(path: Path, dataset: str, size: int,
                transforms: Mapping[str, Callable]) -> dict[str, Any]:
    """Load train, val and test of a checked or synthetic file, as datasets of the package."""
    kind = _dataset_class(dataset)
    with refused(f"{path} is damaged: ", "; remove it"):
        return {split: kind(split, root=str(path.parent), size=size, transform=transforms[split])
                for split in SPLITS}
