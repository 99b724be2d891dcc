"""What the heap does for repeated work: retaining freed memory, and how old the memory of an operator's outputs is."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from lib.measure.networks import allocator
from lib.work.graph import counts
from lib.work.graph.ops import Graph

_PAGE = 1 << 16
_TRIM, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
_TRIM_BYTES, _MMAPS = 64 * 2**20, 65536  # where glibc's moving threshold ends once large blocks were freed; its default
_PASSES = 5


@contextmanager
def retained() -> Iterator[None]:
    """Have glibc's heap retain what is freed: no first-touch page faults once as much was in use before; then trim it."""
    libc = ctypes.CDLL("libc.so.6") if allocator.known() else None
    if libc:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM, 2**31 - 1)
    try:
        yield
    finally:
        if libc:
            libc.mallopt(_MMAP_MAX, _MMAPS)
            libc.mallopt(_TRIM, _TRIM_BYTES)
            libc.malloc_trim(0)


def reuse_distances(graph: Graph) -> list[float]:
    """Return for each operator how many bytes the graph touched since the memory of its outputs was last touched.

    By repeating the graph's allocations, without its work, in memory that is kept. 0 for what makes no storage, and where
    the allocator is not known.
    """
    distances = [0.0] * len(graph.ops)
    if not allocator.known():
        return distances
    clock, touched = 0.0, {}
    with retained():
        for _ in range(_PASSES):
            held: dict[int, torch.Tensor] = {}
            for number, (op, new, dead) in enumerate(zip(graph.ops, graph.made, graph.freed, strict=True)):
                held |= {storage: torch.empty(size, dtype=torch.uint8) for storage, size in new.items()}
                pages = {storage: _pages(held[storage]) for storage in new}
                seen = [clock - touched.get(page, -np.inf) for found in pages.values() for page in found]
                distances[number] = float(np.median(seen)) if seen else 0.0
                if op.short not in counts.VIEWS:
                    used = {spec.storage: spec.bytes for spec in (*op.tensors, *op.outputs)}
                    clock += sum(used.values())
                    touched |= {page: clock for storage in used if storage in held for page in _pages(held[storage])}
                for storage in dead:
                    held.pop(storage, None)
    return distances


def _pages(tensor: torch.Tensor) -> range:
    """Return the numbers of the pages (larger than the system's: only a median is wanted) that a tensor lies in."""
    begin = tensor.data_ptr()
    return range(begin // _PAGE, (begin + tensor.numel()) // _PAGE + 1)
