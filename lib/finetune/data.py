"""The data of a run: splits, names of classes, a cap of samples per class, batches in an order that can be resumed, loaders."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from lib import files
from lib.config.definitions import Workload
from lib.errors import InputError, beginning, choices
from lib.finetune.config import Classes, TrainConfig
from lib.finetune.transforms import Inputs, Prepare
from lib.work import datasets, medmnist_files, pictures
from lib.work.processes import ALONE, Processes

Key = tuple[int, int]  # epoch and sample: what is random in a sample depends on nothing else


class Samples(torch.utils.data.Dataset):
    """A split of (tensor, label array); a key is (epoch, index), so that augmentation is a function of seed and key."""

    def __init__(self, images: torch.utils.data.Dataset, seed: int, order: Sequence[int] | None):
        self.images, self._seed, self._order = images, seed, order
        self._random = getattr(images.transform, "random", False)

    def __len__(self) -> int:
        return datasets.length(self.images)

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, np.ndarray]:
        epoch, index = key
        with torch.random.fork_rng(devices=(), enabled=self._random):
            if self._random:
                text = f"{self._seed} {epoch} {index}".encode()
                torch.default_generator.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()))
            inputs, label = self.images[index]
        return inputs, self._ordered(np.atleast_1d(label))

    @property
    def labels(self) -> np.ndarray:
        """Return all labels: (N, 1) classes, or (N, L) of 0 and 1."""
        return self._ordered(self.images.labels)

    def _ordered(self, labels: np.ndarray) -> np.ndarray:
        """Return labels (..., 1) as the config numbers the classes, or (..., L) of 0 and 1 in its order."""
        if not self._order:
            return labels
        return labels[..., np.argsort(self._order)] if labels.shape[-1] > 1 else np.take(self._order, labels)


@dataclass(frozen=True)
class Data:
    """The splits of a run, test where there is one; ``indices`` are the samples below the cap."""

    splits: dict[str, Samples]
    indices: dict[str, list[int]]
    labels: Classes
    data_source: str
    note: str


def _workload(config: TrainConfig, size: int) -> Workload:
    """Return the workload of a MedMNIST dataset."""
    return Workload(id="finetune", dataset=config.medmnist, size=max(8, size), model=config.model_flavour,
                    batch_size=config.batch_size)


def names_and_facts(config: TrainConfig) -> tuple[Classes, datasets.Facts]:
    """Return the dataset's own names of its classes, and its facts; InputError where it is missing or no such folder."""
    if config.medmnist:
        table = medmnist_files.info()[config.medmnist]["label"]
        return tuple(table[str(index)] for index in range(len(table))), datasets.facts(_workload(config, 8))
    with beginning(f"root {config.root!r} names a folder, not medmnist:NAME or synthetic:NAME"):
        classes = pictures.classes(config.image_folder)
        pictures.classes(config.image_folder, "val")
    return classes, datasets.Facts(3, len(classes), 2, False, (0, 0, 0))


def open_data(config: TrainConfig, inputs: Inputs, names: Classes) -> Data:
    """Open all splits for a model; InputError for what is missing, damaged, or does not fit the labels of the config."""
    labels, order = _labels(config, names)
    jitter = {split: Prepare(inputs, config.cpu_color_jitter and split == "train") for split in medmnist_files.SPLITS}
    if config.medmnist:
        workload = _workload(config, inputs.size)
        opened = datasets.open_splits(workload, config.root.partition(":")[0], "native")
        images, source, note = opened.splits, opened.data_source, opened.note
        if datasets.facts(workload).spatial == 2:
            for split, of_split in images.items():
                of_split.transform = jitter[split]
        elif config.cpu_color_jitter or config.gpu_batch_aug:
            raise InputError(f"cpu_color_jitter and gpu_batch_aug change pictures, but {config.root} holds volumes; set "
                             "both to false")
    else:
        images, source, note = pictures.splits(config.image_folder, jitter), "imagefolder", f"Images from {config.root}."
    splits = {split: Samples(of_split, config.seed, order) for split, of_split in images.items()}
    indices = {split: capped(samples.labels, len(labels), config.max_datapoints_per_class, config.seed)
               if split in config.capped_splits else list(range(len(samples))) for split, samples in splits.items()}
    return Data(splits, indices, labels, source, note)


def _labels(config: TrainConfig, names: Classes) -> tuple[Classes, list[int] | None]:
    """Return the classes in the config's order, and the new index of each class of the dataset; InputError for other counts."""
    wanted = config.labels or names
    if len(wanted) != len(names):
        raise InputError(f"class_labels, label2id or id2label name {len(wanted)} classes, but {config.root} has {len(names)}: "
                         f"{choices(names)}")
    if (shared := set(wanted) & set(names)) and shared != set(names):
        raise InputError(f"class_labels, label2id or id2label name some classes of {config.root} ({choices(sorted(shared))}), "
                         f"but others than {choices(sorted(set(names) - shared))}; name them as they are, or all of them anew")
    return wanted, [wanted.index(name) for name in names] if shared and wanted != names else None


