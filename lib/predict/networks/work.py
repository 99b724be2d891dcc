"""What one pass or step of a network runs: its distinct operators as rows of a ``sweep`` table, and the memory it needs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.predict.networks import allocations, stand_ins
from lib.work import dtypes, networks
from lib.work.graph import capture, counts, families
from lib.work.graph.ops import Graph, Op

_WITH_BACKWARD = "conv2d conv3d attention pool2d pool3d batch_norm layer_norm softmax activation".split()
_MOVING = ("fill", "random", "loss")  # not swept: taken as copies of as many elements
_SHORT = {name: short for short, name in dtypes.NAMES.items()}
_LOW = tuple(map(dtypes.torch_name, dtypes.AUTOCAST))
_TOGETHER = 48  # parameters that one launch of torch's multi-tensor kernels takes: 36 to 110, by how many tensors each has


def key_of(row: Mapping[str, Any]) -> tuple:
    """Return what makes two rows of a ``sweep`` table the same operator: family, pass and parameters."""
    values = (row.get(name) for name in families.families()[row["op"]].parameters)
    return (row["op"], row["pass"], *(value if isinstance(value, str) else float(value)
                                      for value in values if value != "" and pd.notna(value)))


@dataclass(frozen=True)
class Work:
    """What one pass or step of a network runs, memory in bytes.

    ``table`` has a row a distinct operator: ``sweep`` columns (``dtype``: of its first floats), ``calls``, of them
    ``backward_calls``, and ``covered``, whether a family knows it. ``not_modelled`` says what no model is of: operators without
    a family, each with what stands in for it, and products of other element types than the network's; ``uncounted`` whose FLOPs
    are not known. ``input_values`` are the numbers in a batch, ``trained`` the elements of each trained parameter, ``branches``
    the lines of code that went the way of random inputs. ``takes_fresh``: on a CPU, memory comes fresh from the system.
    """

    table: pd.DataFrame
    mode: str
    batch_size: int
    takes_fresh: bool
    weight_bytes: float
    plan: allocations.Plan
    not_modelled: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    input_values: float = 0.0
    trained: tuple[int, ...] = ()
    branches: tuple[str, ...] = ()

    @cached_property
    def keys(self) -> list[tuple]:
        """Give the key of each operator of the table, see ``key_of``."""
        return [key_of(row) for row in self.table.to_dict("records")]

    @property
    def calls(self) -> int:
        """Return how many operators are called."""
        return int(self.table["calls"].sum())

    @property
    def flops(self) -> float:
        """Return the FLOPs of the pass or step."""
        return float(self.flops_and_bytes[:, 0].sum())

    @property
    def bytes(self) -> float:
        """Return its compulsory bytes, operator by operator."""
        return float(self.flops_and_bytes[:, 1].sum())

    @cached_property
    def flops_and_bytes(self) -> np.ndarray:
        """Return FLOPs and bytes of each distinct operator, all its calls together (n, 2)."""
        return self.table[["flops", "bytes"]].to_numpy(float) * self.table[["calls"]].to_numpy(float)

    @cached_property
    def peak_bytes(self) -> float:
        """Give the most bytes that tensors occupy at once beyond weights and inputs.

        Tensors live as long as they are used; convolutions on a CPU take temporaries beside their outputs.
        """
        return self.plan.peak_bytes()

    @cached_property
    def fresh_bytes(self) -> float:
        """Give how many bytes of a pass come fresh from the system, a page fault for each page."""
        return self.plan.fresh_bytes() if self.takes_fresh else 0.0

    @property
    def memory_mb(self) -> float:
        """Return weights, inputs and the most that tensors occupy at once, in 10^6 bytes."""
        return (self.weight_bytes + self.peak_bytes) / 1e6

    def update(self, optimizer: str, together: bool, itemsize: int = 4) -> "Work":
        """Return the work of an optimizer's step on what is trained, which is in 32 bits whatever the passes compute in.

        ``together``: as on a GPU, where one kernel updates many parameters; else a call for each of them. Elements are those of
        ``itemsize`` bytes that take as much memory.
        """
        sizes = np.array(self.trained)
        if together:
            launches = -(-len(sizes) // _TOGETHER)
            sizes = np.full(launches, -(-sizes.sum() // launches))
        rows = [{**row_of(op), "calls": int(calls), "backward_calls": 0}
                for size, calls in zip(*np.unique(sizes * 4 // itemsize, return_counts=True), strict=True)
                for op in capture.optimizer_ops(int(size), optimizer) if counts.is_work(op)]
        return replace(self, table=pd.DataFrame(rows), takes_fresh=False, not_modelled=(), uncounted=())

    @classmethod
    def of(cls, graph: Graph, mode: str, batch_size: int, device_type: str = "cpu") -> "Work":
        """Take the work of a graph, captured as a device type runs it; on a CPU memory comes fresh from the system."""
        work = list(filter(counts.is_work, graph.ops))
        backward, calls = (Counter((op, op.phase == "backward" and "backward" in op.short) for op in some)
                           for some in ((op for op in work if op.phase == "backward"), work))
        table = pd.DataFrame([{**row_of(key[0]), "calls": number, "backward_calls": backward[key]}
                              for key, number in calls.items()])
        inputs = {spec.storage: spec for op in graph.ops for spec in op.tensors if spec.kind == "input"}
        weights = graph.parameter_bytes + graph.buffer_bytes + sum(spec.bytes for spec in inputs.values())
        plan = allocations.Plan.from_graph(graph)
        return cls(table, mode, batch_size, device_type == "cpu", float(weights), plan, _not_modelled(graph),
                   tuple(sorted({op.short for op in work if not counts.is_counted(op)})),
                   float(sum(spec.elements for spec in inputs.values())), graph.trained if mode == "train" else (),
                   graph.branches)


def _not_modelled(graph: Graph) -> tuple[str, ...]:
    """Return the operators that no family covers, and those with matrix products in another element type than the network's.

    That is what autocast computes in, or the type of the input.
    """
    floats = [spec for op in graph.ops for spec in op.tensors if getattr(torch, spec.dtype).is_floating_point]
    of_input = next((spec.dtype for kind in ("input", "parameter") for spec in floats if spec.kind == kind), "")
    dtype = graph.computes_in if graph.computes_in in _LOW else of_input
    words = set()
    for op in dict.fromkeys(filter(counts.is_work, graph.ops)):
        if families.describe(op) is None:
            words.add(stand_ins.words(op))
        elif counts.matrix_flops(op) and op.tensors[0].dtype != dtype:
            words.add(f"{op.short} in {op.tensors[0].dtype}")
    return tuple(sorted(words))


def row_of(op: Op) -> dict[str, Any]:
    """Return one operator as a row of a ``sweep`` table; what no family covers as what stands in for it, uncovered.

    FLOPs that are not known are at least one for each element.
    """
    described = families.describe(op)
    family, params = described or stand_ins.stand_in(op)
    backward = family in _WITH_BACKWARD and "backward" in op.short
    if family in _MOVING:
        family, params = "copy", {"outer": 1, "inner": max(1, params["elements"]), "layout": "contiguous"}
    if family == "copy":
        params = params | {"kind": "clone"}  # the one that is swept; the others copy as it does
    return {"op": family, **params, "dtype": _SHORT.get(op.dtype, op.dtype), "pass": "backward" if backward else "forward",
            "flops": stand_ins.least_flops(op), "bytes": counts.compulsory_bytes(op),
            "covered": described is not None and not counts.is_complex(op)}


def captured(network: networks.Network, mode: str, dtype: str = "float32", channels_last: bool = False,
             device: str = "cpu", ready: nn.Module | None = None, with_autocast: bool = True) -> Work:
    """Return the work of a network on its batch as a device type (cpu, cuda) runs it; InputError says why it has none.

    Of a ``dtype`` of 16 bits as torch.autocast runs it, or the whole network in it without (``with_autocast``).
    ``ready`` is the network where it was prepared for capture before.
    """
    autocast = dtype if dtype in _LOW and with_autocast else ""
    graph = capture.of_network(network, mode, "float32" if autocast else dtype, channels_last, device=device, ready=ready,
                               autocast=autocast)
    return Work.of(graph, mode, network.shape[0], device)
