"""What verbs share: how they and their options are added, and how they read numbers, paths, new files, names, parameters."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lib import files
from lib.errors import InputError
from lib.names import known

Option = tuple[tuple[str, ...], dict[str, Any]]  # names and keywords of add_argument
_LONGEST_NAME = 255  # bytes


def add_verb(verbs, call: Callable[[argparse.Namespace], int | None], name: str, text: str, *options: Option | list[Option],
             epilog: str = "") -> None:
    """Add a verb that ``call`` carries out: it returns an exit status, or nothing for 0; ``text`` is its help.

    Of a list of options at most one may be given.
    """
    listed = {} if verbs.dest == "verb" else {"help": text}  # python -m lib --help lists verbs in groups
    verb = verbs.add_parser(name, description=text, epilog=epilog, **listed)
    verb.set_defaults(call=call, parser=verb)
    for item in options:
        group = verb.add_mutually_exclusive_group() if isinstance(item, list) else verb
        for flags, how in item if isinstance(item, list) else [item]:
            group.add_argument(*flags, **how)


def note(text: object) -> None:
    """Print a line beside the answer, to stderr."""
    print(text, file=sys.stderr, flush=True)


def verdicts(table) -> str:
    """Return how many rows of a table have each verdict."""
    return ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())


def number(least: float = 0.0, most: float = 1e9, above: bool = False, kind: type = float) -> Callable[[str], float]:
    """Return the reader of a finite number from ``least`` (``above``: larger than it) to ``most``."""
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (above and value == least):
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' * (kind is int)}number {'above' if above else 'from'} "
                                             f"{least:.10g} {'and up ' if above else ''}to {most:.10g}")
        return value
    return read


def whole(least: int, most: int = 1_000_000_000) -> Callable[[str], int]:
    """Return the reader of a whole number from ``least`` to ``most``."""
    return number(least, most, kind=int)


def a_path(text: str) -> Path:
    """Read the path of a file or folder; one that no file system could hold is refused here."""
    if not text.strip() or "\0" in text or any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in Path(text).parts):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no path")
    return Path(text)


def new_file(text: str) -> Path:
    """Read the path of a file to write; what is there already is not overwritten."""
    try:
        return files.check_new(a_path(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder_name(text: str) -> str:
    """Read the name of a folder of the project's own: no path."""
    if not re.fullmatch(files.NAME, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: up to a hundred letters, digits, dots, dashes and "
                                         "underscores, a letter or digit first")
    return text


def names(text: str) -> list[str]:
    """Read names with commas between them; each is there once, and none is empty."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names with commas, each there once")
    return parts


def option(name: str, text: str = "", read: Callable = str, default: object = None, **how: Any) -> Option:
    """Return an option or argument that ``read`` reads; its help is ``text`` and, where that tells none, the default."""
    read = partial(known, names=how["choices"]) if "choices" in how and read is str else read  # float16 is fp16
    stated = " (default: %(default)s)" if default and "default" not in text else ""
    return (name,), {"help": text + stated, "type": read, "default": default, **how}


def flag(name: str, text: str, *older: str) -> Option:
    """Return an option that is on where it is given, by its name or one of the ``older`` ones; ``text`` is its help."""
    return (name, *older), {"action": "store_true", "help": text}


def parameters(text: str) -> Option:
    """Return ``-p NAME VALUE``, which may be given several times; ``text`` is its help."""
    return ("-p", "--parameter"), {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE"), "help": text}


def assignments(pairs: list[list[str]]) -> dict[str, str]:
    """Return ``-p NAME VALUE`` pairs as a mapping; the last of a name counts."""
    return dict(pairs)
