"""Is a network the sum of its operators? Operators timed in isolation, in the state that the graph says they find.

Three states are told apart. warm: the same buffers again and again. cold: every input in memory that was last used long
ago, and the output in other memory each time. found: every input where the graph says it is, by how many bytes were touched
since it was last used, and the output in memory used as long ago as the order of the graph's allocations makes it. The
process keeps what it frees: page faults are a matter of their own (lib.measure.networks.allocator).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from benchmarks import heap
from lib.measure import machine
from lib.measure.networks import allocator
from lib.measure.networks.case import Case, program
from lib.measure.operators.cold_memory import FEW_FAULTS, Rings, clocked_ms
from lib.measure.reference_kernel import SLOW, USUAL, ReferenceKernel
from lib.work import networks
from lib.work.graph import capture, counts, families, ops, rebuild
from lib.work.graph.ops import Graph, Op

STATES = ("warm", "cold", "found")
_WARMUP, _CALLS, _TRIES = 2, 3, 12
_CHAIN = 200
_LABEL_S = 0.4  # of passes of a network a round
_LEVELS = ("near", "far", "memory")


@dataclass
class _Samples:
    """Times in ms, each with what the yardstick took at that moment."""

    ms: list[float] = field(default_factory=list)
    yardstick_ms: list[float] = field(default_factory=list)

    def quartiles(self, usual_ms: float) -> tuple[float, float, float]:
        """Return the three quartiles in ms of what was taken while the processor was as fast as usual, or of all."""
        taken = np.array(self.ms)
        usual = taken[np.array(self.yardstick_ms) <= usual_ms]
        return tuple(np.percentile(usual if len(usual) else taken, (25, 50, 75)))

    def median_ms(self, usual_ms: float) -> float:
        """Return the median in ms of what was taken while the processor was as fast as usual, or of all."""
        return float(self.quartiles(usual_ms)[1])


@dataclass
class _Signature:
    """One distinct operator with the state of its inputs and outputs, and its samples by state of the caches."""

    op: Op
    places: tuple[str, ...]
    output_place: str
    samples: dict[str, _Samples] = field(default_factory=lambda: {state: _Samples() for state in STATES})


def places(graph: Graph, near_bytes: float, far_bytes: float) -> list[tuple[str, ...]]:
    """Return for each operator where each of its tensors lies: near (inner caches), far (last cache), or memory.

    Judged by the bytes that the graph touched since the tensor's storage was last used; a pass follows its like, so what
    was not used before in this pass (weights, above all) was last used one whole pass ago.
    """
    touched = [sum({spec.storage: spec.bytes for spec in (*op.tensors, *op.outputs)}.values())
               if op.short not in counts.VIEWS else 0 for op in graph.ops]
    total, clock, last, found = sum(touched), 0, {}, []
    for op in graph.ops:
        for spec in (*op.tensors, *op.outputs):
            last[spec.storage] = 0
    ends = np.cumsum(touched)
    for op, end in zip(graph.ops, ends, strict=True):
        for spec in (*op.tensors, *op.outputs):
            last[spec.storage] = float(end)
    last = {storage: end - total for storage, end in last.items()}
    for op, bytes_touched in zip(graph.ops, touched, strict=True):
        distances = [clock - last[spec.storage] + spec.bytes for spec in op.tensors]
        found.append(tuple(_level(distance, near_bytes, far_bytes) for distance in distances))
        clock += bytes_touched
        if bytes_touched:
            last |= {spec.storage: clock for spec in (*op.tensors, *op.outputs)}
    return found


def _level(distance: float, near_bytes: float, far_bytes: float) -> str:
    return _LEVELS[0] if distance <= near_bytes else _LEVELS[1] if distance <= far_bytes else _LEVELS[2]


class _Bench:
    """Times one operator after putting its tensors where they belong."""

    def __init__(self, device: torch.device, near_bytes: float):
        self._device, self._rings = device, Rings(device)
        self._awake, self._between = torch.zeros(1 << 16), torch.zeros(int(2 * near_bytes) // 4)
        self._yardstick, self.looks = ReferenceKernel(torch.device("cpu")), []
        self._yardstick.settle()

    def take(self, into: dict[str, _Samples], look: Callable[[], dict[str, list[float]]]) -> None:
        """Wait until the processor is as fast as usual, look, and add the samples with what the yardstick took."""
        before = self._yardstick.wait()
        taken = look()
        yardstick_ms = max(before, self._yardstick.after())
        self.looks.append(yardstick_ms)
        for state, samples in taken.items():
            into[state].ms.extend(samples)
            into[state].yardstick_ms.extend([yardstick_ms] * len(samples))

    def usual_ms(self) -> float:
        """Return what the yardstick takes at most while the processor is as fast as usual, judged by the whole run."""
        return SLOW * float(np.percentile(self.looks, USUAL))

    def visit(self, signature: _Signature) -> None:
        """Sample one operator in every state."""
        self.take(signature.samples, lambda: self._look(signature))

    def _look(self, signature: _Signature) -> dict[str, list[float]]:
        op, held = signature.op, {}
        wanted = {"warm": ["near"] * len(op.tensors), "cold": ["memory"] * len(op.tensors), "found": signature.places}
        keeps = {"warm": False, "cold": True, "found": signature.output_place != "near"}
        return {state: self._sample(op, dict(zip(map(id, op.tensors), wanted[state], strict=False)), held, state != "warm",
                                    keeps[state]) for state in STATES}

    def _sample(self, op: Op, places: dict[int, str], held: dict[int, torch.Tensor], touch: bool,
                keep: bool) -> list[float]:
        """Return _CALLS times in ms of one operator whose tensors lie in ``places`` (by the id of their spec).

        ``keep`` holds on to the outputs, so that the next one gets other memory. Calls for which the process had to grow are
        made again, _TRIES in all at most: a process that has run for long has grown.
        """
        def maker(spec: ops.TensorSpec, device: torch.device, fill: str, high: int) -> torch.Tensor:
            piece = self._rings.cut(spec, fill) if places.get(id(spec)) == "memory" else None
            if piece is None:
                if id(spec) not in held:
                    held[id(spec)] = rebuild.make(spec, device, fill, high)
                piece = held[id(spec)]
            return piece

        samples, outputs, held_bytes = [], [], sum(spec.bytes for spec in op.outputs)
        for number in range(_TRIES):
            positional, named = rebuild.arguments(op, self._device, maker)
            call = _caller(op.overload, positional, named)
            for place in ("far", "near"):
                found = [held[key] for key, where in places.items() if where == place and key in held]
                for tensor in found if touch else ():
                    _touch(tensor)
                if place == "far" and found and touch:
                    self._between.add_(1.0)
                self._awake.add_(1.0)
            faults = allocator.page_faults()
            taken, output = clocked_ms(call)
            faults = allocator.page_faults() - faults
            outputs.append(output if keep and number * held_bytes < self._rings.bytes else None)
            del output
            if number >= _WARMUP and (faults <= FEW_FAULTS or number >= _TRIES - _CALLS):
                samples.append(taken)
            if len(samples) == _CALLS:
                break
        return samples


def _caller(function: Callable, positional: list, named: dict) -> Callable[[], object]:
    return lambda: function(*positional, **named)


def _touch(tensor: torch.Tensor) -> None:
    """Write a tensor over with its own values, as the operator that made it would have written it."""
    if tensor.numel():
        length = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.as_strided((length,), (1,))
        flat.bitwise_not_().bitwise_not_() if tensor.dtype == torch.bool else flat.mul_(1)


def dispatch_overhead_ms(device: torch.device, mode: str) -> float:
    """Return what a module costs beyond its operators: a chain of 200 activations of one element, against the operators.

    In training that is the module's call, the recording of its backward and autograd's way back.
    """
    tiny, layers = torch.zeros(1, device=device), torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(_CHAIN)])
    relu, back, samples = torch.ops.aten.relu.default, torch.ops.aten.threshold_backward.default, []
    training = mode == "train"
    given = tiny.clone().requires_grad_(training)
    for _ in range(50):
        begin = time.perf_counter_ns()
        with torch.set_grad_enabled(training):
            out = layers(given)
            if training:
                out.backward(tiny)
        middle = time.perf_counter_ns()
        with torch.no_grad():
            for _ in range(_CHAIN):
                relu(tiny)
                if training:
                    back(tiny, tiny, 0)
        samples.append(((middle - begin) - (time.perf_counter_ns() - middle)) / _CHAIN / 1e6)
    return max(0.0, float(np.median(samples)))


def _graph(case: Case) -> Graph:
    net = networks.network(case.network, case.batch_size)
    return capture.of_network(net, case.mode)


def compose(cases: Sequence[Case], device: torch.device, rounds: int = 3,
            progress: Callable[[Iterable, str], Iterable] = lambda items, _: items) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure networks and their operators in interleaved rounds; return one row a case and one a distinct operator.

    Cases: ``network, mode, batch_size, network_ms, network_iqr_pct, operators, overhead_ms, usual_share`` (of the passes
    that count, by the yardstick) and for each state ``<state>_ms`` and ``<state>_ratio`` (sum and overhead over network).
    Operators: ``name, family, places, output_place, occurrences, bytes`` and a median by state.
    """
    held = machine.levels(device, torch.get_num_threads())
    near, far = float(held.get("L2", 2**21)), float(held.get("L3", max(held.values(), default=2**25)))
    graphs = {case: _graph(case) for case in cases}
    signatures: dict[tuple, _Signature] = {}
    uses: dict[Case, list[_Signature]] = {}
    for case, graph in graphs.items():
        distances = heap.reuse_distances(graph)
        uses[case] = []
        for op, where, distance in zip(graph.ops, places(graph, near, far), distances, strict=True):
            key = (op, () if op.short in counts.VIEWS else where, _level(distance, near, far))
            uses[case].append(signatures.setdefault(key, _Signature(*key)))
    with heap.retained():
        return _measured(uses, list(signatures.values()), device, _Bench(device, near), rounds, progress)


