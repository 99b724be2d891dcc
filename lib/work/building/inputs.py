"""The inputs of a network: shape, element type and, where there are several, the argument that each is given as."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lib.config.base import load_yaml, mapping
from lib.errors import InputError, entry
from lib.work import dtypes

_SIZES = r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,5}"
_SAMPLE = re.compile(rf"(?P<sizes>{_SIZES})?(:(?P<dtype>[a-z0-9]+))?")
_FILES = (".yaml", ".yml")
_WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
FLOAT = "float32"  # of an input that follows the element type which is asked for


@dataclass(frozen=True)
class Input:
    """One input: its shape (in a Network the batch first), torch's element type, and the argument's name (empty: by its place).

    One of FLOAT has the element type that is asked for. ``below``: whole numbers of a real run are drawn from 0 up to it.
    """

    shape: tuple[int, ...]
    dtype: str = FLOAT
    name: str = ""
    below: int = 2

    @property
    def is_float(self) -> bool:
        """Return whether its numbers are floats, which gradients and layouts are about."""
        return self.dtype not in _WHOLE

    @property
    def sample(self) -> str:
        """Return one sample of a batch as it is given: 3x224x224, 512:int64."""
        sizes = "x".join(map(str, self.shape[1:]))
        return sizes if self.dtype == FLOAT else f"{sizes}:{self.dtype}"

    @property
    def is_picture(self) -> bool:
        """Return whether it is, with its batch, of four dimensions and floats, which have layouts."""
        return self.is_float and len(self.shape) == 4  # noqa: PLR2004 - samples, channels, height, width

    def batch(self, size: int) -> "Input":
        """Return a batch of so many."""
        return replace(self, shape=(size, *self.shape))

    def made(self, device: torch.device) -> torch.Tensor:
        """Make a real one with random values."""
        if self.is_float:
            return torch.randn(self.shape, dtype=getattr(torch, self.dtype), device=device)
        return torch.randint(self.below, self.shape, device=device).to(getattr(torch, self.dtype))


def parse(text: str, usual: str = FLOAT) -> tuple[Input, ...]:
    """Return the inputs of one sample that a text means: 3x224x224, 512:int64, a YAML file of several; none where it is empty.

    The file maps names of arguments to such texts, or to a mapping of them: an argument that is a dictionary. ``usual`` is the
    element type where none is stated. Raises InputError for what is none.
    """
    if not text:
        return ()
    named = mapping(load_yaml(Path(text)), text) if text.endswith(_FILES) else {"": text}
    if not named:
        raise InputError(f"{text} names no input; it maps arguments to shapes, such as input_ids: 77:int64")
    flat = {}
    for name, value in named.items():
        if name and not name.isidentifier():
            raise InputError(f"{text}: {name!r} is no name of an argument")
        if isinstance(value, dict) and not mapping(value, f"{text}: {name}"):
            raise InputError(f"{text}: {name} has no entries; it maps those of a dictionary to shapes, such as x: 16")
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return tuple(_parsed(value, name, f"{text}: {name}" if name else "input shape", usual) for name, value in flat.items())


def _parsed(text: Any, name: str, where: str, usual: str) -> Input:
    match = _SAMPLE.fullmatch(str(text).lower()) if isinstance(text, str | int) and not isinstance(text, bool) else None
    if not text or match is None:
        raise InputError(f"{where} {text!r} is none; give channels and sizes such as 3x224x224 or 1x28x28x28, tokens and "
                         "their element type such as 512:int64, or a YAML file of several inputs")
    sizes = tuple(map(int, match["sizes"].split("x"))) if match["sizes"] else ()
    torch_names = {name: name for name in (*_WHOLE, *dtypes.NAMES.values())} | dtypes.NAMES
    return Input(sizes, entry(torch_names, match["dtype"], "element type", "of an input") if match["dtype"] else usual, name)


def arguments(values: Sequence[Any], inputs: Sequence[Input]) -> tuple[list[Any], dict[str, Any]]:
    """Return the values of ``inputs`` as what a network is called with: those with a name by it, the others by their places.

    Those named ``argument.entry`` make a dictionary.
    """
    pairs, named = [(value, entry.name.split(".", 1)) for value, entry in zip(values, inputs, strict=True)], {}
    for value, (name, *key) in pairs:
        named[name] = named.get(name, {}) | {key[0]: value} if key else value
    named.pop("", None)
    return [value for value, name in pairs if name == [""]], named


def described(values: Sequence[Input]) -> str:
    """Return inputs in words, for errors: an input of shape (1, 3, 224, 224), or each with its name and element type."""
    if len(values) == 1 and values[0].is_float:
        return f"an input of shape {values[0].shape}"
    return "inputs " + ", ".join(f"{entry.name} {entry.shape} {entry.dtype}".strip() for entry in values)
