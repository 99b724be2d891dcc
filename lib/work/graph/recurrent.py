"""Recurrent layers (nn.RNN, nn.LSTM, nn.GRU) on CUDA: torch calls cuDNN once for all layers, directions and steps.

Source: aten/src/ATen/native/cudnn/RNN.cpp of torch. Limits: cuDNN is assumed for every element type,
although torch computes bfloat16 without it before Ampere; and the memory that cuDNN reserves in
training for the backward pass counts as nothing, since its size is known on a GPU alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lib.work.graph.ops import Op

CUDNN = ("_cudnn_rnn", "_cudnn_rnn_backward")
MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # in the order of cuDNN's numbers
_MODE, _MODE_BACKWARD = 6, 10  # the first argument that the forward and the backward pass share
_WANTED = 21  # which gradients the backward pass computes: of the input, both states, the weights


class RecurrentSizes(NamedTuple):
    """Sizes of a call of cuDNN: ``tokens`` are the steps of all sequences together."""

    mode: str
    input_size: int
    hidden_size: int
    layers: int
    directions: int
    steps: int
    batch: int
    tokens: int


def sizes(op: Op) -> RecurrentSizes:
    """Return the sizes of a captured ``_cudnn_rnn`` or ``_cudnn_rnn_backward``."""
    first = _MODE_BACKWARD if op.is_backward else _MODE
    mode, hidden_size, _, layers, batch_first, _, _, bidirectional, batch_sizes = \
        op.args[first:first + 9]
    shape = op.args[0].shape
    if batch_sizes:  # packed sequences: how many sequences have a first step, a second, ...
        steps, batch, tokens = len(batch_sizes), batch_sizes[0], shape[0]
    else:
        batch, steps = shape[:2] if batch_first else (shape[1], shape[0])
        tokens = steps * batch
    directions = 2 if bidirectional else 1
    return RecurrentSizes(MODES[mode], shape[-1], hidden_size, layers, directions, steps, batch,
                          tokens)


def computes_weight_gradients(op: Op) -> bool:
    """Return whether a call of cuDNN is a backward pass that computes gradients of weights."""
    return op.is_backward and op.args[_WANTED][3]


def cudnn_layers(mode: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return what replaces ``torch._VF.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.

    torch hands the weights over twice: one by one, and as the buffer in which they lie. Here the
    buffer is empty, so that the weights count once.
    """
    def run(data: torch.Tensor, *given: Any) -> tuple[torch.Tensor, ...]:
        is_packed = not isinstance(given[2], bool)
        if is_packed:
            batch_sizes, state, weights, has_biases, layers, dropout, train, bidirectional = given
            batch_sizes, batch_first = batch_sizes.tolist(), False
        else:
            state, weights, has_biases, layers, dropout, train, bidirectional, batch_first = given
            batch_sizes = []
        hidden, cell = state if mode == "lstm" else (state, None)
        hidden_size, projection = hidden.shape[2], 0
        if cell is not None and cell.shape[2] != hidden_size:
            hidden_size, projection = cell.shape[2], hidden_size
        tensors_per_layer = (4 if has_biases else 2) + (1 if projection else 0)
        output, last_hidden, last_cell, _, _ = torch.ops.aten._cudnn_rnn(
            data, weights, tensors_per_layer, data.new_empty(0), hidden, cell, MODES.index(mode),
            hidden_size, projection, layers, batch_first, dropout, train, bidirectional,
            batch_sizes, None)
        return (output, last_hidden, last_cell) if mode == "lstm" else (output, last_hidden)
    return run


def _gradients(data, weights, stride, buffer, hidden, cell, output, *others):  # noqa: PLR0913 - torch's
    """Return gradients of the right shapes: torch has no shape rule for the backward pass."""
    wanted = others[-1]
    gradients = [torch.empty_like(tensor) if wants and tensor is not None else None
                 for tensor, wants in zip((data, hidden, cell), wanted, strict=False)]
    return *gradients, [torch.empty_like(weight) for weight in weights] if wanted[3] else []


_shape_rules = torch.library.Library("aten", "IMPL")
_shape_rules.impl("_cudnn_rnn_backward", _gradients, "Meta")


def prepare(op: Op, made: list[Any]) -> None:
    """Complete the arguments of a call that is run: the weights' buffer, and results of the forward.

    Dropout is left out: its state belongs to torch's random numbers.
    """
    first = _MODE_BACKWARD if op.is_backward else _MODE
    mode, hidden_size, projection, layers, batch_first = made[first:first + 5]
    made[first + 5] = 0.0
    made[3] = torch.ops.aten._cudnn_rnn_flatten_weight(
        made[1], made[2], made[0].shape[-1], mode, hidden_size, projection, layers, batch_first,
        bool(made[first + 7]))
    if op.is_backward:
        output, _, _, reserve, _ = torch.ops.aten._cudnn_rnn(*made[:6], *made[first:first + 10])
        made[6], made[_WANTED - 1] = output, reserve
