"""The memory that a pass of a network allocates and frees, operator by operator, and how much of it is fresh."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from lib.measure.networks import allocator
from lib.work.graph.ops import Graph, Op, TensorSpec

# glibc maps a block on its own from the mmap threshold on. The threshold grows to the largest mapped block
# that was freed, at most to _MOST_MMAP_THRESHOLD; free memory at the heap's end is returned to the system
# beyond twice the threshold (the trim threshold).
_LEAST_MMAP_THRESHOLD = 2**20  # any process with torch has freed a mapped block of this size
_MOST_MMAP_THRESHOLD = 2**25
_TRIM = 2


def temporaries(op: Op) -> tuple[list[int], list[int]]:
    """Return the bytes of the temporaries of a convolution on the CPU: freed before its outputs are made, and after.

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


@dataclass(frozen=True)
class Plan:
    """The allocations of a pass.

    By operator: bytes of temporaries (freed before the outputs are made, and after), storages and bytes of
    outputs, and storages that die after it.
    """

    beside: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    made: tuple[tuple[tuple[int, int], ...], ...]
    freed: tuple[tuple[int, ...], ...]

    @classmethod
    def from_graph(cls, graph: Graph) -> "Plan":
        """Return the plan of a captured graph."""
        beside = tuple((tuple(early), tuple(late)) for early, late in map(temporaries, graph.ops))
        return cls(beside, tuple(tuple(new.items()) for new in graph.made), graph.freed)

    @property
    def blocks(self) -> Iterator[int]:
        """Give the bytes of every block that a pass takes in turn."""
        for (early, late), new in zip(self.beside, self.made, strict=True):
            yield from (*early, *late, *(size for _, size in new))

    def peak_bytes(self, below: float = inf) -> float:
        """Return the most bytes that blocks of fewer than ``below`` bytes occupy at once."""
        def total(sizes: Iterator[int]) -> int:
            return sum(size for size in sizes if size < below)

        occupied, peak, sizes = 0, 0, {}
        for (early, late), made, dead in zip(self.beside, self.made, self.freed, strict=True):
            sizes |= dict(made)
            new = total(size for _, size in made)
            peak = max(peak, occupied + total(late) + max(total(early), new))
            occupied += new - total(sizes.get(storage, 0) for storage in dead)
        return float(peak)

    def fresh_bytes(self) -> float:
        """Return how many bytes of a pass come fresh from the system, in the default heap of glibc.

        Blocks that are always mapped come fresh each time. The heap of the others is returned to the system
        after a pass if it is larger than the trim threshold. 0 where the allocator is another one.
        """
        if not allocator.is_glibc():
            return 0.0
        mapped = sum(size for size in self.blocks if size >= _MOST_MMAP_THRESHOLD)
        threshold = max((size for size in self.blocks if size < _MOST_MMAP_THRESHOLD), default=0)
        heap = self.peak_bytes(_MOST_MMAP_THRESHOLD)
        is_returned = heap > _TRIM * max(threshold, _LEAST_MMAP_THRESHOLD)
        return mapped + heap * is_returned

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
        return Plan(beside, made, self.freed)
