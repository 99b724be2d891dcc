"""MedMNIST, folders of images and stand-ins, as datasets of (image tensor, label array)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import paths
from lib.config.definitions import Workload
from lib.errors import InputError, beginning, choices
from lib.work import medmnist_files, pictures, synthetic
from lib.work.medmnist_files import SPLITS, Facts


@dataclass(frozen=True)
class Opened:
    """A dataset ready to load: its splits, the ``data_source`` of its rows, a note for readers."""

    splits: dict[str, torch.utils.data.Dataset]
    data_source: str
    note: str


def facts(workload: Workload) -> Facts:
    """Return the facts of a workload's dataset; InputError lists the datasets for a wrong name."""
    if workload.dataset == "imagefolder":
        with beginning(workload.id):
            return Facts(3, len(pictures.classes(_folder(workload))), 2, False)
    if workload.dataset not in (table := medmnist_files.info()):
        raise InputError(f"{workload.id}: no dataset {workload.dataset!r}; there are: imagefolder, "
                         f"{choices(table)}")
    return medmnist_files.facts(workload.dataset)


def _folder(workload: Workload) -> Path:
    """Return a workload's folder of pictures."""
    if not workload.folder:
        raise InputError("imagefolder needs 'folder:', a folder with train/, val/, perhaps test/")
    return paths.ROOT / Path(workload.folder).expanduser()


class _Prepare:
    """Makes a float tensor of the workload's size (mean 0.5, std 0.5) from an image or volume.

    Of an image the central square is taken. ``random_crop`` takes a random part instead and flips
    half of the images, as torchvision's ImageNet example does.
    """

    def __init__(self, spatial: int, size: int, augment: bool = False, random_crop: bool = False):
        from torchvision import transforms

        self.spatial, self.size, self.augment = spatial, size, augment
        self.crop = pictures.central_square
        if random_crop:
            self.crop = transforms.Compose([transforms.RandomResizedCrop(size),
                                            transforms.RandomHorizontalFlip()])

    def __call__(self, image) -> torch.Tensor:
        if self.spatial == 3:
            tensor = torch.from_numpy(image).float()
        else:
            array = np.atleast_3d(np.array(self.crop(image), dtype=np.uint8))
            tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous().float().div_(255)
        if tensor.shape[-2:] != (self.size, self.size):
            mode = "trilinear" if self.spatial == 3 else "bilinear"
            tensor = torch.nn.functional.interpolate(
                tensor[None], self.size, mode=mode, align_corners=False,
                antialias=self.spatial == 2)[0]
        if self.augment:
            tensor = _augment(tensor)
        return tensor.sub_(0.5).div_(0.5)


def _augment(tensor: torch.Tensor) -> torch.Tensor:
    """Flip left to right half of the time, and shift along each axis by up to 1/16 of the size."""
    if torch.rand(()) < 0.5:
        tensor = tensor.flip(-1)
    reach = max(1, tensor.shape[-1] // 16)
    for axis in range(1, tensor.ndim):
        shift = int(torch.randint(-reach, reach + 1, ()))
        index = torch.arange(tensor.shape[axis]).add_(shift).clamp_(0, tensor.shape[axis] - 1)
        tensor = tensor.index_select(axis, index)
    return tensor.contiguous()


def open_splits(workload: Workload, data_source: str, resolution: str, augment: bool = False,
                random_crop: bool = False) -> Opened:
    """Open train, val and test of a workload; a folder of images may have no test.

    Args:
        workload: its dataset, size and folder count.
        data_source: medmnist (downloads a missing file), synthetic, imagefolder, or auto, which
            never downloads.
        resolution: native or resized, see ``medmnist_files.native_size``.
        augment: flip and shift the training split.
        random_crop: crop and flip pictures of the training split; volumes cannot be cropped.

    Raises InputError for a missing, damaged or wrongly shaped file.
    """
    is_folder = workload.dataset == "imagefolder"
    if is_folder != (data_source == "imagefolder") and data_source != "auto":
        raise InputError(f"{workload.id} reads {workload.dataset!r}; data_source={data_source!r} "
                         "does not fit it (use auto)")
    spatial = 2 if is_folder else facts(workload).spatial
    if random_crop and spatial == 3:
        raise InputError(f"{workload.id}: random_crop is of pictures, and {workload.dataset} holds "
                         "volumes; set random_crop to false; augment changes volumes")
    transforms = dict.fromkeys(SPLITS, _Prepare(spatial, workload.size))
    transforms["train"] = _Prepare(spatial, workload.size, augment, random_crop)
    if is_folder:
        with beginning(workload.id):
            splits = pictures.splits(_folder(workload), transforms)
        return Opened(splits, "imagefolder", f"Images from {workload.folder}.")
    native = medmnist_files.native_size(workload.dataset, workload.size, resolution)
    path, source, note = _medmnist_source(workload.dataset, native, data_source)
    if native != workload.size:
        note += f" Resized from {native} to {workload.size} while loading."
    splits = medmnist_files.load_splits(path, workload.dataset, native, transforms)
    return Opened(splits, source, note)


def _medmnist_source(dataset: str, native: int, data_source: str) -> tuple[Path, str, str]:
    """Return the file that is read, the ``data_source`` of its rows, and a note for readers."""
    path = medmnist_files.located(dataset, native)
    if data_source == "medmnist" and not path.is_file():
        path = medmnist_files.fetch(dataset, native)
    if data_source == "synthetic" or not path.is_file():
        return synthetic.write_stand_in(dataset, native), "synthetic", (
            f"SYNTHETIC images: {path.name} is not in {paths.MEDMNIST.name}/, so stand-ins of the "
            "same shapes and classes are used. Times are real, losses and accuracies say nothing "
            f"about medicine. Real ones: python -m lib data fetch {dataset} --size {native}")
    medmnist_files.check_md5(path, dataset, native)
    return path, "medmnist", f"Real MedMNIST images: {path.name}."


def length(dataset) -> int:
    """Return the number of samples; MedMNIST's own ``len`` insists on the published number."""
    return len(dataset.imgs)


def bounded(dataset, batches: int, batch_size: int, seed: int) -> torch.utils.data.Subset:
    """Return ``batches`` full batches drawn at random, and the odd last batch if there is one.

    ``batches`` 0, or more than there are, gives the whole set.
    """
    total = length(dataset)
    wanted = batches * batch_size + total % batch_size
    if not batches or wanted >= total:
        return torch.utils.data.Subset(dataset, range(total))
    chosen = np.random.default_rng(seed).permutation(total)[:wanted]
    return torch.utils.data.Subset(dataset, chosen.tolist())
