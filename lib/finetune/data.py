"""The data of a run: splits, names of classes, a cap of samples per class, and loaders."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lib import files
from lib.config.definitions import Workload
from lib.errors import InputError, beginning, choices
from lib.finetune.config import Classes, TrainConfig
from lib.finetune.transforms import Inputs, Prepare
from lib.work import datasets, medmnist_files, pictures


@dataclass(frozen=True)
class Data:
    """The splits of a run, test where there is one; ``indices`` are the samples below the cap."""

    splits: dict[str, torch.utils.data.Dataset]
    indices: dict[str, list[int]]
    labels: Classes
    data_source: str
    note: str


def _workload(config: TrainConfig, size: int) -> Workload:
    return Workload(id="finetune", dataset=config.medmnist, size=max(8, size),
                    model=config.model_flavour, batch_size=config.batch_size)


def names_and_facts(config: TrainConfig) -> tuple[Classes, datasets.Facts]:
    """Return the dataset's names of its classes, and its facts; InputError where it is missing."""
    if config.medmnist:
        table = medmnist_files.info()[config.medmnist]["label"]
        names = tuple(table[str(index)] for index in range(len(table)))
        return names, datasets.facts(_workload(config, 8))
    with beginning(f"root {config.root!r} names a folder, not medmnist:NAME or synthetic:NAME"):
        classes = pictures.classes(config.image_folder)
        pictures.classes(config.image_folder, "val")
    return classes, datasets.Facts(3, len(classes), 2, False)


def open_data(config: TrainConfig, inputs: Inputs, names: Classes) -> Data:
    """Open all splits for a model; an item is a tensor and its label array.

    Raises InputError for what is missing, damaged, or does not fit the labels of the config.
    """
    labels, order = _labels(config, names)
    prepare = {split: Prepare(inputs, config.cpu_color_jitter and split == "train")
               for split in medmnist_files.SPLITS}
    if config.medmnist:
        workload = _workload(config, inputs.size)
        opened = datasets.open_splits(workload, config.root.partition(":")[0], "native")
        splits, source, note = opened.splits, opened.data_source, opened.note
        if datasets.facts(workload).spatial == 2:
            for split, samples in splits.items():
                samples.transform = prepare[split]
        elif config.cpu_color_jitter or config.gpu_batch_aug:
            raise InputError("cpu_color_jitter and gpu_batch_aug change pictures, but "
                             f"{config.root} holds volumes; set both to false")
    else:
        splits = pictures.splits(config.image_folder, prepare)
        source, note = "imagefolder", f"Images from {config.root}."
    indices = {}
    for split, samples in splits.items():
        if samples.labels.shape[1] > 1:
            samples.labels = samples.labels[:, np.argsort(order)]
        else:
            samples.labels = np.take(order, samples.labels)
        indices[split] = list(range(len(samples.labels)))
        if split in config.capped_splits:
            indices[split] = capped(samples.labels, len(labels), config.max_datapoints_per_class,
                                    config.seed)
    return Data(splits, indices, labels, source, note)


def _labels(config: TrainConfig, names: Classes) -> tuple[Classes, list[int]]:
    """Return the classes in the config's order, and the index there of each class of the data."""
    wanted, fields = config.labels or names, "class_labels, label2id or id2label"
    if len(wanted) != len(names):
        raise InputError(f"{fields} name {len(wanted)} classes, but {config.root} has "
                         f"{len(names)}: {choices(names)}")
    shared, others = set(wanted) & set(names), sorted(set(names) - set(wanted))
    if shared and others:
        raise InputError(f"{fields} name some classes of {config.root} "
                         f"({choices(sorted(shared))}), but others than {choices(others)}; name "
                         "them as they are, or all of them anew")
    return wanted, [wanted.index(name) if shared else index for index, name in enumerate(names)]


def capped(labels: np.ndarray, classes: int, most: int | tuple[int, ...], seed: int) -> list[int]:
    """Return the samples, in order, of which no class has more than ``most``, one number or several.

    ``labels`` are (N, 1) classes, or (N, L) of 0 and 1, where a sample counts while each of its
    labels is below its cap. Samples are visited in an order drawn from ``seed``. Raises InputError
    for another number of caps than of classes.
    """
    caps = np.full(classes, most) if isinstance(most, int) else np.array(most)
    if len(caps) != classes:
        raise InputError(f"max_datapoints_per_class has {len(caps)} numbers, but there are "
                         f"{classes} classes")
    truth = labels > 0 if labels.shape[1] > 1 else labels == np.arange(classes)
    if (truth.sum(0) <= caps).all():
        return list(range(len(labels)))
    chosen, left = [], caps.copy()
    for index in np.random.default_rng(seed).permutation(len(labels)):
        if (left[truth[index]] > 0).all():
            left -= truth[index]
            chosen.append(int(index))
    return sorted(chosen)


def loader(config: TrainConfig, samples: torch.utils.data.Dataset, train: bool,
           pinned: bool) -> torch.utils.data.DataLoader:
    """Return the loader of a split, shuffled for training; a GPU copies ``pinned`` memory faster.

    A training batch of one sample is left out, since batch norms need two. On Linux workers are
    forks, as is usual, also in a process that was itself started in another way.
    """
    workers = {}
    if config.num_workers:
        files.shorten_sockets()
        workers = {"multiprocessing_context": "fork" if sys.platform == "linux" else None,
                   "prefetch_factor": config.prefetch_factor,
                   "persistent_workers": config.persistent_workers,
                   # they draw no seed from torch's generator, whose state a resumed run restores
                   "generator": torch.Generator() if config.persistent_workers else None}
    single = train and len(samples) > 1 and len(samples) % config.batch_size == 1
    return torch.utils.data.DataLoader(samples, config.batch_size, shuffle=train, drop_last=single,
                                       num_workers=config.num_workers, pin_memory=pinned, **workers)


class Prefetched:
    """A loader whose next batch is copied, on a stream of its own, while a GPU computes on this one.

    The computing stream waits for the copy of its batch, and the allocator reuses the batch's
    memory only after the computing stream has finished with it.
    """

    def __init__(self, loader: Iterable, device: torch.device):
        self._loader, self._device = loader, device
        self._copies = torch.cuda.Stream(device)

    def __len__(self) -> int:
        return len(self._loader)

    def _copied(self, batch: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.cuda.stream(self._copies):
            return tuple(part.to(self._device, non_blocking=True) for part in batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        copies = map(self._copied, self._loader)
        following = next(copies, None)
        while following is not None:
            consumer = torch.cuda.current_stream(self._device)
            consumer.wait_stream(self._copies)
            batch = following
            for part in batch:
                part.record_stream(consumer)
            following = next(copies, None)
            yield batch
