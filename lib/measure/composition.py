"""Is a network the sum of its operators? Operators timed in isolation, in the state that the graph says they find.

Three states are told apart. warm: the same buffers again and again. cold: everything written out of the caches before each
call. found: every input put where the graph says it is, by how many bytes were touched since it was last used, and the
output in memory that is fresh from the system or was used before, as the order of the graph's allocations makes it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from lib.measure import allocation, machine
from lib.measure.visit import Flusher
from lib.work import capture, counts, networks, operators, rebuild
from lib.work.capture import Graph, Op

STATES = ("warm", "cold", "found")
_TIMED = (*STATES, "fresh")  # found, with an output in fresh memory
_FRESH = 64 * 1024  # bytes of output below which fresh memory costs nothing to speak of
_CALLS = 2
_LEVELS = ("near", "far", "memory")


@dataclass(frozen=True)
class Case:
    """One network in one mode at one batch size."""

    network: str
    mode: str
    batch_size: int


@dataclass
class _Signature:
    """One distinct operator with the state of its inputs, and its samples in ms by state of the caches."""

    op: Op
    places: tuple[str, ...]
    samples: dict[str, list[float]] = field(default_factory=lambda: {state: [] for state in _TIMED})

    def median_ms(self, state: str, fresh_share: float = 0.0) -> float:
        """Return the median in one state; found, with the share of its output that is fresh."""
        median = float(np.median(self.samples[state]))
        if state != "found" or not fresh_share or not self.samples["fresh"]:
            return median
        return median + fresh_share * max(0.0, float(np.median(self.samples["fresh"])) - median)


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
        found.append(tuple(_LEVELS[0] if distance <= near_bytes else _LEVELS[1] if distance <= far_bytes else _LEVELS[2]
                           for distance in distances))
        clock += bytes_touched
        if bytes_touched:
            last |= {spec.storage: clock for spec in (*op.tensors, *op.outputs)}
    return found


class _Bench:
    """Times one operator after putting its tensors where they belong."""

    def __init__(self, device: torch.device):
        self._device, self._flush = device, Flusher(device)
        self._awake = torch.zeros(1 << 16)

    def sample(self, signature: _Signature, state: str) -> None:
        """Add _CALLS samples of one operator in one state."""
        op = signature.op
        positional, named = rebuild.arguments(op, self._device)
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((positional, named)) if isinstance(leaf, torch.Tensor)]
        call = _caller(op.overload, positional, named)
        call()
        place = dict.fromkeys(_LEVELS, ())
        if state in ("found", "fresh"):
            place = {level: [tensor for tensor, where in zip(tensors, signature.places, strict=False) if where == level]
                     for level in _LEVELS}
        for _ in range(_CALLS):
            if state != "warm":
                self._flush()
            for level in ("far", "near"):
                for tensor in place[level]:
                    _touch(tensor)
            if state == "fresh":
                allocation.trim()
            self._awake.add_(1.0)
            begin = time.perf_counter_ns()
            call()
            signature.samples[state].append((time.perf_counter_ns() - begin) / 1e6)


def _caller(function: Callable, positional: list, named: dict) -> Callable[[], object]:
    return lambda: function(*positional, **named)


def _touch(tensor: torch.Tensor) -> None:
    """Write a tensor over with its own values, as the operator that made it would have written it."""
    if tensor.numel():
        length = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.as_strided((length,), (1,))
        flat.bitwise_not_().bitwise_not_() if tensor.dtype == torch.bool else flat.mul_(1)


def network_call(case: Case, device: torch.device) -> Callable[[], object]:
    """Return one pass (infer) or one forward, loss and backward (train) of a network with random weights."""
    net = networks.network(case.network, case.batch_size)
    model, inputs = net.build().to(device), torch.randn(net.shape, device=device)
    if case.mode == "infer":
        model.eval()

        def forward() -> object:
            with torch.no_grad():
                return model(inputs)
        return forward
    model.train()

    def step() -> None:
        capture.default_loss(capture.first_tensor(model(inputs))).backward()
        model.zero_grad(set_to_none=True)
    return step


def dispatch_overhead_ms(device: torch.device) -> float:
    """Return what a module's call costs beyond its operator: 200 activations of one element, against the operator."""
    tiny, layer = torch.zeros(1, device=device), torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(200)])
    relu, samples = torch.ops.aten.relu.default, []
    with torch.no_grad():
        for _ in range(50):
            begin = time.perf_counter_ns()
            layer(tiny)
            middle = time.perf_counter_ns()
            for _ in range(200):
                relu(tiny)
            samples.append(((middle - begin) - (time.perf_counter_ns() - middle)) / 200 / 1e6)
    return max(0.0, float(np.median(samples)))