def capped(labels: np.ndarray, classes: int, most: int | tuple[int, ...], seed: int) -> list[int]:
    """Return the samples, in order, of which no class has more than ``most`` (one number, or one per class).

    ``labels`` (N, 1) are classes, (N, L) labels of 0 and 1; of those a sample counts while each of its labels is below its cap.
    Samples are visited in an order that is a function of the seed. Raises InputError for another number of caps.
    """
    caps = np.full(classes, most) if isinstance(most, int) else np.array(most)
    if len(caps) != classes:
        raise InputError(f"max_datapoints_per_class has {len(caps)} numbers, but there are {classes} classes")
    truth = labels > 0 if labels.shape[1] > 1 else labels == np.arange(classes)
    if (truth.sum(0) <= caps).all():
        return list(range(len(labels)))
    chosen, left = [], caps.copy()
    for index in np.random.default_rng(seed).permutation(len(labels)):
        if (left[truth[index]] > 0).all():
            left -= truth[index]
            chosen.append(int(index))
    return sorted(chosen)


class Batches(torch.utils.data.Sampler):
    """The batches of an epoch, as keys: a function of seed and epoch alone, whatever the number of processes.

    ``seed`` None keeps the order. A process takes its share of each batch; without a share it takes a sample of weight 0.
    ``begin`` sets the epoch, and how many of its batches to skip. A single last sample joins the batch before it, since batch
    norms need two samples.
    """

    def __init__(self, indices: Sequence[int], batch_size: int, accumulate: int = 1, seed: int | None = None,
                 processes: Processes = ALONE):
        self._indices, self._seed, self._rank, self._count = list(indices), seed, processes.rank, processes.count
        total = len(self._indices)
        edges = [*range(0, total, batch_size), total]
        if total % batch_size == 1 and len(edges) > 2:
            del edges[-2]
        self._edges, self._accumulate, self._epoch, self._first = edges, accumulate, 0, 0

    def begin(self, epoch: int, first: int = 0) -> None:
        """Set the epoch and its first batch."""
        self._epoch, self._first = epoch, first

    @property
    def batches(self) -> int:
        """Return the batches of a whole epoch."""
        return len(self._edges) - 1

    def __len__(self) -> int:
        return self.batches - self._first

    def __iter__(self) -> Iterator[list[Key]]:
        order = np.arange(len(self._indices))
        if self._seed is not None:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(len(order))
        for start, end in pairwise(self._edges[self._first:]):
            batch = [(self._epoch, self._indices[place]) for place in order[start:end]]
            yield batch[self._rank::self._count] or batch[:1]

    def share(self, index: int) -> int:
        """Return the number of samples of batch ``index`` in this process; 0 where it has no share."""
        return len(range(self._rank, self._edges[index + 1] - self._edges[index], self._count))

    def weight(self, index: int) -> float:
        """Return the weight of this process's mean loss of batch ``index`` in its optimizer step: samples count the same."""
        start = index // self._accumulate * self._accumulate
        end = min(start + self._accumulate, self.batches)
        return self.share(index) * self._count / (self._edges[end] - self._edges[start])


class Prefetched:
    """A loader whose next batch is copied to a GPU while this one is computed on.

    The copies run on their own stream. The computing stream waits for the copy of its batch, and the batch's memory is bound to
    it: the allocator reuses that memory only after the computing stream has finished with it.
    """

    def __init__(self, loader: Iterable, device: torch.device):
        self._loader, self._device, self._copies = loader, device, torch.cuda.Stream(device)

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


def loader(config: TrainConfig, samples: Samples, batches: Batches, device: torch.device) -> Iterable:
    """Return the loader of a split, its batches on a GPU if that is the device; torch seeds its workers by its own generator.

    On Linux its workers are forks, as is usual, also in a process that was itself started in another way.
    """
    workers = {}
    if config.num_workers:
        files.shorten_sockets()
        workers = {"multiprocessing_context": "fork" if sys.platform == "linux" else None,
                   "prefetch_factor": config.prefetch_factor, "persistent_workers": config.persistent_workers}
    on_gpu = device.type == "cuda"
    batched = torch.utils.data.DataLoader(samples, batch_sampler=batches, num_workers=config.num_workers, pin_memory=on_gpu,
                                          generator=torch.Generator().manual_seed(config.seed), **workers)
    return Prefetched(batched, device) if on_gpu else batched
