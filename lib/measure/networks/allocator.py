"""First-touch page faults of a network's passes: what its tensors take from the system, and heaps that retain what is freed.

The first touch of a page costs the kernel a fault, one to several microseconds on a virtual machine: for large activations
more than the operator's work. A retained heap has no such faults, and times that repeat. Written for glibc's allocator.
"""

import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from lib.errors import InputError
from lib.measure.worker import allowed_cores
from lib.work.graph.ops import Graph, Op, TensorSpec

# what a process is started with so that its heap retains what it frees, and by the names of the column ``memory``
RETAINED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
HEAPS = {"default": {}, "kept": RETAINED}
ALWAYS_MAPPED = 2**25  # bytes from which glibc maps a block on its own, however far its threshold has moved


def is_glibc() -> bool:
    """Return whether this system's allocator is glibc's."""
    return platform.libc_ver()[0] == "glibc"


def trim() -> None:
    """Give the memory that this process freed back to the system."""
    if is_glibc():
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def page_faults() -> int:
    """Return the page faults of this process so far that needed no disk: each is a page that the system handed out."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def temporaries(op: Op) -> tuple[list[int], list[int]]:
    """Return the bytes of what a convolution on the CPU takes beside its outputs: freed before they are made, and after.

    oneDNN works on tensors in blocks of 16 channels, torch's own loop on gathered windows; both take them from torch's
    allocator (seen in the profiler's record of allocations). Empty for other operators.
    """
    if op.short not in ("convolution", "convolution_backward") or len(op.tensors) < 2:
        return [], []
    backward = op.short == "convolution_backward"
    data, weight = (op.args[1], op.args[2]) if backward else op.args[:2]
    output = op.args[0] if backward else op.outputs[0]
    groups = op.args[9] if backward else op.args[8]
    ins, outs = weight.shape[1], weight.shape[0] // max(1, groups)
    if not backward and data.shape[0] == 1 and groups == 1 and data.elements <= 20480 and max(weight.shape[2:]) <= 3:
        return [weight.elements // weight.shape[0] * prod(output.shape[2:]) * weight.itemsize], []
    if groups > 1 and not ins == outs == 1 and (ins % 4 or outs % 4):
        return [weight.bytes], [output.bytes]
    given, made = _blocked(data), _blocked(output)
    if backward:
        return [given, made], [given]
    return ([weight.bytes] if data.shape[1] <= 3 else [given, weight.bytes]), [made]


def _blocked(spec: TensorSpec) -> int:
    return spec.bytes // spec.shape[1] * -(-spec.shape[1] // 16) * 16


_REPLAY = Path(__file__).with_name("heap_replay.py")


@dataclass(frozen=True)
class Plan:
    """What a pass allocates: bytes of the weights, and operator by operator of temporaries, outputs, and what dies after it."""

    weights: tuple[int, ...]
    beside: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    made: tuple[tuple[tuple[int, int], ...], ...]
    freed: tuple[tuple[int, ...], ...]

    @classmethod
    def from_graph(cls, graph: Graph) -> "Plan":
        """Return the plan of a captured graph."""
        weights = {spec.storage: spec.elements * spec.itemsize for op in graph.ops for spec in op.tensors
                   if spec.kind in ("parameter", "buffer")}
        beside = tuple((tuple(early), tuple(late)) for early, late in map(temporaries, graph.ops))
        return cls(tuple(weights.values()), beside, tuple(tuple(new.items()) for new in graph.made), graph.freed)

    @property
    def blocks(self) -> Iterator[int]:
        """Give the bytes of every block that a pass takes in turn."""
        for (early, late), new in zip(self.beside, self.made, strict=True):
            yield from (*early, *late, *(size for _, size in new))

    def towards(self, other: "Plan", share: float) -> "Plan":
        """Return the plan on the line from this one to ``other``, of the same operators at another batch size.

        Raises ValueError when they are not the same operators.
        """
        def interpolated(first: int, second: int) -> int:
            return max(0, round(first + share * (second - first)))

        beside = tuple(tuple(tuple(map(interpolated, first, second)) for first, second in zip(a, b, strict=True))
                       for a, b in zip(self.beside, other.beside, strict=True))
        made = tuple(tuple((name, interpolated(size, again)) for (name, size), (_, again) in zip(a, b, strict=True))
                     for a, b in zip(self.made, other.made, strict=True))
        return Plan(self.weights, beside, made, self.freed)


def fresh_bytes(plan: Plan) -> float:
    """Return how many bytes a pass touches first after the system handed them out: a page fault for each page.

    By repeating its allocations in glibc's hands, with its moving thresholds, in a process without torch: the mean over several
    layouts of the heap, on which it depends. 0 where the allocator is another one; all that it makes where that fits into no
    memory here.
    """
    if not is_glibc():
        return 0.0
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-I", "-S", _REPLAY, str(len(allowed_cores()))],
                          input=json.dumps([*vars(plan).values()]) + "\n", capture_output=True, text=True, check=False,
                          env=environment)
    if done.returncode and any(words in done.stderr for words in ("MemoryError", "out of memory")):
        return float(sum(size for made in plan.made for _, size in made))
    if done.returncode:
        raise InputError(f"a pass's allocations cannot be repeated: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return float(np.mean([float(line) for line in done.stdout.split()]))
