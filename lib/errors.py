"""The one error that people cause and people read."""


class InputError(ValueError):
    """A wrong input, told in one line: what was wrong, where, and what would be right.

    The command line prints it without a traceback and exits with 2; a notebook shows the line alone and fails.
    """


def choices(values) -> str:
    """Return ``values`` as one readable list, ``a, b, c``, for the end of an error line."""
    return ", ".join(str(value) for value in values)
