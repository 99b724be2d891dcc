"""What a TensorRT engine says of its layers (engine information, trtexec's graph): shapes, kernels, types, exact work."""

from dataclasses import dataclass
from functools import cached_property
from math import isnan, prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from lib import store
from lib.errors import InputError, choices, printable

KINDS = {"CaskConvolution": "convolutional", "CaskPooling": "pooling", "CaskGemmConvolution": "dense"}
OTHER = "other"
_BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP8": 1.0, "INT32": 4.0, "INT64": 8.0, "BOOL": 1.0, "INT4": 0.5}
_NAMES = {"HALF": "FP16", "FLOAT": "FP32", "BFLOAT16": "BF16", "UINT8": "INT8"}
_SHOWN, _MOST_SHOWN = 60, 5  # characters of a format that is not known, and how many of them are named

Size = Annotated[int, Field(ge=1, le=1 << 31)]
Pair = Annotated[tuple[int, ...], Field(max_length=3)]


class _Read(BaseModel):
    """What TensorRT writes: names of its own, of which versions have more and fewer."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class Tensor(_Read):
    """An input or output of a layer: its dimensions, batch first, and format."""

    name: Annotated[str, Field(alias="Name")] = ""
    dimensions: Annotated[tuple[Size, ...], Field(alias="Dimensions", max_length=8)] = ()
    format: Annotated[str, Field(validation_alias=AliasChoices("Format/Datatype", "Datatype", "Format"))] = ""

    @property
    def dtype(self) -> str:
        """Return FP16, FP32, ...; empty where the format does not say it."""
        words = [_NAMES.get(word, word) for word in self.format.upper().split()]
        return next((word for word in words if word in _BYTES), "")

    @property
    def bytes(self) -> float:
        """Return what the tensor takes, without the padding of its format; NaN where the element type is not known."""
        return prod(self.dimensions) * _BYTES.get(self.dtype, float("nan"))


class Constant(_Read):
    """Weights or a bias: element type and count."""

    type: Annotated[str, Field(alias="Type")] = ""
    count: Annotated[int, Field(alias="Count", ge=0, le=1 << 40)] = 0

    @property
    def bytes(self) -> float:
        """Return what they take; 0 for none."""
        return self.count * _BYTES.get(_NAMES.get(self.type.upper(), self.type.upper()), float("nan")) if self.count else 0.0


class Layer(_Read):
    """One layer of an engine; ``kernel`` is a convolution's, ``window`` a pooling's. What is missing has TensorRT's default."""

    name: Annotated[str, Field(alias="Name", min_length=1)]
    layer_type: Annotated[str, Field(alias="LayerType", min_length=1)]
    inputs: Annotated[tuple[Tensor, ...], Field(alias="Inputs")] = ()
    outputs: Annotated[tuple[Tensor, ...], Field(alias="Outputs")] = ()
    kernel: Annotated[Pair, Field(alias="Kernel")] = ()
    window: Annotated[Pair, Field(alias="WindowSize")] = ()
    stride: Annotated[Pair, Field(alias="Stride")] = ()
    dilation: Annotated[Pair, Field(alias="Dilation")] = ()
    padding_before: Annotated[Pair, Field(alias="PrePadding")] = ()
    padding_after: Annotated[Pair, Field(alias="PostPadding")] = ()
    out_channels: Annotated[int, Field(alias="OutMaps", ge=0)] = 0
    groups: Annotated[int, Field(alias="Groups", ge=1)] = 1
    weights: Annotated[Constant, Field(alias="Weights")] = Constant()
    bias: Annotated[Constant, Field(alias="Bias")] = Constant()
    tactic: Annotated[str, Field(alias="TacticName")] = ""

    @property
    def kind(self) -> str:
        """Return convolutional, pooling, dense, or other."""
        return KINDS.get(self.layer_type, OTHER)

    @property
    def macs(self) -> int:
        """Return the exact multiply-adds of a convolution or product, or the window reads of a pooling; 0 for other layers.

        A convolution has N x C_out x H_out x W_out x (C_in / groups) x k_h x k_w of them.
        """
        if self.kind == OTHER:
            return 0
        out = prod(self.outputs[0].dimensions)
        if self.kind == "pooling":
            return out * prod(self.window)
        return out * (self.inputs[0].dimensions[1] // self.groups) * prod(self.kernel)

    @property
    def flops(self) -> int:
        """Return the FLOPs: two a multiply-add, one a window read of a pooling."""
        return self.macs if self.kind == "pooling" else 2 * self.macs

    @property
    def bytes(self) -> float:
        """Return the compulsory bytes: inputs and weights read once, outputs written once."""
        return sum(tensor.bytes for tensor in (*self.inputs, *self.outputs)) + self.weights.bytes + self.bias.bytes

    @property
    def unknown_formats(self) -> tuple[str, ...]:
        """Return the formats of tensors and weights whose bytes are not known, as the engine writes them, each once."""
        named = [*((tensor.format, tensor.bytes) for tensor in (*self.inputs, *self.outputs)),
                 *((constant.type, constant.bytes) for constant in (self.weights, self.bias))]
        return tuple(dict.fromkeys(name or "no format" for name, size in named if isnan(size)))

    @property
    def dtype(self) -> str:
        """Return the element type of the first input."""
        return self.inputs[0].dtype if self.inputs else ""


@dataclass(frozen=True)
class Engine:
    """The layers of an engine in the order in which they run, and the file that they were read from."""

    path: Path
    layers: tuple[Layer, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Give how many layers there are of each kind, and of each type among the others."""
        names = [layer.kind if layer.kind != OTHER else layer.layer_type for layer in self.layers]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how many layers that models are made of have formats that are not known, and which; empty where none has."""
        formats = [layer.unknown_formats for layer in self.layers if layer.kind != OTHER and layer.unknown_formats]
        if not formats:
            return ()
        names = list(dict.fromkeys(printable(name)[:_SHOWN] for layer_formats in formats for name in layer_formats))
        return (f"{len(formats)} layers have formats that are not known, and so no bytes: {choices(names[:_MOST_SHOWN])}"
                f"{', ...' if len(names) > _MOST_SHOWN else ''}; known are {choices(_BYTES)}",)


def read(path: Path) -> Engine:
    """Read the engine information (``IEngineInspector``, JSON) or trtexec's ``--exportLayerInfo`` of an engine.

    Raises InputError for another file, an engine without details of its layers, and a layer that contradicts itself.
    """
    content = store.read_json(path)
    layers = content.get("Layers") if isinstance(content, dict) else None
    if not isinstance(layers, list) or not layers:
        raise InputError(f"{path} is no engine information of TensorRT: it has no list 'Layers'")
    if all(isinstance(layer, str) for layer in layers):
        raise InputError(f"{path} names its layers without details; build the engine with profiling verbosity detailed")
    read_layers = tuple(_layer(path, number, layer) for number, layer in enumerate(layers))
    names = [layer.name for layer in read_layers]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: layer {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return Engine(path, read_layers)


def _layer(path: Path, number: int, content: Any) -> Layer:
    try:
        layer = Layer.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: layer {number}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    reason = _contradiction(layer)
    if reason:
        raise InputError(f"{path}: layer {number} ({layer.name[:60]}): {reason}")
    return layer


def _contradiction(layer: Layer) -> str:
    """Return what a layer of a known kind lacks or says twice in different ways; empty where all is well."""
    if layer.kind == OTHER:
        return ""
    needed = ("inputs", "outputs", "stride", *(("window",) if layer.kind == "pooling" else ("kernel",)))
    lacking = [Layer.model_fields[name].alias for name in needed if not getattr(layer, name)]
    if lacking:
        return f"a {layer.layer_type} without {choices(lacking)}"
    sizes = [len(tensor.dimensions) for tensor in (layer.inputs[0], layer.outputs[0])]
    if min(sizes) < 4:
        return f"tensors of {choices(sizes)} dimensions, a {layer.layer_type} has 4 (batch, channels, height, width)"
    channels = layer.inputs[0].dimensions[1]
    if layer.kind == "pooling":
        return ""
    if channels % layer.groups:
        return f"{channels} input channels are not divisible by {layer.groups} groups"
    expected = layer.outputs[0].dimensions[1] * (channels // layer.groups) * prod(layer.kernel)
    if layer.weights.count not in (0, expected):
        return f"{layer.weights.count} weights, its shapes make {expected}"
    return ""
