"""The line that replaces a figure or a sentence when its rows are missing."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


class Missing(str):
    """The line: text as it is among sentences, and what a notebook shows in place of a figure."""

    __slots__ = ()


class MissingError(Exception):
    """Raised by a function marked with ``needs`` where it has rows, but none that it can show; it says what is missing."""


def needs(what: str, *optional: str) -> Callable[[Callable], Callable]:
    """Mark a figure or a sentence that shows tables of ``what``: without rows it returns a Missing instead.

    Every table that it is given must have rows, except for the parameters named in ``optional``.
    """
    def mark(function: Callable) -> Callable:
        signature = inspect.signature(function)

        @wraps(function)
        def shown(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            tables = [value for name, value in given.items() if hasattr(value, "iloc") and name not in optional]
            try:
                if any(not len(table) for table in tables):
                    raise MissingError(what)
                return function(*args, **kwargs)
            except MissingError as error:
                return Missing(f"Nothing to show: no {error}.")
        return shown
    return mark