def _measured(uses: dict[Case, list[_Signature]], signatures: list[_Signature], device: torch.device, bench: _Bench,
              rounds: int, progress: Callable) -> tuple[pd.DataFrame, pd.DataFrame]:
    order, cases = np.random.default_rng(0), list(uses)
    calls = [program(case, device) for case in cases]
    labels: dict[Case, _Samples] = {case: _Samples() for case in cases}
    for _ in progress(range(rounds), "composition"):
        for index in order.permutation(len(cases)):
            _passes(bench, calls[index], labels[cases[index]])
        for index in order.permutation(len(signatures)):
            bench.visit(signatures[index])
    usual_ms = bench.usual_ms()
    overhead_ms = {mode: dispatch_overhead_ms(device, mode) for mode in ops.MODES}
    return _cases(uses, labels, usual_ms, overhead_ms), _operators(uses, signatures, usual_ms)


def _passes(bench: _Bench, call: Callable[[], object], samples: _Samples) -> None:
    """Add the times in ms of whole passes of a network, for about _LABEL_S, each judged by the yardstick for itself."""
    for _ in range(_WARMUP):
        call()
    end = time.perf_counter() + _LABEL_S
    while True:
        bench.take({"whole": samples}, lambda: {"whole": [clocked_ms(call)[0]]})
        if time.perf_counter() > end:
            return


