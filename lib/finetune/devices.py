"""The devices of a run: several processes that torchrun starts, and batches copied to a GPU ahead of time."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from lib.measure import machine


@dataclass(frozen=True)
class Processes:
    """The processes of a run, of which this is number ``rank``; a single process is 0 of 1. Only the first process writes."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Return whether this process writes."""
        return self.rank == 0

    def shared(self, value: Any) -> Any:
        """Return the first process's value in all of them; each has to call this."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all processes, in order; each has to call this."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def share_statistics(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first, which are saved; each has to call this."""
        if self.count > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    distributed.broadcast(buffer, src=0)

    def parallel(self, model: nn.Module) -> nn.Module:
        """Return the model as all processes train it: gradients are means over them, and so are norms of a batch on GPUs."""
        device = next(model.parameters()).device
        if device.type == "cuda":
            return nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model), [device])
        return nn.parallel.DistributedDataParallel(model)


ALONE = Processes()


@contextmanager
def processes(wanted: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if it did; give them, and the device of this process.

    Each takes its own GPU, or a share of the CPU. Raises InputError for a device that is not here.
    """
    count = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if count == 1:
        yield ALONE, machine.device(wanted)
        return
    local = int(os.environ["LOCAL_RANK"])
    device = machine.device(wanted)
    device = machine.device(f"cuda:{local}") if device.type == "cuda" else device
    machine.use(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(int(os.environ["RANK"]), count, local), device
    finally:
        distributed.destroy_process_group()


class Prefetched:
    """A loader whose next batch is copied to a GPU while this one is computed on; ``cuda`` is torch's module of that name.

    The copies run on their own stream. The computing stream waits for the copy of its batch, and the batch's memory is bound to
    it: the allocator reuses that memory only after the computing stream has finished with it.
    """

    def __init__(self, loader: Iterable, device: torch.device, cuda: Any = torch.cuda):
        self._loader, self._device, self._cuda = loader, device, cuda
        self._copies = cuda.Stream(device)

    def __len__(self) -> int:
        return len(self._loader)

    def _copied(self, batch: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with self._cuda.stream(self._copies):
            return tuple(part.to(self._device, non_blocking=True) for part in batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        copies = map(self._copied, self._loader)
        following = next(copies, None)
        while following is not None:
            consumer = self._cuda.current_stream(self._device)
            consumer.wait_stream(self._copies)
            batch = following
            for part in batch:
                part.record_stream(consumer)
            following = next(copies, None)
            yield batch
