"""Program that repeats a pass's allocations in glibc's hands and prints how many bytes came fresh from the system.

It runs in a process of its own, without torch, so that nothing else moves in its heap. What comes fresh depends on how the
heap lies, by a factor of several: the passes are repeated from several layouts, with other small blocks between the weights, in
a copy of the process each. Argument: how many copies run at once. Input: ``allocator.Plan`` as JSON; output: a line a layout.
Needs the standard library alone.
"""

import ctypes
import json
import os
import sys
from collections.abc import Iterable

_LAYOUTS, _PASSES = 16, 4  # the last pass counts: the allocator's thresholds have settled by then
_TENSOR_ALIGNMENT, _BLOCK_ALIGNMENT, _PAGE, _HEAD = 64, 16, 4096, 8
_LARGEST_HOLE, _ROOM = 64 * 1024, 64 * 1024
_MAPPED = 2**20  # a block that any process with torch has freed: from then on no smaller one is mapped on its own

Step = tuple[list[int], list[int], list[tuple[int, int]], list[int]]

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = libc.sbrk.restype = ctypes.c_size_t
libc.malloc.argtypes = [ctypes.c_size_t]
libc.sbrk.argtypes = [ctypes.c_ssize_t]
libc.free.argtypes = [ctypes.c_size_t]
libc.posix_memalign.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
_block = ctypes.c_size_t()
_address = ctypes.addressof(_block)


def take(size: int) -> int:
    """Take a block as tensors take theirs; return its address. Raises MemoryError."""
    if libc.posix_memalign(_address, _TENSOR_ALIGNMENT, size):
        raise MemoryError(f"no block of {size:,} bytes")
    return _block.value


def fill_holes() -> None:
    """Take every free block below the heap's top, so that each replay begins alike whatever this process did before."""
    libc.malloc(_LARGEST_HOLE)
    top = libc.malloc(_LARGEST_HOLE)
    sizes = [_LARGEST_HOLE >> n for n in range(7)] + list(range(1040, _BLOCK_ALIGNMENT, -_BLOCK_ALIGNMENT))
    for size in sizes:
        while libc.malloc(size - _HEAD) < top:
            pass


def leave_room() -> None:
    """Take blocks such that the free top of the heap is _ROOM bytes: it ends with a page, so that sets where it begins."""
    end = libc.sbrk(0)
    while libc.sbrk(0) == end:  # until the heap grows: then there is more room than is left at any place
        last = libc.malloc(_LARGEST_HOLE)
    top = last + _LARGEST_HOLE
    libc.malloc(libc.sbrk(0) - top - _ROOM - 2 * _HEAD)


def steps_of(plan: Iterable[list]) -> tuple[list[Step], int]:
    """Return what each operator takes and frees, tensors by number, and how many tensors there are."""
    numbers = {}
    steps = []
    for (early, late), made, freed in zip(*plan, strict=True):
        new = [(numbers.setdefault(name, len(numbers)), size) for name, size in made]
        steps.append((early, late, new, [numbers[name] for name in freed if name in numbers]))
    return steps, len(numbers)


def one_pass(steps: Iterable[Step], tensors: list[int]) -> int:
    """Take and free what a pass does, addresses in ``tensors``; return how many bytes of it came from the system."""
    fresh = 0

    def take_counted(size: int) -> int:
        nonlocal fresh
        end = libc.sbrk(0)
        block = take(size)
        fresh += libc.sbrk(0) - end if block < end + size else size  # beyond the heap: a mapping of its own
        return block

    for early, late, new, dead in steps:
        before_outputs, after_outputs = [take_counted(size) for size in early], [take_counted(size) for size in late]
        for block in before_outputs:
            libc.free(block)
        for number, size in new:
            tensors[number] = take_counted(size)
        for block in after_outputs:
            libc.free(block)
        for number in dead:
            libc.free(tensors[number])
            tensors[number] = 0
    for number, block in enumerate(tensors):
        libc.free(block)
        tensors[number] = 0
    return fresh


def wait_for(child: int) -> None:
    """Wait for a copy of this process; end the program where it failed."""
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"a layout of the heap could not be repeated (status {status}): out of memory?")


def main() -> None:
    """Read a plan and print the fresh bytes of its last pass from each layout."""
    weights, *plan = json.loads(sys.stdin.readline())
    steps, tensors = steps_of(plan)
    addresses = [0] * tensors
    libc.free(libc.malloc(_MAPPED))
    fill_holes()
    running = []
    for n in range(_LAYOUTS):
        if len(running) == int(sys.argv[1]):
            wait_for(running.pop(0))
        running.append(os.fork())
        if not running[-1]:
            leave_room()
            for number, size in enumerate(weights):
                take(size)  # behind it lies another block, up to a page: as if drawn, but always the same
                libc.malloc(16 + (7919 * n + 104729 * number) % (_PAGE - 16))
            for _ in range(_PASSES):
                fresh = one_pass(steps, addresses)
            os.write(1, f"{fresh}\n".encode())
            os._exit(0)
    for child in running:
        wait_for(child)


if __name__ == "__main__":
    main()
