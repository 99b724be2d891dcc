"""InputError, the error of wrong input, and one-line texts of other failures."""

from collections.abc import Iterator
from contextlib import contextmanager

from lib.names import did_you_mean

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory", "bad_alloc")
_BROKEN = ("unspecified launch failure", "illegal memory access", "illegal instruction", "misaligned address",
           "device-side assert", "uncorrectable ecc", "hardware stack error", "launch timed out", "gpu is lost",
           "fallen off the bus", "cuda error: unknown error")
_LONGEST, _END = 2000, 500  # characters of a line that is read; the end says what would be right
_NO_SPACE = ("no space left on device", "disk quota exceeded", "disk is full")


class InputError(ValueError):
    """Wrong input, in one line: what is wrong, where, and what to do.

    The command line prints the line without a traceback and exits with 2; a notebook shows the line and fails. The message is
    made ``printable``, since it may quote anything, and a long one is cut in the middle.
    """

    def __init__(self, message: object):
        text = printable(str(message).strip())
        super().__init__(text if len(text) <= _LONGEST else f"{text[:_LONGEST - _END]} ... {text[-_END:]}")


def printable(text: str) -> str:
    """Return a text as one line that a terminal only shows: line breaks are spaces, what would control it is escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(text.splitlines()))


def one_line(error: BaseException, most: int = 200) -> str:
    """Return an error's type and the first line of its message, at most ``most`` printable characters."""
    line = "".join(letter for letter in (_text(error).strip().splitlines() or [""])[0][:most] if letter.isprintable())
    return f"{type(error).__name__}: {line}" if line else f"{type(error).__name__} without a message"


@contextmanager
def refused(before: str, after: str = "", most: int = 200) -> Iterator[None]:
    """Turn what this block raises (damaged files fail in many ways) into an InputError: ``before``, the error, ``after``.

    ``most``: characters of the error.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{before}{one_line(error, most)}{after}") from None


@contextmanager
def beginning(where: str, without: str = "") -> Iterator[None]:
    """Have an InputError of this block begin with ``where``, and leave out a text, such as a scratch folder's path."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {str(error).replace(without, '')}") from None


def _text(error: BaseException) -> str:
    """Return an error's message; empty if its ``__str__`` fails, as a user's own class may."""
    try:
        return str(error)
    except Exception:
        return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, the outermost first."""
    while error is not None:
        yield error
        error = error.__cause__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's, the system's, or torch's on any device."""
    text = _text(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def is_broken_device(error: BaseException) -> bool:
    """Return whether an error says that a GPU, or this process's use of it, is broken: all that it is given then fails."""
    text = _text(error).lower()
    return any(words in text for words in _BROKEN)


def is_no_space(reason: str) -> bool:
    """Return whether the reason of a failure is that a disk was full, the system's words or SQLite's: it may pass."""
    return any(words in reason.lower() for words in _NO_SPACE)


def death(status: int | None) -> str:
    """Return how a process ended, by its exit status (a signal is negative); it may stand after "the worker"."""
    if status is None or status >= 0:
        return f"ended with status {status}"
    return f"was killed (signal {-status}){': out of memory?' * (status == -9)}"


def entry(entries, name: object, what: str, where: str = "", advice: str = ""):
    """Return what a mapping has under a name, or a name in a list; InputError lists all, after ``where``, and the nearest."""
    if name not in entries:
        raise InputError(f"no {what} {name!r}{where and ' '}{where}; there are: {choices(entries) or 'none'}{advice}"
                         + did_you_mean(name, entries))
    return name if isinstance(entries, tuple | list) else entries[name]


def choices(values) -> str:
    """Return ``values`` as one readable list, ``a, b, c``, for the end of an error line."""
    return ", ".join(str(value) for value in values)
