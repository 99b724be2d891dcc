"""The doors of the project, and inputs for each: as they should be, wrong by construction, or damaged anyhow.

A door is where one class of input comes in. ``Door.attempt`` draws one input from a strategy, hands it in and holds the door to
its law: what is wrong by construction is refused, what says the same in another way reads the same, and whatever it is, a
refusal is one line. Anything else is an error of the door.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError

SAME, WRONG, ANY = "same", "wrong", "any"  # what an input is: as it should be, wrong by construction, or damaged anyhow


class LetThroughError(AssertionError):
    """Raised where a door let through what is wrong, or read the right thing as something else."""


@dataclass(frozen=True)
class Door:
    """A door by name: ``attempt(draw, folder)`` draws one input, hands it in, and returns refused or read."""

    name: str
    attempt: Callable[[Any, Path], str]


def pass_through(read: Callable[[], Any], kind: str, what: str, expected: Any = None) -> str:
    """Hand one input in; return refused or read.

    ``expected`` is what an input of kind SAME reads as. Raises LetThroughError where the door's law is broken, and whatever
    the door raises that is no InputError.
    """
    try:
        value = read()
    except InputError as error:
        if kind == SAME:
            raise LetThroughError(f"{what}: refused, although nothing is wrong with it: {error}") from error
        text = str(error)
        if not text.strip() or len(text.splitlines()) != 1 or len(text) > 2000:
            raise LetThroughError(f"{what}: refused, but not in one line: {text!r}") from error
        return "refused"
    if kind == WRONG:
        raise LetThroughError(f"{what}: let through as {str(value)[:300]}")
    if kind == SAME and not alike(value, expected):
        raise LetThroughError(f"{what}: read as {str(value)[:300]}, not {str(expected)[:300]}")
    return "read"


def alike(a: Any, b: Any) -> bool:
    """Return whether two values are equal, tables and arrays included."""
    if isinstance(a, pd.DataFrame):
        return isinstance(b, pd.DataFrame) and a.equals(b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(alike(*pair) for pair in zip(a, b, strict=True))
    return bool(a == b)
