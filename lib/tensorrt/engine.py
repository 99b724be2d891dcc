"""What a TensorRT engine says of its layers (engine information, trtexec's graph): shapes, kernels, types, exact work."""

from collections import Counter
from math import isnan, nan, prod
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_pascal

from lib.config.base import Positive, build, json_mapping, some, whole
from lib.errors import InputError, choices, printable
from lib.predict.model_file import require

KINDS = {"CaskConvolution": "convolutional", "CaskPooling": "pooling", "CaskGemmConvolution": "dense"}
OTHER = "other"
_BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP8": 1.0, "INT32": 4.0, "INT64": 8.0, "BOOL": 1.0, "INT4": 0.5}
_NAMES = {"HALF": "FP16", "FLOAT": "FP32", "BFLOAT16": "BF16", "UINT8": "INT8"}
_SHOWN, _MOST_SHOWN = 60, 5  # characters of a format that is not known, and how many of them are named

Size = whole(1, 1 << 31)
Name = Annotated[str, Field(min_length=1)]
Pair = Annotated[tuple[int, ...], Field(max_length=3)]


class _Read(BaseModel):
    """What TensorRT writes: names of its own, of which versions have more and fewer."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, alias_generator=to_pascal)


def _element_type(text: str) -> str:
    """Return FP16, FP32, ...; empty where a format does not say it."""
    words = [_NAMES.get(word, word) for word in text.upper().split()]
    return next((word for word in words if word in _BYTES), "")


class Tensor(_Read):
    """An input or output of a layer: its dimensions, batch first, and format."""

    dimensions: Annotated[tuple[Size, ...], Field(max_length=8)] = ()
    format: Annotated[str, Field(validation_alias=AliasChoices("Format/Datatype", "Datatype", "Format"))] = ""

    @property
    def bytes(self) -> float:
        """Return what the tensor takes, without the padding of its format; NaN where the element type is not known."""
        return prod(self.dimensions) * _BYTES.get(_element_type(self.format), nan)


class Constant(_Read):
    """Weights or a bias: element type and count."""

    format: Annotated[str, Field(validation_alias="Type")] = ""
    count: whole(0, 1 << 40) = 0

    @property
    def bytes(self) -> float:
        """Return what they take; 0 for none."""
        return self.count * _BYTES.get(_element_type(self.format), nan) if self.count else 0.0


class Layer(_Read):
    """One layer of an engine; ``kernel`` is a convolution's, ``window_size`` a pooling's. Else TensorRT's defaults hold.

    A layer of a known kind that lacks something, or contradicts itself, is refused.
    """

    name: Name
    layer_type: Name
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    kernel: Pair = ()
    window_size: Pair = ()
    stride: Pair = ()
    dilation: Pair = ()
    pre_padding: Pair = ()
    post_padding: Pair = ()
    groups: Positive = 1
    weights: Constant = Constant()
    bias: Constant = Constant()

    @model_validator(mode="after")
    def _consistent(self) -> "Layer":
        if self.kind == OTHER:
            return self
        for name in ("inputs", "outputs", "stride", "window_size" if self.kind == "pooling" else "kernel"):
            require(len(getattr(self, name)), f"is a {self.layer_type} without {to_pascal(name)}")
        into, out = self.inputs[0].dimensions, self.outputs[0].dimensions
        require(min(len(into), len(out)) >= 4,
                f"a {self.layer_type} has tensors of 4 dimensions (batch, channels, height, width)")
        if self.kind != "pooling":
            require(into[1] % self.groups == 0, f"{into[1]} input channels are not divisible by {self.groups} groups")
            expected = out[1] * (into[1] // self.groups) * prod(self.kernel)
            require(self.weights.count in (0, expected), f"{self.weights.count} weights, its shapes make {expected}")
        return self

    @property
    def kind(self) -> str:
        """Return convolutional, pooling, dense, or other."""
        return KINDS.get(self.layer_type, OTHER)

    @property
    def window(self) -> tuple[int, ...]:
        """Return the size of the window that a pooling or convolution moves."""
        return self.window_size if self.kind == "pooling" else self.kernel

    @property
    def macs(self) -> int:
        """Return the exact multiply-adds of a convolution or product, or the window reads of a pooling; 0 for other layers.

        A convolution has N x C_out x H_out x W_out x (C_in / groups) x k_h x k_w of them.
        """
        if self.kind == OTHER:
            return 0
        channels = 1 if self.kind == "pooling" else self.inputs[0].dimensions[1] // self.groups
        return prod(self.outputs[0].dimensions) * channels * prod(self.window)

    @property
    def flops(self) -> int:
        """Return the FLOPs: two a multiply-add, one a window read of a pooling."""
        return self.macs if self.kind == "pooling" else 2 * self.macs

    @property
    def _parts(self) -> tuple[Tensor | Constant, ...]:
        return *self.inputs, *self.outputs, self.weights, self.bias

    @property
    def bytes(self) -> float:
        """Return the compulsory bytes: inputs and weights read once, outputs written once."""
        return sum(part.bytes for part in self._parts)

    @property
    def unknown_formats(self) -> tuple[str, ...]:
        """Return the formats of tensors and weights whose bytes are not known, as the engine writes them, each once."""
        return tuple(dict.fromkeys(part.format or "no format" for part in self._parts if isnan(part.bytes)))

    @property
    def dtype(self) -> str:
        """Return the element type of the first input."""
        return _element_type(self.inputs[0].format) if self.inputs else ""


class Engine(_Read):
    """The layers of an engine in the order in which they run, and the file that they were read from."""

    path: Path
    layers: some(Layer)

    @model_validator(mode="after")
    def _named_once(self) -> "Engine":
        name, count = Counter(layer.name for layer in self.layers).most_common(1)[0]
        require(count == 1, f"layer {name!r} is there twice")
        return self

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
    content = json_mapping(path)
    layers = content.get("Layers")
    if isinstance(layers, list) and layers and isinstance(layers[0], str):
        raise InputError(f"{path} names its layers without details; build the engine with profiling verbosity detailed")
    return build(Engine, {**content, "Path": path}, str(path))