def _cases(uses: dict[Case, list[_Signature]], labels: dict[Case, _Samples], usual_ms: float,
           overhead_ms: dict[str, float]) -> pd.DataFrame:
    rows = []
    for case, used in uses.items():
        low, network_ms, high = labels[case].quartiles(usual_ms)
        modules = sum(signature.op.phase == "forward" for signature in used)
        row = {"network": case.network, "mode": case.mode, "batch_size": case.batch_size, "network_ms": network_ms,
               "network_iqr_pct": (high - low) / network_ms * 100, "operators": len(used),
               "overhead_ms": modules * overhead_ms[case.mode],
               "usual_share": float(np.mean(np.array(labels[case].yardstick_ms) <= usual_ms))}
        for state in STATES:
            row[f"{state}_ms"] = sum(signature.samples[state].median_ms(usual_ms) for signature in used)
            row[f"{state}_ratio"] = (row[f"{state}_ms"] + row["overhead_ms"]) / network_ms
        rows.append(row)
    return pd.DataFrame(rows)


def _operators(uses: dict[Case, list[_Signature]], signatures: list[_Signature], usual_ms: float) -> pd.DataFrame:
    occurrences = Counter(id(signature) for used in uses.values() for signature in used)
    found = []
    for signature in signatures:
        described = families.describe(signature.op)
        found.append({"name": signature.op.name, "family": described[0] if described else "",
                      "places": " ".join(signature.places), "output_place": signature.output_place,
                      "occurrences": occurrences[id(signature)], "bytes": counts.compulsory_bytes(signature.op),
                      **{f"{state}_ms": signature.samples[state].median_ms(usual_ms) for state in STATES}})
    return pd.DataFrame(found)


class _Clock(torch.utils._python_dispatch.TorchDispatchMode):
    """Times every operator of a running network by its family; None is what no family covers."""

    def __init__(self):
        super().__init__()
        self.ms: dict[str | None, float] = {}
        self._family: dict[str, str | None] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begin = time.perf_counter_ns()
        out = func(*args, **(kwargs or {}))
        spent = (time.perf_counter_ns() - begin) / 1e6
        name = str(func)
        if name not in self._family:
            self._family[name] = next((family.name for family in families.families().values()
                                       if name.split(".")[1] in family.covers), None)
        self.ms[self._family[name]] = self.ms.get(self._family[name], 0.0) + spent
        return out


def coverage(case: Case, device: torch.device) -> dict[str, float]:
    """Run a network really and return its operators' time in ms, the share that covered families take, and its whole time.

    Reads of numbers by the host count as uncovered. ``whole_ms`` is a pass without the clock.
    """
    call = program(case, device)
    call()
    begin = time.perf_counter_ns()
    call()
    whole_ms = (time.perf_counter_ns() - begin) / 1e6
    with _Clock() as clock:
        call()
    total = sum(clock.ms.values())
    return {"operators_ms": total, "covered_share": 1 - clock.ms.get(None, 0.0) / total, "whole_ms": whole_ms}
