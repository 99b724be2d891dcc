"""Processes that train one model together: each computes a share of every batch, and all hold the same weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn


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
def joined(processes: Processes, device: torch.device, rendezvous: Path | None = None) -> Iterator[Processes]:
    """Join the other processes; a single one has none to join.

    They meet at the file ``rendezvous``, which must not exist before and lies where all processes see it; without it, where
    torchrun says. An error of torch in one process, such as the death of another one, is raised in all of them.
    """
    if processes.count > 1:
        meeting = {} if rendezvous is None else {
            "init_method": f"file://{rendezvous}", "rank": processes.rank, "world_size": processes.count}
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", **meeting)
    try:
        yield processes
    finally:
        if processes.count > 1:
            distributed.destroy_process_group()
