"""Each estimate of complexity beside a second source, with the difference and the part of it that a rule explains.

The sources are torchinfo, torch's FlopCounterMode, and the tensors that a real forward pass saves for its backward pass.
A rule states what a source counts otherwise; ``rest`` is what no rule explains.
"""

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.errors import InputError
from lib.predict.analytic import complexity
from lib.predict.analytic.complexity import Analysis
from lib.progress import track
from lib.work import networks, user_code
from lib.work.building import fakes
from lib.work.graph import capture, counts

Parts = dict[str, int]
COLUMNS = "network batch_size quantity ours source theirs difference explained rest explanation".split()
_COUNTER = "FlopCounterMode"


def _torchinfo_rule(model: nn.Module, analysis: Analysis) -> Parts:
    """Return what torchinfo's multiply-adds hold that are none, and what they leave out.

    It multiplies every weight and bias of a called leaf module by the samples, those of a module named Conv also by the
    output positions: biases and normalisation count as multiply-adds, a linear layer's further positions (tokens) do not,
    and products outside of leaf modules, such as attention's, are not seen. ``model`` lies on the meta device.
    """
    parts, leaves = dict.fromkeys(("biases of convolutions", "biases of linear layers", "scales and shifts of normalisation",
                                   "linear layers at further positions"), 0), set()

    def note(name: str, module: nn.Module, _: Any, output: Any) -> None:
        leaves.add(name)
        output = capture.first_tensor(output)
        weight, bias = (getattr(module, kind, None) for kind in ("weight", "bias"))
        weights, biases = (value.numel() if isinstance(value, nn.Parameter) else 0 for value in (weight, bias))
        samples = output.shape[0]
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            parts["biases of convolutions"] += biases * samples * output[0, 0].numel()
        elif isinstance(module, nn.Linear):
            parts["biases of linear layers"] += biases * samples
            parts["linear layers at further positions"] -= weights * (output.numel() // module.out_features - samples)
        else:
            parts["scales and shifts of normalisation"] += samples * (weights + biases)

    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if not any(module.children()):
                stack.callback(module.register_forward_hook(partial(note, name)).remove)
        placed, named = analysis.network.made("meta")
        model(*placed, **named)
    parts["products outside of leaf modules"] = -sum(
        counts.matrix_flops(op) // 2 for op, layer, phase in analysis.steps if phase == "forward" and layer not in leaves)
    return parts


def _torchinfo(model: nn.Module, analysis: Analysis) -> list[dict[str, Any]]:
    """Compare parameters and multiply-adds with torchinfo, run on the meta device; leaves ``model`` there."""
    import torchinfo

    model = user_code.in_mode(model.to("meta"), False)
    placed, named = analysis.network.made("meta")
    summary = torchinfo.summary(model, input_data=named or placed, device="meta", mode="eval", verbose=0)
    return [_row("parameters", analysis.graph.parameters, "torchinfo", summary.total_params, {}),
            _row("multiply-adds, forward", analysis.macs, "torchinfo", summary.total_mult_adds,
                 _torchinfo_rule(model, analysis))]


def _grouped_rule(analysis: Analysis) -> Parts:
    """Return what FlopCounterMode counts too much: its weight gradient of a grouped convolution ignores the groups."""
    extra = 0
    for op, _, phase in analysis.steps:
        if phase == "backward" and op.short == "convolution_backward" and op.args[10][1]:
            extra += counts.matrix_flops(op) // sum(map(bool, op.args[10][:2])) * (op.args[9] - 1)
    return {"weight gradients of grouped convolutions, as if there were no groups": extra}


def _flop_counter(model: nn.Module, analysis: Analysis) -> list[dict[str, Any]]:
    """Compare the FLOPs of both passes, and with attention of inference too, with FlopCounterMode over fake CPU tensors."""
    with fakes.copying():
        model = copy.deepcopy(model)
    with fakes.active():
        placed, named = analysis.network.made("cpu")
        with FlopCounterMode(display=False) as counter:
            output = capture.first_tensor(user_code.in_mode(model, True)(*placed, **named))
            forward = counter.get_total_flops()
            capture.default_loss(output).backward()
        backward = counter.get_total_flops() - forward
    rows = [_row("FLOPs of products, forward", analysis.matrix_flops("forward"), _COUNTER, forward, {}),
            _row("FLOPs of products, backward", analysis.matrix_flops("backward"), _COUNTER, backward, _grouped_rule(analysis))]
    if any("attention" in op.short for op in analysis.graph.ops):
        with fakes.active(), FlopCounterMode(display=False) as counter, torch.no_grad():
            user_code.in_mode(model, False)(*placed, **named)
        inference = capture.of_network(analysis.network).ops
        fused = sum(counts.matrix_flops(op) for op in inference if op.short == "_native_multi_head_attention")
        rows.append(_row("FLOPs of products, inference", sum(map(counts.matrix_flops, inference)), _COUNTER,
                         counter.get_total_flops(), {"fused attention layers, which it counts as 0": -fused}))
    return rows


def _saved_tensors(_: nn.Module, analysis: Analysis) -> list[dict[str, Any]]:
    """Run one real forward pass on the CPU and compare the saved activations with the storages that autograd saves."""
    model, (placed, named) = user_code.in_mode(analysis.network.build(), True), analysis.network.made("cpu")
    parameters = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = capture.default_loss(capture.first_tensor(model(*placed, **named)))
    measured = sum(storage.nbytes() for key, storage in saved.items() if key not in parameters)
    del loss
    ours = int(complexity.rows_of(analysis)["activation_bytes"].sum())
    inputs = {spec.storage for op in analysis.graph.ops for spec in op.tensors if spec.kind == "input"}
    return [_row("bytes saved for the backward pass", ours, "tensors that autograd saved, a real run", measured,
                 {"the input batch itself": sum(analysis.sizes[storage][0] for storage in inputs & analysis.saved)})]


def _row(quantity: str, ours: float, source: str, theirs: float, parts: Parts) -> dict[str, Any]:
    explained = sum(parts.values())
    rest = theirs - ours - explained
    words = [f"{rule} {value:+,}" for rule, value in parts.items() if value] + ["no rule for the rest"] * bool(rest)
    return {"quantity": quantity, "ours": ours, "source": source, "theirs": theirs, "difference": theirs - ours,
            "explained": explained, "rest": rest, "explanation": "; ".join(words)}


def compare(name: str, batch_size: int = 1, input_shape: str = "", measured: bool = True) -> pd.DataFrame:
    """Return each estimate of a network beside its second source: ours, theirs, the difference, and what explains it.

    ``measured`` also runs one real forward pass on the CPU. Counts are exact, bytes are bytes. Raises InputError for a
    network or a shape that is none.
    """
    network = networks.network(name, batch_size, input_shape)
    analysis = complexity.analyse(name, batch_size, input_shape)
    model = fakes.unwritten(network.build)
    rows = []
    sources = {_COUNTER: _flop_counter, "torchinfo": _torchinfo, "autograd": _saved_tensors}
    for source, compared in list(sources.items())[:2 + measured]:
        try:
            with user_code.running("gives no number"):
                rows += compared(model, analysis)
        except InputError as error:  # this source has nothing to say of this network
            rows.append({"quantity": "all", "source": source, "explanation": str(error)})
    return pd.DataFrame([{"network": name, "batch_size": network.shape[0], **row} for row in rows]).reindex(columns=COLUMNS)


def compare_all(names: Iterable[str], input_shape: str = "") -> pd.DataFrame:
    """Return ``compare`` of several networks at batch size 1; ``input_shape`` is for those that are no workloads."""
    return pd.concat([compare(name, 1, complexity.shape_for(name, input_shape))
                      for name in track(list(names), "second sources")], ignore_index=True)
