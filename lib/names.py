"""Names as people type them: aliases, other spellings, and the nearest known names."""

import difflib
import re
from collections.abc import Iterable

# Words that people type where a choice has another name.
ALIASES = {"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "single": "fp32", "float16": "fp16",
           "half": "fp16", "bfloat16": "bf16", "inference": "infer", "eval": "infer", "training": "train",
           "pytorch": "torch", "onnx": "onnxruntime", "nchw": "contiguous", "nhwc": "channels_last", "gpu": "cuda"}
MAKERS = frozenset(("nvidia", "tesla", "amd"))  # words that identify no device
_MOST = 6  # names in an error


def words(name: str) -> list[str]:
    """Return the words and numbers of a name in lower case, without makers."""
    return [word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in MAKERS]


def spelling(name: str) -> str:
    """Return the letters and digits of a name in lower case, without makers: resnet50 for ResNet-50."""
    return "".join(words(name))


def known(name: str, names: Iterable[str]) -> str:
    """Return the one of ``names`` that a name means: itself, its alias, or the only one of its spelling; else the name."""
    names, bare = list(names), spelling(name.removeprefix("torch."))
    wanted = (bare, spelling(ALIASES.get(bare, bare)))
    same = {other for other in names if spelling(other) in wanted} if bare and name not in names else ()
    return same.pop() if len(same) == 1 else name


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return ``; did you mean a, b?`` for the end of an error; empty without a near name.

    Near are the names of the same spelling, or else those with all words of ``name``, or else those of a near spelling.
    """
    bare, wanted, spellings = spelling(str(name)), set(words(str(name))), {}
    for other in map(str, names):
        spellings.setdefault(spelling(other), []).append(other)
    near = spellings.get(bare) or sorted((
        other for same in spellings.values() for other in same if wanted and wanted <= set(words(other))), key=len) or [
        spellings[text][0] for text in difflib.get_close_matches(bare, spellings)]
    return f"; did you mean {', '.join(near[:_MOST])}?" if near else ""
