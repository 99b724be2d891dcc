"""MedMNIST, folders of images and synthetic stand-ins, as PyTorch datasets of (image tensor, label array)."""

import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import paths, store
from lib.config.definitions import Workload
from lib.errors import InputError, choices

SPLITS = ("train", "val", "test")
_PERIOD = 64  # a synthetic split keeps its real size modulo this, so the odd last batch of every 2^k batch up to 64 is kept
_SYNTHETIC_MB = 64
_SYNTHETIC_VERSION = 1


@dataclass(frozen=True)
class Facts:
    """What a dataset decides: input channels, classes (or labels), spatial dimensions and the kind of its labels."""

    channels: int
    classes: int
    spatial: int
    multi_label: bool
    samples: tuple[int, int, int]


@dataclass(frozen=True)
class Opened:
    """A dataset ready to load: where its images come from (for every row), and what a reader must know (for the banner)."""

    splits: dict[str, torch.utils.data.Dataset]
    data_source: str
    note: str


def info() -> dict[str, dict]:
    """Return medmnist's own table of its datasets, by flag."""
    from medmnist import INFO

    return INFO


def facts(workload: Workload) -> Facts:
    """Return the facts of a workload's dataset; InputError lists the datasets when there is none of that name."""
    if workload.dataset == "imagefolder":
        folder = _image_folder(workload, "train")
        sizes = tuple(len(_image_folder(workload, split)) for split in SPLITS)
        return Facts(3, len(folder.classes), 2, False, sizes)
    table = info()
    if workload.dataset not in table:
        raise InputError(f"{workload.id}: no dataset {workload.dataset!r}; there are: imagefolder, {choices(table)}")
    entry = table[workload.dataset]
    return Facts(entry["n_channels"], len(entry["label"]), 3 if workload.dataset.endswith("3d") else 2,
                 entry["task"].startswith("multi-label"), tuple(entry["n_samples"][split] for split in SPLITS))


def _image_folder(workload: Workload, split: str, transform: Callable | None = None):
    from torchvision.datasets import ImageFolder

    folder = (paths.ROOT / workload.folder / split) if workload.folder else None
    if folder is None or not folder.is_dir():
        raise InputError(f"{workload.id}: imagefolder needs 'folder:' with {choices(SPLITS)} inside; "
                         f"{folder or 'it is empty'} is no folder")
    try:
        return ImageFolder(str(folder), transform=transform, target_transform=lambda label: np.array([label]))
    except FileNotFoundError as error:
        raise InputError(f"{workload.id}: {error}") from None


# ------------------------------------------------------------------------------------------------- MedMNIST files

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
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    sizes = {}
    for split in SPLITS:
        shape, width = _expected(dataset, native, split)
        (images, dtype), (labels, _) = (headers.get(f"{split}_{part}", ((), None)) for part in ("images", "labels"))
        if not images or images[1:] != shape or dtype != np.uint8 or labels != (images[0], width) or images[0] == 0:
            raise InputError(f"{path}: {split} has images {images} {dtype} and labels {labels}; "
                             f"{dataset} at {native} needs images (n, {choices(shape)}) uint8 and labels (n, {width})")
        sizes[split] = images[0]
    return sizes


_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError)


def _damaged(path: Path, error: Exception) -> InputError:
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


# ------------------------------------------------------------------------------------------------------- opening

class _Prepare:
    """Turn what a MedMNIST item holds into a normalised float tensor of the workload's size (mean 0.5, std 0.5)."""

    def __init__(self, spatial: int, size: int, augment: bool):
        self.spatial, self.size, self.augment = spatial, size, augment

    def __call__(self, image) -> torch.Tensor:
        tensor = torch.from_numpy(image).float() if self.spatial == 3 else _picture(image)
        if tensor.shape[-1] != self.size or tensor.shape[-2] != self.size:
            mode = "trilinear" if self.spatial == 3 else "bilinear"
            sides = (self.size,) * self.spatial
            tensor = torch.nn.functional.interpolate(tensor[None], sides, mode=mode, align_corners=False,
                                                     antialias=self.spatial == 2)[0]
        if self.augment:
            tensor = _augment(tensor)
        return tensor.sub_(0.5).div_(0.5)


def _picture(image) -> torch.Tensor:
    array = np.array(image, dtype=np.uint8)
    array = array[:, :, None] if array.ndim == 2 else array
    return torch.from_numpy(array).permute(2, 0, 1).contiguous().float().div_(255)


