"""The devices of a run: several processes that torchrun starts, and batches copied to a GPU ahead of time."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from lib.measure import machine
from lib.work.processes import ALONE, Processes, joined


@contextmanager
def processes(wanted: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if it did; give them, and the device of this process.

    Each takes its own GPU, or a share of the CPU. Raises InputError for a device that is not here.
    """
    device, count = machine.device(wanted), int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if count == 1:
        yield ALONE, device
        return
    local = int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        device = machine.device(f"cuda:{local}")
    machine.use(device)
    with joined(Processes(int(os.environ["RANK"]), count, local), device) as together:
        yield together, device


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
