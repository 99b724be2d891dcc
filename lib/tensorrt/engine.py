"""Layers of a TensorRT engine from its information file: shapes, kernels, element types, work."""

import re
from collections import Counter
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_pascal

from lib.config.base import Positive, build, json_mapping, some, whole
from lib.errors import InputError

KINDS = {"CaskConvolution": "convolutional", "CaskPooling": "pooling",
         "CaskGemmConvolution": "dense"}
_KIND_BY_PARAMETERS = {"Convolution": "convolutional", "Pooling": "pooling"}  # e.g. CudaPooling
OTHER = "other"
_BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP8": 1.0, "INT32": 4.0,
          "INT64": 8.0, "BOOL": 1.0, "INT4": 0.5}
_SYNONYMS = {"HALF": "FP16", "FLOAT": "FP32", "BFLOAT16": "BF16", "UINT8": "INT8"}
Pair = Annotated[tuple[int, ...], Field(max_length=3)]
Dimensions = Annotated[tuple[whole(-1, 1 << 31), ...], Field(max_length=8)]
_FORMATS = AliasChoices("Format/Datatype", "Datatype", "Format", "Type")


class Tensor(BaseModel):
    """An input, output, weights or bias: dimensions (batch first) or count, and format."""

    dimensions: Dimensions = Field((), alias="Dimensions")
    count: whole(0, 1 << 40) | None = Field(None, alias="Count")
    format: str = Field("", validation_alias=_FORMATS)

    @property
    def dtype(self) -> str:
        """Return FP16, FP32, ...; empty where the format does not say it."""
        words = [_SYNONYMS.get(word, word) for word in self.format.upper().split()]
        return next((word for word in words if word in _BYTES), "")

    @property
    def bytes(self) -> float:
        """Return the size without padding; NaN where a dimension or the element type is unknown."""
        count = prod(self.dimensions) if self.count is None else self.count
        if count == 0:
            return 0.0
        return nan if -1 in self.dimensions else count * _BYTES.get(self.dtype, nan)


class Layer(BaseModel):
    """One layer; ``kernel`` belongs to convolutions, ``window_size`` to poolings.

    A layer of a type in KINDS that lacks something or contradicts itself is refused.
    """

    model_config = ConfigDict(alias_generator=to_pascal)

    name: Annotated[str, Field(min_length=1)]
    layer_type: Annotated[str, Field(min_length=1)]
    parameter_type: str | None = None
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    kernel: Pair = ()
    window_size: Pair = ()
    stride: Pair = ()
    dilation: Pair = ()
    pre_padding: Pair = ()
    post_padding: Pair = ()
    groups: Positive = 1
    weights: Tensor = Tensor(Count=0)
    bias: Tensor = Tensor(Count=0)

    @model_validator(mode="after")
    def _consistent(self) -> "Layer":
        if self.layer_type in KINDS and (wrong := self._wrong(KINDS[self.layer_type])):
            raise ValueError(f"{self.name!r}, a {self.layer_type}, {wrong}")
        return self

    def _wrong(self, kind: str) -> str:
        """Return what a layer of a kind lacks or contradicts; empty where nothing is wrong."""
        window = "window_size" if kind == "pooling" else "kernel"
        for name in ("inputs", "outputs", "stride", window):
            if not getattr(self, name):
                return f"is without {to_pascal(name)}"
        into, out = self.inputs[0].dimensions, self.outputs[0].dimensions
        if min(len(into), len(out)) < 4:
            return "has tensors of fewer than 4 dimensions (NCHW)"
        if 0 in into + out:
            return "has an empty tensor: a dimension is 0"
        if self.is_dynamic or kind == "pooling":
            return ""
        if into[1] % self.groups:
            return f"has {into[1]} input channels, not divisible by {self.groups} groups"
        expected = out[1] * (into[1] // self.groups) * prod(self.kernel)
        if (self.weights.count or 0) not in (0, expected):
            return f"has {self.weights.count} weights, its shapes make {expected}"
        return ""

    @property
    def kind(self) -> str:
        """Return convolutional, pooling, dense or other, by the type of the layer or parameters."""
        if self.layer_type in KINDS:
            return KINDS[self.layer_type]
        kind = _KIND_BY_PARAMETERS.get(self.parameter_type, OTHER)
        return OTHER if kind == OTHER or "Deconv" in self.layer_type or self._wrong(kind) else kind

    @property
    def is_dynamic(self) -> bool:
        """Return whether a dimension depends on the input's shape (-1)."""
        return any(-1 in tensor.dimensions for tensor in (*self.inputs, *self.outputs))

    @property
    def window(self) -> tuple[int, ...]:
        """Return the size of the window that a pooling or convolution moves."""
        return self.window_size if self.kind == "pooling" else self.kernel

    @property
    def macs(self) -> int:
        """Return N x C_out x H_out x W_out x (C_in / groups) x k_h x k_w, or a pooling's reads."""
        if self.kind == OTHER:
            return 0
        channels = 1 if self.kind == "pooling" else self.inputs[0].dimensions[1] // self.groups
        return prod(self.outputs[0].dimensions) * channels * prod(self.window)

    @property
    def flops(self) -> int:
        """Return the FLOPs: two per multiply-add, one per read of a pooling."""
        return self.macs if self.kind == "pooling" else 2 * self.macs

    @property
    def bytes(self) -> float:
        """Return the compulsory bytes: inputs and weights read once, outputs written once."""
        return sum(part.bytes for part in (*self.inputs, *self.outputs, self.weights, self.bias))


class _File(BaseModel):
    layers: some(Layer) = Field(alias="Layers")


@dataclass(frozen=True)
class Engine:
    """The layers of an engine, in the order in which they run, and their file."""

    path: Path
    layers: tuple[Layer, ...]

    @property
    def shared_names(self) -> set[str]:
        """Return the names that several layers have."""
        counts = Counter(layer.name for layer in self.layers)
        return {name for name, count in counts.items() if count > 1}


def _profile(layer: Layer) -> int:
    """Return the optimisation profile that a layer belongs to."""
    found = re.search(r"\[profile +(\d{1,6})\]", layer.name)
    return int(found[1]) if found else 0


def read_engine(path: Path) -> Engine:
    """Read what ``IEngineInspector`` writes as JSON, or trtexec with ``--exportLayerInfo``.

    Only the layers of the lowest optimisation profile are read: ``NAME``, or ``NAME [profile 1]``
    where there is none. Raises InputError for an engine without details or with dynamic shapes, and
    for an inconsistent layer.
    """
    content = json_mapping(path)
    names = content.get("Layers")
    if isinstance(names, list) and names and isinstance(names[0], str):
        raise InputError(f"{path} names its layers without details; build the engine with "
                         "profiling verbosity detailed")
    layers = build(_File, content, str(path)).layers
    lowest = min(map(_profile, layers))
    layers = tuple(layer for layer in layers if _profile(layer) == lowest)
    for layer in layers:
        if layer.is_dynamic and layer.kind != OTHER:
            raise InputError(f"{path}: layer {layer.name!r} has dynamic shapes (a dimension is -1):"
                             " build the engine with fixed ones (trtexec --shapes=INPUT:1x3x8x8)")
    return Engine(path, layers)
