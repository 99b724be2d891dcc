"""What a TensorRT engine says of its layers (engine information, trtexec's graph): shapes, kernels, types, exact work."""

import re
from math import isnan, nan, prod
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_pascal

from lib.config.base import Positive, build, json_mapping, some, whole
from lib.errors import InputError, choices, printable
from lib.predict.model_file import require

KINDS = {"CaskConvolution": "convolutional", "CaskPooling": "pooling", "CaskGemmConvolution": "dense"}
_BY_PARAMETERS = {"Convolution": "convolutional", "Pooling": "pooling"}  # of other layer types, such as CudaPooling
OTHER = "other"
_BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP8": 1.0, "INT32": 4.0, "INT64": 8.0, "BOOL": 1.0, "INT4": 0.5}
_NAMES = {"HALF": "FP16", "FLOAT": "FP32", "BFLOAT16": "BF16", "UINT8": "INT8"}
_SHOWN, _MOST_SHOWN = 60, 5  # characters of a format that is not known, and how many of them are named

Size = whole(-1, 1 << 31)  # -1: it depends on the input's shape
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
        """Return what the tensor takes, without the padding of its format; NaN where a size or element type is not known."""
        return nan if -1 in self.dimensions else prod(self.dimensions) * _BYTES.get(_element_type(self.format), nan)


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

    A layer of a type in KINDS that lacks something, or contradicts itself, is refused. ``reported`` is the name that TensorRT
    gives, which several layers may share; ``name`` is unique in an engine that was read.
    """

    name: Name
    layer_type: Name
    parameter_type: str | None = None
    reported: str = ""
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
        wrong = self._wrong(KINDS[self.layer_type]) if self.layer_type in KINDS else ""
        require(not wrong, wrong)
        return self

    def _wrong(self, kind: str) -> str:
        """Return what a layer of a kind lacks or contradicts; empty where that is nothing."""
        for name in ("inputs", "outputs", "stride", "window_size" if kind == "pooling" else "kernel"):
            if not getattr(self, name):
                return f"{self.name!r} is a {self.layer_type} without {to_pascal(name)}"
        into, out = self.inputs[0].dimensions, self.outputs[0].dimensions
        if min(len(into), len(out)) < 4:
            return f"{self.name!r}: a {self.layer_type} has tensors of 4 dimensions (batch, channels, height, width)"
        if 0 in into + out:
            return f"{self.name!r} is a {self.layer_type} of an empty tensor: a dimension is 0"
        if self.is_dynamic or kind == "pooling":
            return ""
        if into[1] % self.groups:
            return f"{self.name!r}: {into[1]} input channels are not divisible by {self.groups} groups"
        expected = out[1] * (into[1] // self.groups) * prod(self.kernel)
        known = self.weights.count in (0, expected)
        return "" if known else f"{self.name!r} has {self.weights.count} weights, its shapes make {expected}"

    @property
    def kind(self) -> str:
        """Return convolutional, pooling, dense, or other: by the layer type, or by the parameters' type of unknown ones."""
        if self.layer_type in KINDS:
            return KINDS[self.layer_type]
        kind = _BY_PARAMETERS.get(self.parameter_type, OTHER)
        return OTHER if kind == OTHER or "Deconv" in self.layer_type or self._wrong(kind) else kind

    @property
    def is_dynamic(self) -> bool:
        """Return whether a dimension of an input or output is not known before the input's shape is."""
        return any(-1 in tensor.dimensions for tensor in (*self.inputs, *self.outputs))

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
    """The layers of one optimisation profile of an engine, in the order in which they run, and the file that they are from."""

    path: Path
    layers: some(Layer)
    profile: int = 0
    profile_note: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which optimisation profile was read, and how many layers that models are made of have unknown formats."""
        profile = (self.profile_note,) if self.profile_note else ()
        formats = [layer.unknown_formats for layer in self.layers if layer.kind != OTHER and layer.unknown_formats]
        if not formats:
            return profile
        names = list(dict.fromkeys(printable(name)[:_SHOWN] for layer_formats in formats for name in layer_formats))
        shown = choices(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
        return *profile, f"{len(formats)} layers have unknown formats, and so no bytes: {shown}; known are {choices(_BYTES)}"


def profile_number(layer_name: str) -> int:
    """Return the optimisation profile that a layer belongs to: all but the first, 0, are named as ``NAME [profile 1]``."""
    found = re.search(r"\[profile +(\d{1,6})\]", layer_name)
    return int(found[1]) if found else 0


def _numbered(layers: list[Layer]) -> tuple[Layer, ...]:
    """Return layers with unique names: the second layer that TensorRT calls X is ``X #2``, or the next that no layer has."""
    numbered, reported = {}, {layer.name for layer in layers}
    for layer in layers:
        names = (layer.name if number == 1 else f"{layer.name} #{number}" for number in range(1, len(layers) + 1))
        name = next(name for name in names if name not in numbered and (name == layer.name or name not in reported))
        numbered[name] = layer.model_copy(update={"name": name, "reported": layer.name})
    return tuple(numbered.values())


def read(path: Path, profile: int | None = None) -> Engine:
    """Read the engine information (``IEngineInspector``, JSON) or trtexec's ``--exportLayerInfo`` of an engine.

    ``profile``: which optimisation profile's layers (default: the first). Raises InputError for another file, an engine without
    details of its layers, with dynamic shapes or without that profile, and for a layer that contradicts itself.
    """
    content = json_mapping(path)
    layers = content.get("Layers")
    if isinstance(layers, list) and layers and isinstance(layers[0], str):
        raise InputError(f"{path} names its layers without details; build the engine with profiling verbosity detailed")
    engine = build(Engine, {"Path": path} | ({"Layers": layers} if "Layers" in content else {}), str(path))
    profiles = sorted({profile_number(layer.name) for layer in engine.layers})
    chosen = profiles[0] if profile is None else profile
    if chosen not in profiles:
        raise InputError(f"{path} has no optimisation profile {chosen}; there are: {choices(profiles)}")
    numbered = _numbered([layer for layer in engine.layers if profile_number(layer.name) == chosen])
    if dynamic := [layer.name for layer in numbered if layer.is_dynamic and layer.kind != OTHER]:
        raise InputError(f"{path}: layer {dynamic[0]!r} has dynamic shapes (a dimension is -1): build the engine with fixed "
                         "ones (trtexec --shapes=INPUT:1x3x224x224), or set the input's shape before the engine is inspected")
    note = f"layers of optimisation profile {chosen} alone, of {choices(profiles)} (--profile)" if len(profiles) > 1 else ""
    return engine.model_copy(update={"layers": numbered, "profile": chosen, "profile_note": note})
