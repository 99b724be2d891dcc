"""Verbs and types of options: numbers, paths, new files, names."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

from lib import files
from lib.errors import InputError, printable
from lib.names import did_you_mean, known

_LONGEST_NAME = 255  # bytes


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of an option, unless it is empty or its help tells it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not action.default or "default" in (action.help or "default"):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser with errors of one line; choices may be spelled as in ``lib.names``."""

    def error(self, message: str) -> None:
        """End with status 2."""
        self.exit(2, f"error: {printable(message)} (see {self.prog} --help)\n")

    def _get_value(self, action: argparse.Action, text: str) -> object:
        if action.choices and not isinstance(action, argparse._SubParsersAction):
            text = known(text, map(str, action.choices))  # float16 is fp16
        return super()._get_value(action, text)

    def _check_value(self, action: argparse.Action, value: str) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices)
            raise


def add_verb(verbs, name: str, text: str, call: Callable[[argparse.Namespace], int | None],
             **more: str) -> argparse.ArgumentParser:
    """Add a verb that ``call`` carries out and return its parser; ``text`` is its help.

    ``call`` returns an exit status, or nothing for 0.
    """
    if verbs.dest != "verb":  # python -m lib --help lists verbs in groups
        more["help"] = text
    verb = verbs.add_parser(name, description=text, formatter_class=Formatter, **more)
    verb.set_defaults(call=call, parser=verb)
    return verb


def option(verb, name: str, text: str = "", type: Callable = str, default: object = None,
           **more: object) -> None:
    """Add an option or argument to a parser or group; ``text`` is its help."""
    verb.add_argument(name, type=type, default=default, help=text, **more)


def flag(verb, name: str, text: str) -> None:
    """Add an option that is on where it is given."""
    verb.add_argument(name, action="store_true", help=text)


def parameters(verb, text: str) -> None:
    """Add papermill's option ``-p NAME VALUE``, which may be given several times."""
    verb.add_argument("-p", "--parameters", nargs=2, action="append", default=[],
                      metavar=("NAME", "VALUE"), help=text)


def note(text: object) -> None:
    """Print a line beside the answer, to stderr."""
    print(text, file=sys.stderr, flush=True)


def number(least: float = 0.0, most: float = 1e9, above: bool = False,
           kind: type = float) -> Callable[[str], float]:
    """Return the type of finite numbers from ``least`` (``above``: larger) to ``most``."""
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if least <= value <= most and not (above and value == least):
            return value
        what, start = "whole number" if kind is int else "number", "above" if above else "from"
        raise argparse.ArgumentTypeError(
            f"{text!r} is no {what} {start} {least:.10g} to {most:.10g}")
    return read


def whole(least: int, most: int = 1_000_000_000) -> Callable[[str], int]:
    """Return the type of whole numbers from ``least`` to ``most``."""
    return number(least, most, kind=int)


def a_path(text: str) -> Path:
    """Read the path of a file or folder; one that no file system could hold is refused."""
    too_long = any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in Path(text).parts)
    if not text.strip() or "\0" in text or too_long:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no path")
    return Path(text)


def new_file(text: str) -> Path:
    """Read the path of a file to write, which must not be there yet."""
    try:
        return files.check_new(a_path(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder_name(text: str) -> str:
    """Read the name of a folder of the project; no path."""
    if not re.fullmatch(files.NAME, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: up to a hundred letters, digits, "
                                         "dots, dashes and underscores, a letter or digit first")
    return text


def names(text: str) -> list[str]:
    """Read different names with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of names with commas, each there once")
    return parts
