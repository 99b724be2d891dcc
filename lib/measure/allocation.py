"""Which outputs of a network get memory that the system hands out anew, page by page, and which get memory used before.

A fresh page costs the kernel a fault, up to several microseconds on a virtual machine: for element-wise operators more
than their work. Which outputs are fresh follows from the order of allocations alone, so it is found by repeating that
order without running any operator. Written for glibc's allocator; elsewhere nothing is said to be fresh.
"""

import ctypes
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lib.work import counts
from lib.work.capture import Graph

_PAGE = 4096
_MMAP, _TRIM = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
_MMAP_BYTES, _TRIM_BYTES = 32 * 2**20, 64 * 2**20  # where glibc's moving thresholds end up once large blocks were freed
_PASSES = 3


def _libc():
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None


def known() -> bool:
    """Return whether this system's allocator is the one that this module knows."""
    return _libc() is not None


@contextmanager
def steady() -> Iterator[None]:
    """Fix glibc's thresholds where they end up in a process that has freed large blocks, so that allocations repeat."""
    libc = _libc()
    if libc:
        libc.mallopt(_MMAP, _MMAP_BYTES)
        libc.mallopt(_TRIM, _TRIM_BYTES)
    yield


@contextmanager
def kept() -> Iterator[None]:
    """Keep freed memory in the process, so that the next block of the same size is no fresh one (up to 32 MiB)."""
    libc = _libc()
    if libc:
        libc.mallopt(_TRIM, 2**31 - 1)
    try:
        yield
    finally:
        if libc:
            libc.mallopt(_TRIM, _TRIM_BYTES)


def trim() -> None:
    """Give all freed memory back to the system: the next block is fresh."""
    libc = _libc()
    if libc:
        libc.malloc_trim(0)


def lifetimes(graph: Graph) -> tuple[list[dict[int, int]], list[list[int]]]:
    """Return for each operator the storages it makes, with their bytes, and the storages that nobody needs after it.

    What a backward pass makes and nobody reads are gradients of weights: they live until the step ends.
    """
    made, last, seen = [], {}, {spec.storage for op in graph.ops for spec in op.tensors if spec.kind != "activation"}
    for number, op in enumerate(graph.ops):
        new = {}
        for spec in op.outputs:
            if spec.storage not in seen and (op.short not in counts.VIEWS or "empty" in op.short):
                new[spec.storage] = spec.elements * spec.itemsize
                seen.add(spec.storage)
        made.append(new)
        used = (*op.tensors, *op.outputs) if op.short not in counts.VIEWS else ()
        last |= dict.fromkeys(new, number) | {spec.storage: number for spec in used}
    freed: list[list[int]] = [[] for _ in graph.ops]
    for number, new in enumerate(made):
        for storage in new:
            gradient = graph.ops[number].phase == "backward" and last[storage] == number
            freed[-1 if gradient else last[storage]].append(storage)
    return made, freed


def fresh_shares(graph: Graph) -> list[float]:
    """Return for each operator the share of its new memory, by bytes, that is fresh in a steady run of passes."""
    shares = [0.0] * len(graph.ops)
    if not known():
        return shares
    made, freed = lifetimes(graph)
    with steady():
        for _ in range(_PASSES):
            held: dict[int, torch.Tensor] = {}
            for number, (new, dead) in enumerate(zip(made, freed, strict=True)):
                faults, total = 0, sum(new.values())
                for storage, size in new.items():
                    held[storage] = torch.empty(size, dtype=torch.uint8)
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                    held[storage][::_PAGE] = 1
                    faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
                shares[number] = min(1.0, faults * _PAGE / total) if total > _PAGE else 0.0
                for storage in dead:
                    held.pop(storage, None)
    return shares
