"""Memory cut into tensors one after another, so that each was last used long ago: an input that no cache holds.

Writing a buffer as large as the caches before each call, the usual way, disturbs far more than the caches.
"""

from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns

import torch

from lib.measure import machine
from lib.measure.networks import allocator
from lib.work.graph import rebuild
from lib.work.graph.ops import Op, TensorSpec

TURNS = 3.0  # times the last cache
FEW_FAULTS = 8
_ALIGNED = 16  # elements: pieces begin on a cache line
_AWAKE = 1 << 16


class _Ring:
    def __init__(self, size_bytes: float, dtype: str, device: torch.device, fill: str):
        elements = int(size_bytes) // getattr(torch, dtype).itemsize
        self._memory, self._at = rebuild.make(TensorSpec((elements,), (1,), dtype), device, fill), 0

    def cut(self, spec: TensorSpec) -> torch.Tensor | None:
        """Return the next piece, or None for one that is larger than half the ring."""
        length = rebuild.span(spec)
        if length > len(self._memory) // 2:
            return None
        begin = self._at if self._at + length <= len(self._memory) else 0
        self._at = begin + -(-length // _ALIGNED) * _ALIGNED
        return self._memory[begin:begin + length].as_strided(spec.shape, spec.stride, begin)


class Rings:
    """One ring for each filling and element type, each TURNS times the last cache."""

    def __init__(self, device: torch.device):
        levels = machine.levels(device, torch.get_num_threads())
        self.bytes = TURNS * float(levels.get("L3", max(levels.values(), default=2**25)))
        self._device, self._rings = device, {}

    def cut(self, spec: TensorSpec, fill: str) -> torch.Tensor | None:
        """Return the next piece as a tensor of ``spec``; None if it is no float, empty, or larger than half the ring."""
        if not spec.dtype.startswith(("float", "bfloat")) or not spec.elements:
            return None
        key = (fill, spec.dtype)
        if key not in self._rings:
            self._rings[key] = _Ring(self.bytes, spec.dtype, self._device, fill)
        return self._rings[key].cut(spec)


class ColdCalls:
    """Runs operators on tensors that were last used long ago, their outputs in other memory each time."""

    def __init__(self, ops: Sequence[Op], device: torch.device, rings: Rings):
        self._ops, self._device, self._rings = ops, device, rings
        self._tensors: dict[int, torch.Tensor] = {}
        self._made = sum(spec.bytes for op in ops for spec in op.outputs)
        self._outputs: deque = deque(maxlen=max(1, int(rings.bytes / max(self._made, 1))) if self._made > _AWAKE else 512)
        self._awake = torch.zeros(_AWAKE, device=device)

    def _make(self, spec: TensorSpec, device: torch.device, fill: str, high: int) -> torch.Tensor:
        piece = self._rings.cut(spec, fill)
        if piece is None:
            if id(spec) not in self._tensors:
                self._tensors[id(spec)] = rebuild.make(spec, device, fill, high)
            piece = self._tensors[id(spec)]
        return piece

    def one(self) -> tuple[float, bool]:
        """Return how long the operators took, in ms, and whether the process had to grow for them meanwhile."""
        given = [(op.overload, *rebuild.arguments(op, self._device, self._make)) for op in self._ops]
        self._awake.add_(1.0)  # the other threads are awake too, as in a network
        faults = allocator.page_faults()
        begin = perf_counter_ns()
        output = [function(*positional, **named) for function, positional, named in given]
        taken_ms = (perf_counter_ns() - begin) / 1e6
        grew = allocator.page_faults() - faults > FEW_FAULTS
        self._outputs.append(output)
        return taken_ms, grew
