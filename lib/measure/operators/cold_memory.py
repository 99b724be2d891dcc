"""Memory cut into tensors one after another, each last used long ago: an input that no cache holds.

Writing a buffer as large as the caches before each call would disturb far more than the caches.
"""

from collections import deque
from collections.abc import Sequence
from time import perf_counter, perf_counter_ns

import torch

from lib.measure import machine
from lib.measure.networks import allocator
from lib.work.graph import rebuild
from lib.work.graph.ops import Op, TensorSpec

TURNS = 3.0  # times the last cache
FEW_FAULTS = 8
_ALIGNED = 16  # elements: pieces begin on a cache line
_AWAKE = 1 << 16
_WARM_UP, _PATIENCE = 2, 4


class Rings:
    """One ring of memory for each filling and element type, each TURNS times the last cache."""

    def __init__(self, device: torch.device):
        levels = machine.levels(device, torch.get_num_threads())
        self.bytes = TURNS * float(levels.get("L3", max(levels.values(), default=2**25)))
        self._device, self._rings, self._places = device, {}, {}

    def cut(self, spec: TensorSpec, fill: str) -> torch.Tensor | None:
        """Return the next piece; None if it is no float, empty, or over half the ring."""
        if not spec.dtype.startswith(("float", "bfloat")) or not spec.elements:
            return None
        key = (fill, spec.dtype)
        if key not in self._rings:
            elements = int(self.bytes) // getattr(torch, spec.dtype).itemsize
            whole = TensorSpec((elements,), (1,), spec.dtype)
            self._rings[key], self._places[key] = rebuild.make(whole, self._device, fill), 0
        memory, begin, length = self._rings[key], self._places[key], rebuild.span(spec)
        if length > len(memory) // 2:
            return None
        if begin + length > len(memory):
            begin = 0
        self._places[key] = begin + -(-length // _ALIGNED) * _ALIGNED
        return memory[begin:begin + length].as_strided(spec.shape, spec.stride, begin)


class ColdCalls:
    """Runs operators on tensors that were last used long ago."""

    def __init__(self, ops: Sequence[Op], device: torch.device, rings: Rings):
        self._ops, self._device, self._rings = ops, device, rings
        self._tensors: dict[int, torch.Tensor] = {}
        made = sum(spec.bytes for op in ops for spec in op.outputs)
        most = max(1, int(rings.bytes / made)) if made > _AWAKE else 512
        self._outputs: deque = deque(maxlen=most)
        self._awake = torch.zeros(_AWAKE, device=device)

    def _make(self, spec: TensorSpec, device: torch.device, fill: str, high: int) -> torch.Tensor:
        piece = self._rings.cut(spec, fill)
        if piece is None:
            if id(spec) not in self._tensors:
                self._tensors[id(spec)] = rebuild.make(spec, device, fill, high)
            piece = self._tensors[id(spec)]
        return piece

    def one(self) -> tuple[float, bool]:
        """Return the time of the operators, in ms, and whether the process grew meanwhile."""
        given = [(op.overload, *rebuild.arguments(op, self._device, self._make)) for op in self._ops]
        self._awake.add_(1.0)  # the other threads are awake too, as in a network
        faults = allocator.page_faults()
        begin = perf_counter_ns()
        output = [function(*positional, **named) for function, positional, named in given]
        taken_ms = (perf_counter_ns() - begin) / 1e6
        grew = allocator.page_faults() - faults > FEW_FAULTS
        self._outputs.append(output)
        return taken_ms, grew

    def samples(self, seconds: float, least: int) -> list[float]:
        """Time calls one by one, in ms; calls for which the process grew count only if most did."""
        samples, grown = [], []
        for _ in range(_WARM_UP):
            self.one()
        end = perf_counter() + seconds
        while len(samples) + len(grown) // _PATIENCE < least or perf_counter() < end:
            taken_ms, grew = self.one()
            (grown if grew else samples).append(taken_ms)
        return samples if len(samples) >= least else samples + grown