def _augment(tensor: torch.Tensor) -> torch.Tensor:
    """Flip left to right half of the time and shift by up to 1/16 of the size along each axis, padding with the edge."""
    if torch.rand(()) < 0.5:
        tensor = tensor.flip(-1)
    reach = max(1, tensor.shape[-1] // 16)
    for axis in range(1, tensor.ndim):
        shift = int(torch.randint(-reach, reach + 1, ()))
        index = torch.arange(tensor.shape[axis]).add_(shift).clamp_(0, tensor.shape[axis] - 1)
        tensor = tensor.index_select(axis, index)
    return tensor.contiguous()


def _medmnist_source(workload: Workload, native: int, data_source: str) -> tuple[Path, str, str]:
    """Choose the folder that is read: (folder, data_source of the rows, note for the banner)."""
    name = file_name(workload.dataset, native)
    if data_source == "medmnist":
        path = paths.MEDMNIST / name
        if not path.is_file():
            fetch(workload.dataset, native)
        return paths.MEDMNIST, "medmnist", f"Real MedMNIST images: {name}."
    if data_source == "auto" and (paths.MEDMNIST / name).is_file():
        return paths.MEDMNIST, "medmnist", f"Real MedMNIST images: {name}."
    synthesise(workload.dataset, native)
    return paths.SYNTHETIC, "synthetic", (
        f"SYNTHETIC images: {name} is not in {paths.MEDMNIST.name}/, so stand-ins of the same shapes and classes are used. "
        "Times are real, losses and accuracies say nothing about medicine. "
        f"Real ones: python -m lib data fetch {workload.dataset} --size {native}")


def open_splits(workload: Workload, data_source: str, resolution: str, augment: bool = False) -> Opened:
    """Open train, val and test of a workload.

    ``data_source``: medmnist (downloads what is missing, or refuses), synthetic, imagefolder, or auto, which never
    downloads. Augmentation touches the training split alone. Each item is (float tensor, integer label array).
    Raises InputError for a missing, damaged or wrongly shaped file.
    """
    if (workload.dataset == "imagefolder") != (data_source == "imagefolder") and data_source != "auto":
        raise InputError(f"{workload.id} reads {workload.dataset!r}; data_source={data_source!r} does not fit it (use auto)")
    if workload.dataset == "imagefolder":
        return Opened({split: _image_folder(workload, split, _FolderPrepare(workload.size, augment and split == "train"))
                       for split in SPLITS}, "imagefolder", f"Images from {workload.folder}.")
    import medmnist

    native = native_size(workload.dataset, workload.size, resolution)
    folder, source, note = _medmnist_source(workload, native, data_source)
    check_file(folder / file_name(workload.dataset, native), workload.dataset, native)
    real_class = getattr(medmnist, info()[workload.dataset]["python_class"])
    spatial = 3 if workload.dataset.endswith("3d") else 2
    if native != workload.size:
        note += f" Resized from {native} to {workload.size} while loading."
    try:
        splits = {split: real_class(split=split, root=str(folder), size=native,
                                    transform=_Prepare(spatial, workload.size, augment and split == "train"))
                  for split in SPLITS}
    except _DAMAGE as error:
        raise _damaged(folder / file_name(workload.dataset, native), error) from None
    return Opened(splits, source, note)


class _FolderPrepare(_Prepare):
    """Crop a picture of any shape to its central square, then as for MedMNIST."""

    def __init__(self, size: int, augment: bool):
        super().__init__(2, size, augment)

    def __call__(self, image) -> torch.Tensor:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return super().__call__(image.convert("RGB").crop((left, top, left + side, top + side)))


def length(dataset) -> int:
    """Return the number of samples that are really there (MedMNIST's own ``len`` insists on the published number)."""
    return len(dataset.imgs)


def bounded(dataset, batches: int, batch_size: int, seed: int) -> torch.utils.data.Subset:
    """Return ``batches`` full batches drawn without replacement, plus the odd last batch if the whole set has one.

    ``batches`` 0, or more than there are, keeps the whole set.
    """
    total = length(dataset)
    wanted = batches * batch_size + total % batch_size
    if not batches or wanted >= total:
        return torch.utils.data.Subset(dataset, range(total))
    chosen = np.random.default_rng(seed).permutation(total)[:wanted]
    return torch.utils.data.Subset(dataset, chosen.tolist())
