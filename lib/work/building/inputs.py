"""The inputs of a network: shape, element type and, of several, the argument's name."""

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
_WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
FLOAT = "float32"  # of an input that is cast to the element type of the network


@dataclass(frozen=True)
class Input:
    """One input: its shape (in a Network with the batch first), torch's element type, its name.

    An input without a name is given by its place. ``below``: whole numbers are drawn from 0 up to
    it.
    """

    shape: tuple[int, ...]
    dtype: str = FLOAT
    name: str = ""
    below: int = 2

    @property
    def is_float(self) -> bool:
        """Return whether the numbers are floats."""
        return self.dtype not in _WHOLE

    @property
    def sample(self) -> str:
        """Return one sample of a batch as it is typed: 3x224x224, 512:int64."""
        sizes = "x".join(map(str, self.shape[1:]))
        return sizes if self.dtype == FLOAT else f"{sizes}:{self.dtype}"

    @property
    def is_picture(self) -> bool:
        """Return whether it is a batch of (channels, height, width) floats, which have layouts."""
        return self.is_float and len(self.shape) == 4  # noqa: PLR2004

    def batch(self, size: int) -> "Input":
        """Return a batch of ``size`` samples."""
        return replace(self, shape=(size, *self.shape))

    def made(self, device: torch.device) -> torch.Tensor:
        """Make a tensor of random values."""
        if self.is_float:
            return torch.randn(self.shape, dtype=getattr(torch, self.dtype), device=device)
        return torch.randint(self.below, self.shape, device=device).to(getattr(torch, self.dtype))


def parse(text: str, usual: str = FLOAT) -> tuple[Input, ...]:
    """Return the inputs of one sample: of 3x224x224, 512:int64, or a YAML file; () for no text.

    The file maps names of arguments to such texts. ``usual`` is the element type where none is
    stated. Raises InputError for other texts.
    """
    if not text:
        return ()
    if not text.endswith((".yaml", ".yml")):
        return (_parsed(text, "", "input shape", usual),)
    named = mapping(load_yaml(Path(text)), text)
    if not named:
        raise InputError(f"{text} names no input; it maps arguments to shapes, such as input_ids: "
                         "77:int64")
    for name, value in named.items():
        if not str(name).isidentifier():
            raise InputError(f"{text}: {name!r} is no name of an argument, such as input_ids")
        if isinstance(value, dict):
            raise InputError(f"{text}: {name} is a dictionary, and an input that is one is not "
                             f"read; give a shape, such as {name}: 77:int64")
    return tuple(_parsed(value, name, f"{text}: {name}", usual) for name, value in named.items())


def _parsed(text: Any, name: str, where: str, usual: str) -> Input:
    match = _SAMPLE.fullmatch(str(text).lower())
    if not text or match is None:
        raise InputError(f"{where} {text!r} is none; give channels and sizes such as 3x224x224 or "
                         "1x28x28x28, tokens and their element type such as 512:int64, or a YAML "
                         "file of several inputs")
    sizes = tuple(map(int, match["sizes"].split("x"))) if match["sizes"] else ()
    names = {name: name for name in (*_WHOLE, *dtypes.NAMES.values())} | dtypes.NAMES
    dtype = entry(names, match["dtype"], "element type", "of an input") if match["dtype"] else usual
    return Input(sizes, dtype, name)


def arguments(values: Sequence[Any], inputs: Sequence[Input]) -> tuple[list[Any], dict[str, Any]]:
    """Return the values of inputs as the positional and the named arguments of a call."""
    pairs = list(zip(values, inputs, strict=True))
    return ([value for value, item in pairs if not item.name],
            {item.name: value for value, item in pairs if item.name})


def described(values: Sequence[Input]) -> str:
    """Return inputs in words, for errors: shape, and element type and name where they matter."""
    if len(values) == 1 and values[0].is_float:
        return f"an input of shape {values[0].shape}"
    return "inputs " + ", ".join(f"{entry.name} {entry.shape} {entry.dtype}".strip()
                                 for entry in values)
