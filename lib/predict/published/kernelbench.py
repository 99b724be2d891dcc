"""KernelBench's modules as graphs of ATen calls, and their times on boards, in ms.

ScalingIntelligence/KernelBench (MIT): a forward pass in fp32 without gradients, in training mode,
TF32 in cuDNN's convolutions alone. ``operators.parquet`` holds the calls of each module in the order
of ``place``: arguments, shapes of outputs, dtypes of tensors, and which call made each tensor.
Recurrent layers are recorded as the loop over time that the CPU runs. ``recurrent.csv`` has their
sizes, from which they become the one call of cuDNN that the boards run.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from lib import store
from lib.errors import entry
from lib.predict.published.reading import read_csv
from lib.work.graph import capture
from lib.work.graph.ops import Graph, Op, Shape, TensorSpec

LABELS, OPERATORS, RECURRENT = "labels.csv", "operators.parquet", "recurrent.csv"
_COLUMNS = ("module", "level", "name", "place", "operator", "arguments", "outputs", "dtypes", "inputs_from")
_LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
_SIZES = ("input_size", "hidden_size", "num_layers")
_OPTIONS = ("bidirectional", "batch_first", "bias")  # True or False
_TENSOR = "tensor"
# places of weights among the tensors of a call; calls of other operators have none
_WEIGHTS = {"convolution": (1, 2), "addmm": (0, 2), "mm": (1,), "native_batch_norm": (1, 2, 3, 4),
            "native_layer_norm": (1, 2), "native_group_norm": (1, 2)}


@dataclass(frozen=True)
class KernelBenchModule:
    """A module: its level (1 operators, 2 fusions, 3 networks), and what a forward pass runs."""

    level: int
    name: str
    graph: Graph


def labels(folder: Path) -> pd.DataFrame:
    """Return ``module, level, board, device, mode, mean_ms`` of each measured module; mode is eager or compiled."""
    return read_csv(folder / LABELS, ("level",), ("mean_ms",), ("module", "board", "device", "mode"))


def modules(folder: Path) -> dict[str, KernelBenchModule]:
    """Return the modules by name.

    Raises InputError for a table without the columns of calls, or of recurrent layers.
    """
    calls = store.read_parquet(folder / OPERATORS, _COLUMNS, others=True)
    layers = read_csv(folder / RECURRENT, _SIZES, (), ("module", "layer", "module_inputs", *_OPTIONS))
    layers, found = layers.set_index("module"), {}
    for module, part in calls.sort_values(["module", "place"]).groupby("module"):
        ops = _recurrent_ops(part, layers.loc[module]) if module in layers.index else \
            tuple(_ops(part, {}, count()))
        level, name = part[["level", "name"]].iloc[0]
        found[module] = KernelBenchModule(int(level), name, Graph(ops, 0, 0, 0, ()))
    return found


def _recurrent_ops(calls: pd.DataFrame, layer: pd.Series) -> tuple[Op, ...]:
    """Return a module that begins with a recurrent layer: the call of cuDNN, and what follows.

    The CPU's loop, which it replaces, ends as the last states of all layers are stacked.
    """
    (shape,) = json.loads(layer["module_inputs"])
    options = {name: int(layer[name]) for name in _SIZES}
    options |= {name: layer[name] == "True" for name in _OPTIONS}
    where = f"in {RECURRENT} for {layer.name}"
    network = entry(_LAYERS, layer["layer"], "recurrent layer", where)(**options)
    captured = capture.capture(network, shape, device="cuda:0")
    (operator,) = [op for op in captured.ops if op.short == "_cudnn_rnn"]
    is_loop = calls["place"] <= calls.loc[calls["operator"] == "stack", "place"].max()
    made = dict.fromkeys(calls.loc[is_loop, "place"], operator.outputs[0].storage)
    storages = count(1 + max(spec.storage for spec in (*operator.tensors, *operator.outputs)))
    return operator, *_ops(calls[~is_loop], made, storages)


def _ops(calls: pd.DataFrame, made: dict[int, int], storages: Iterator[int]) -> Iterator[Op]:
    """Yield the operators of calls; ``made`` has the storage that each earlier call made."""
    for call in calls.to_dict("records"):
        reader = _Arguments(call, made, storages)
        arguments = reader.value(json.loads(call["arguments"]))
        arguments += _defaults(call["operator"])[len(arguments):]
        outputs = []
        for place, shape in enumerate(json.loads(call["outputs"])):
            in_place = call["operator"].endswith("_") and place == 0 and reader.tensors
            storage = reader.tensors[0].storage if in_place else next(storages)
            outputs.append(_contiguous(tuple(shape), "float32", storage, "activation"))
        if outputs:
            made[call["place"]] = outputs[0].storage
        yield Op(f"aten.{call['operator']}.default", arguments, (), tuple(outputs))


@cache
def _defaults(operator: str) -> tuple:
    """Return the default of each positional argument of an operator: those at it are not recorded."""
    packet = getattr(torch.ops.aten, operator)
    if "default" not in packet.overloads():
        return ()
    arguments = packet.default._schema.arguments
    return tuple(tuple(one.default_value) if isinstance(one.default_value, list) else one.default_value
                 for one in arguments if not one.kwarg_only)


class _Arguments:
    """Reads the arguments of one call; ``tensors`` are those that were read."""

    def __init__(self, call: dict[str, Any], made: dict[int, int], storages: Iterator[int]):
        self.tensors: list[TensorSpec] = []
        self._made, self._storages = made, storages
        self._dtypes, self._sources = json.loads(call["dtypes"]), json.loads(call["inputs_from"])
        self._weights = _WEIGHTS.get(call["operator"], ())

    def value(self, given: Any) -> Any:
        """Return an argument: a tensor for its text, a tuple for a list."""
        if isinstance(given, list):
            return tuple(map(self.value, given))
        if not (isinstance(given, str) and given.startswith(_TENSOR)):
            return given
        place = len(self.tensors)
        storage = self._made.get(self._sources[place])
        kind = "activation"
        if storage is None:
            storage = next(self._storages)
            kind = "parameter" if place in self._weights else "input"
        shape = tuple(json.loads(given.removeprefix(_TENSOR)))
        self.tensors.append(_contiguous(shape, self._dtypes[place], storage, kind))
        return self.tensors[-1]


def _contiguous(shape: Shape, dtype: str, storage: int, kind: str) -> TensorSpec:
    return TensorSpec(shape, torch.empty(shape, device="meta").stride(), dtype, storage, kind)
