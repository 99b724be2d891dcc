"""A captured network in the layout of TensorRT's engine information: what an engine of it would say, nothing fused."""

from collections import Counter
from typing import Any

from lib.errors import InputError
from lib.work.graph import counts, families
from lib.work.graph.family import Params
from lib.work.graph.ops import Graph, Op, TensorSpec

_DTYPES = {"float32": ("FP32", "Float"), "float16": ("FP16", "Half"), "bfloat16": ("BF16", "BFloat16")}
_POINTWISE = {"groups": 1, **{f"{name}_{axis}": 1 for name in ("kernel", "stride", "dilation") for axis in "hw"}}
_FAMILIES = {"conv2d": "CaskConvolution", "pool2d": "CaskPooling", "linear": "CaskGemmConvolution"}


def layers(graph: Graph) -> list[tuple[int, dict[str, Any]]]:
    """Return the layers of a captured forward pass as ``Layers`` of an engine has them, each with its operator's position.

    Convolutions, poolings and linear layers carry their details, other operators their shapes; views are no layers. Raises
    InputError for a network without any of the three, such as one of 3D convolutions.
    """
    described, names = [], Counter()
    for position, op in enumerate(graph.ops):
        if not counts.is_work(op):
            continue
        family, params = families.describe(op) or ("", {})
        layer_type = _FAMILIES.get(family, op.short)
        name = f"[{layer_type}]-[{op.name}]-[{op.module or 'network'}]"
        names[name] += 1
        layer = {"Name": name if names[name] == 1 else f"{name} #{names[name]}", "LayerType": layer_type,
                 "Inputs": [_tensor(spec) for spec in op.tensors if spec.kind in ("input", "activation")],
                 "Outputs": [_tensor(spec) for spec in op.outputs if spec.elements]}
        layer |= _DETAILS[family](op, params) if family in _DETAILS else {}
        described.append((position, layer))
    if not any(layer["LayerType"] in _FAMILIES.values() for _, layer in described):
        raise InputError("the network has no 2D convolution, pooling or linear layer: there is nothing that a model is made of")
    return described


def _tensor(spec: TensorSpec, shape: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"Dimensions": list(shape or spec.shape), "Format/Datatype": f"Row major linear {_DTYPES[spec.dtype][0]}"
            if spec.dtype in _DTYPES else spec.dtype}


def _constant(spec: TensorSpec | None) -> dict[str, Any]:
    return {"Type": _DTYPES[spec.dtype][1], "Count": spec.elements} if spec else {"Type": "Float", "Count": 0}


def _pair(params: Params, name: str) -> list[int]:
    return [params.get(f"{name}_{axis}", 0) for axis in "hw"]


def _convolution(params: Params, weight: TensorSpec, bias: TensorSpec | None) -> dict[str, Any]:
    padding = _pair(params, "padding")
    return {"ParameterType": "Convolution", "Kernel": _pair(params, "kernel"), "Stride": _pair(params, "stride"),
            "PrePadding": padding, "PostPadding": padding, "Dilation": _pair(params, "dilation"),
            "OutMaps": params["out_channels"], "Groups": params["groups"], "Weights": _constant(weight),
            "Bias": _constant(bias)}


def _pooling(op: Op, params: Params) -> dict[str, Any]:
    """Return a pooling's details; an adaptive one has the window and stride that its sizes make."""
    if params["kind"] != "adaptive_avg":
        window, stride, padding = (_pair(params, name) for name in ("kernel", "stride", "padding"))
    else:
        sizes = list(zip(op.args[0].shape[2:], op.outputs[0].shape[2:], strict=True))
        window, stride, padding = [-(-into // out) for into, out in sizes], [max(1, into // out) for into, out in sizes], [0, 0]
    return {"ParameterType": "Pooling", "PoolingType": "MAX" if params["kind"] == "max" else "AVERAGE", "WindowSize": window,
            "Stride": stride, "PrePadding": padding, "PostPadding": padding, "Outputs": [_tensor(op.outputs[0])]}


def _linear(op: Op, params: Params) -> dict[str, Any]:
    """Return a linear layer as TensorRT has it: a 1x1 convolution of one pixel."""
    rows, inner, outer = (params[f"gemm_{size}"] for size in "mkn")
    bias, data, weight = op.args[:3]
    return {**_convolution({**_POINTWISE, "out_channels": outer}, weight, bias),
            "Inputs": [_tensor(data, (rows, inner, 1, 1))], "Outputs": [_tensor(op.outputs[0], (rows, outer, 1, 1))]}


_DETAILS = {"conv2d": lambda op, params: _convolution(params, *op.args[1:3]), "pool2d": _pooling, "linear": _linear}
