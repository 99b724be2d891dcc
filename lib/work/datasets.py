"""MedMNIST, folders of images and synthetic stand-ins, as PyTorch datasets of (image tensor, label array)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import paths
from lib.config.definitions import Workload
from lib.errors import InputError, beginning, choices
from lib.work import medmnist_files, pictures
from lib.work.medmnist_files import Facts


@dataclass(frozen=True)
class Opened:
    """A dataset ready to load: where its images come from (for every row), and what a reader must know (for the note)."""

    splits: dict[str, torch.utils.data.Dataset]
    data_source: str
    note: str


def facts(workload: Workload) -> Facts:
    """Return the facts of a workload's dataset; InputError lists the datasets when there is none of that name."""
    if workload.dataset == "imagefolder":
        found = _pictures(workload, {})
        sizes = tuple(len(found.get(split, ())) for split in medmnist_files.SPLITS)
        return Facts(3, len(found["train"].classes), 2, False, sizes)
    if workload.dataset not in (table := medmnist_files.info()):
        raise InputError(f"{workload.id}: no dataset {workload.dataset!r}; there are: imagefolder, {choices(table)}")
    return medmnist_files.facts(workload.dataset)


def _pictures(workload: Workload, transforms: dict[str, Callable]) -> dict[str, pictures.Pictures]:
    """Return the splits of a workload's folder of pictures."""
    if not workload.folder:
        raise InputError(f"{workload.id}: imagefolder needs 'folder:', a folder with train/ and val/, perhaps test/")
    with beginning(workload.id):
        return pictures.splits(paths.ROOT / Path(workload.folder).expanduser(), transforms)


class _Prepare:
    """Turn a picture's central square, or a volume, into a float tensor of the workload's size (mean 0.5, std 0.5).

    ``random_crop`` takes a random part instead and flips half of the pictures, as torchvision's ImageNet example does.
    """

    def __init__(self, spatial: int, size: int, augment: bool, random_crop: bool = False):
        self.spatial, self.size, self.augment, self.crop = spatial, size, augment, None
        if random_crop:
            from torchvision import transforms

            self.crop = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])

    def __call__(self, image) -> torch.Tensor:
        if self.spatial == 3:
            tensor = torch.from_numpy(image).float()
        else:
            image = self.crop(image) if self.crop else pictures.central_square(image)
            array = np.atleast_3d(np.array(image, dtype=np.uint8))
            tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous().float().div_(255)
        if tensor.shape[-2:] != (self.size, self.size):
            mode = "trilinear" if self.spatial == 3 else "bilinear"
            tensor = torch.nn.functional.interpolate(tensor[None], self.size, mode=mode, align_corners=False,
                                                     antialias=self.spatial == 2)[0]
        if self.augment:
            tensor = _augment(tensor)
        return tensor.sub_(0.5).div_(0.5)


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
    """Choose the file that is read: (file, data_source of the rows, note for the note)."""
    path = medmnist_files.located(workload.dataset, native)
    fetch = f"python -m lib data fetch {workload.dataset} --size {native}"
    if data_source == "medmnist" and not path.is_file():
        path = medmnist_files.fetch(workload.dataset, native)
    if data_source != "synthetic" and path.is_file():
        if medmnist_files.is_official(path, workload.dataset, native):
            return path, "medmnist", f"Real MedMNIST images: {path.name}."
        if data_source == "medmnist":
            raise InputError(f"{path} is {medmnist_files.UNOFFICIAL}; use data_source=auto, which marks its rows, or move it "
                             f"away and get the published one: {fetch}")
        return path, "unofficial", (f"UNOFFICIAL images: {path.name} is {medmnist_files.UNOFFICIAL}. Times are real, "
                                    "losses and accuracies are not those of MedMNIST.")
    return medmnist_files.synthesise(workload.dataset, native), "synthetic", (
        f"SYNTHETIC images: {path.name} is not in {paths.MEDMNIST.name}/, so stand-ins of the same shapes and classes are "
        "used. Times are real, losses and accuracies say nothing about medicine. "
        f"Real ones: {fetch}")


def open_splits(workload: Workload, data_source: str, resolution: str, augment: bool = False,
                random_crop: bool = False) -> Opened:
    """Open train, val and test of a workload; a folder of images may have no test.

    ``data_source``: medmnist (downloads what is missing, or refuses), synthetic, imagefolder, or auto, which never
    downloads. Augmentation and random crops (of pictures, not of volumes) touch the training split alone. Each item is (float
    tensor, integer label array).
    Raises InputError for a missing, damaged or wrongly shaped file.
    """
    if (workload.dataset == "imagefolder") != (data_source == "imagefolder") and data_source != "auto":
        raise InputError(f"{workload.id} reads {workload.dataset!r}; data_source={data_source!r} does not fit it (use auto)")
    changes = {split: (augment and split == "train", random_crop and split == "train") for split in medmnist_files.SPLITS}
    if workload.dataset == "imagefolder":
        transforms = {split: _Prepare(2, workload.size, *changes[split]) for split in medmnist_files.SPLITS}
        return Opened(_pictures(workload, transforms), "imagefolder", f"Images from {workload.folder}.")
    import medmnist

    native = medmnist_files.native_size(workload.dataset, workload.size, resolution)
    path, source, note = _medmnist_source(workload, native, data_source)
    medmnist_files.check_file(path, workload.dataset, native)
    real_class = getattr(medmnist, medmnist_files.info()[workload.dataset]["python_class"])
    spatial = medmnist_files.facts(workload.dataset).spatial
    if random_crop and spatial == 3:
        raise InputError(f"{workload.id}: random_crop is of pictures, and {workload.dataset} holds volumes; set "
                         "random_crop to false; augment changes volumes")
    if native != workload.size:
        note += f" Resized from {native} to {workload.size} while loading."
    with medmnist_files.reading(path):
        splits = {split: real_class(split=split, root=str(path.parent), size=native,
                                    transform=_Prepare(spatial, workload.size, *changes[split]))
                  for split in medmnist_files.SPLITS}
    return Opened(splits, source, note)


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
