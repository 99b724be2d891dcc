"""The line that replaces a figure or a sentence when its rows are missing."""

from collections.abc import Callable
from functools import wraps
from typing import Any


class Missing(str):
    """The line: text as it is among sentences, and what a notebook shows in place of a figure."""

    __slots__ = ()


class MissingError(Exception):
    """Raised by a function marked with ``needs`` where it has rows, but none that it can show; it says what is missing."""


def needs(what: str) -> Callable[[Callable], Callable]:
    """Mark a figure or a sentence that shows tables of ``what``: where one has no rows it returns a Missing instead."""
    def mark(function: Callable) -> Callable:
        @wraps(function)
        def shown(*args: Any, **kwargs: Any) -> Any:
            try:
                if any(hasattr(value, "iloc") and not len(value) for value in (*args, *kwargs.values())):
                    raise MissingError(what)
                return function(*args, **kwargs)
            except MissingError as error:
                return Missing(f"Nothing to show: no {error}.")
        return shown
    return mark