def _graph(case: Case) -> Graph:
    net = networks.network(case.network, case.batch_size)
    return capture.capture(capture.build_unfilled(net.build), net.shape, case.mode)


def compose(cases: Sequence[Case], device: torch.device, rounds: int = 3,
            progress: Callable[[Iterable, str], Iterable] = lambda items, _: items) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure networks and their operators in interleaved rounds; return one row a case and one a distinct operator.

    Cases: ``network, mode, batch_size, network_ms, network_iqr_pct, operators, overhead_ms`` and for each state ``<state>_ms``
    and ``<state>_ratio`` (sum over network). Operators: ``name, family, places, occurrences`` and a median by state.
    """
    held = machine.levels(device, torch.get_num_threads())
    near, far = float(held.get("L2", 2**21)), float(held.get("L3", max(held.values(), default=2**25)))
    graphs = {case: _graph(case) for case in cases}
    signatures: dict[tuple, _Signature] = {}
    uses: dict[Case, list[tuple]] = {}
    for case, graph in graphs.items():
        uses[case] = [((op, where if op.short not in counts.VIEWS else ()), fresh) for op, where, fresh in
                      zip(graph.ops, places(graph, near, far), allocation.fresh_shares(graph), strict=True)]
        for key, _ in uses[case]:
            signatures.setdefault(key, _Signature(*key))
    bench, order = _Bench(device), np.random.default_rng(0)
    labels: dict[Case, list[float]] = {case: [] for case in cases}
    for _ in progress(range(rounds), "composition"):
        for index in order.permutation(len(cases)):
            _label(cases[index], device, labels[cases[index]])
        keys = list(signatures)
        for index in order.permutation(len(keys)):
            _visit(bench, signatures[keys[index]])
    overhead = dispatch_overhead_ms(device)
    return _cases(uses, labels, signatures, overhead), _operators(uses, signatures)


def _visit(bench: "_Bench", signature: _Signature) -> None:
    """Sample one operator in every state; fresh memory only where it has an output to speak of."""
    with allocation.kept():
        for state in STATES:
            bench.sample(signature, state)
    if allocation.known() and sum(spec.bytes for spec in signature.op.outputs) > _FRESH:
        bench.sample(signature, "fresh")


def _label(case: Case, device: torch.device, samples: list[float]) -> None:
    """Time a whole network: one pass to warm it, then _CALLS passes."""
    call = network_call(case, device)
    call()
    for _ in range(_CALLS):
        begin = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - begin) / 1e6)


def _cases(uses: dict, labels: dict, signatures: dict, overhead_ms: float) -> pd.DataFrame:
    rows = []
    for case, keys in uses.items():
        low, network_ms, high = np.percentile(labels[case], (25, 50, 75))
        modules = sum(key[0].phase == "forward" for key, _ in keys)
        row = {"network": case.network, "mode": case.mode, "batch_size": case.batch_size, "network_ms": network_ms,
               "network_iqr_pct": (high - low) / network_ms * 100, "operators": len(keys), "overhead_ms": modules * overhead_ms}
        for state in STATES:
            row[f"{state}_ms"] = sum(signatures[key].median_ms(state, fresh) for key, fresh in keys)
            row[f"{state}_ratio"] = (row[f"{state}_ms"] + row["overhead_ms"] * (state == "found")) / network_ms
        rows.append(row)
    return pd.DataFrame(rows)


def _operators(uses: dict, signatures: dict) -> pd.DataFrame:
    found = []
    for key, signature in signatures.items():
        described = operators.describe(signature.op)
        occurrences = sum(used == key for keys in uses.values() for used, _ in keys)
        found.append({"name": signature.op.name, "family": described[0] if described else "",
                      "places": " ".join(signature.places), "occurrences": occurrences,
                      "bytes": counts.compulsory_bytes(signature.op),
                      **{f"{state}_ms": signature.median_ms(state) for state in STATES},
                      "fresh_ms": float(np.median(signature.samples["fresh"])) if signature.samples["fresh"] else np.nan})
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
            self._family[name] = next((family.name for family in operators.families().values()
                                       if name.split(".")[1] in family.covers), None)
        self.ms[self._family[name]] = self.ms.get(self._family[name], 0.0) + spent
        return out


def coverage(case: Case, device: torch.device) -> dict[str, float]:
    """Run a network really and return its operators' time in ms, the share that covered families take, and its whole time.

    Reads of numbers by the host count as uncovered. ``whole_ms`` is a pass without the clock.
    """
    call = network_call(case, device)
    call()
    begin = time.perf_counter_ns()
    call()
    whole_ms = (time.perf_counter_ns() - begin) / 1e6
    with _Clock() as clock:
        call()
    total = sum(clock.ms.values())
    return {"operators_ms": total, "covered_share": 1 - clock.ms.get(None, 0.0) / total, "whole_ms": whole_ms}
