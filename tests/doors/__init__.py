"""The doors of the project, and inputs for each: as they should be, wrong by construction, or damaged anyhow.

A door is where one class of input comes in. ``Door.attempt`` draws one input from a strategy, hands it in and holds the door to
its law: what is wrong by construction is refused, what says the same in another way reads the same, and whatever it is, a
refusal is one line. Anything else is an error of the door.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from lib.errors import InputError

SAME, WRONG, ANY = "same", "wrong", "any"  # what an input is: as it should be, wrong by construction, or damaged anyhow
VALUES = [None, True, -1, 0, 1, 1.5, 1e30, -1e308, 10**40, "", "x", "half", "../x", "\n", "🙂", "1e999", [], [[]], [None],
          [True], [1, "a"], {}, {"a": 1}, float("nan"), float("-inf")]


class LetThroughError(AssertionError):
    """Raised where a door let through what is wrong, or read the right thing as something else."""


class Door(NamedTuple):
    """A door by name: ``attempt(draw, folder)`` draws one input, hands it in, and returns refused or read."""

    name: str
    attempt: Callable


def pick(data, values, label=None):
    """Draw one of several values."""
    return data.draw(st.sampled_from(list(values)), label=label)


def damaged(content, data):
    """Draw a content with some of its bytes changed, perhaps cut short."""
    changed = bytearray(content)
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4), label="at"):
        changed[at] ^= data.draw(st.integers(1, 255))
    return bytes(changed[:pick(data, [None, len(content) // 2, 30, 4, 0])])


def pass_through(read, kind, what, expected=None):
    """Hand one input in; return refused or read.

    ``expected`` is what an input of kind SAME reads as. Raises LetThroughError where the door's law is broken, and whatever
    the door raises that is no InputError.
    """
    try:
        value = read()
    except InputError as error:
        if kind == SAME:
            raise LetThroughError(f"{what}: refused, although nothing is wrong with it: {error}") from error
        if not str(error).strip():
            raise LetThroughError(f"{what}: refused without a word") from error
        return "refused"
    if kind == WRONG:
        raise LetThroughError(f"{what}: let through as {str(value)[:300]}")
    if kind == SAME and not alike(value, expected):
        raise LetThroughError(f"{what}: read as {str(value)[:300]}, not {str(expected)[:300]}")
    return "read"


def alike(a, b):
    """Return whether two values are equal, tables and arrays included."""
    if isinstance(a, pd.DataFrame):
        return a.equals(b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)
