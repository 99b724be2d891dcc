"""Names as people type them: aliases, other spellings, and the nearest known names."""

import difflib
import re
from collections.abc import Iterable

# A word that people type, and the name that it stands for where that name is a choice.
ALIASES = {"float64": "fp64", "double": "fp64", "f64": "fp64",
           "float32": "fp32", "float": "fp32", "single": "fp32", "f32": "fp32",
           "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
           "inference": "infer", "eval": "infer", "training": "train",
           "pytorch": "torch", "ort": "onnxruntime", "onnx": "onnxruntime",
           "nchw": "contiguous", "nhwc": "channels_last", "gpu": "cuda"}
MAKERS = frozenset(("nvidia", "tesla", "amd"))  # words of a device's name that identify no device
_NEAREST = 3


def spelling(name: str) -> str:
    """Return the lower-case letters and digits of a name: resnet50 for ResNet-50."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def known(name: str, names: Iterable[str]) -> str:
    """Return the one of ``names`` that a name means: itself, its alias, or the only one of the same spelling.

    A name that means none or several of them is returned unchanged.
    """
    names = list(names)
    if name in names or not spelling(name):
        return name
    bare = spelling(name.lower().removeprefix("torch."))
    same = {other for other in names if spelling(other) in (bare, spelling(ALIASES.get(bare, bare)))}
    return same.pop() if len(same) == 1 else name


def words(name: str) -> frozenset[str]:
    """Return the words of a device's name without its maker: the same for A100 80GB PCIe and A100-PCIE-80GB."""
    return frozenset(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9.]+", name.lower()) if word not in MAKERS]


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the names of the same spelling, or that contain all words of ``name``, or of a near spelling; [] without any."""
    names = list(names)
    bare = {other: "".join(_words(other)) for other in (name, *names)}
    spellings = {bare[other]: other for other in names}
    same = [other for other in names if bare[other] == bare[name]]
    return same or [other for other in names if bare[name] and words(name) <= words(other)] or [
        spellings[text] for text in difflib.get_close_matches(bare[name], spellings, _NEAREST)]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return ``; did you mean a, b?`` with the nearest names, for the end of an error; empty without any."""
    near = nearest(str(name), map(str, names))
    return f"; did you mean {', '.join(near)}?" if near else ""
