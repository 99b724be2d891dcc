"""The parser of ``python -m lib`` and its exit statuses."""

import argparse
import sys

from lib.cli import dashboard, exchange, finetune, gpu, layer_power, measure, predict, report, schedule, work
from lib.errors import InputError, printable


def _say(error: Exception | str) -> None:
    """Print an error as one line; what it repeats of the input may hold line breaks or control a terminal."""
    print(f"error: {printable(str(error))}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to read more."""

    def error(self, message: str) -> None:
        """End with status 2."""
        _say(f"{message} (see {self.prog} --help)")
        self.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m lib",
                                     description="Measure, explain, predict and place neural-network work.",
                                     epilog="Each verb has its own --help; docs/ says more, docs/glossary.md what words mean.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for room in (measure, report, work, predict, layer_power, schedule, finetune, dashboard, exchange, gpu):
        room.add(verbs)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return the exit status: 0 done, 1 something failed, 2 wrong input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        status = options.call(options)
        if sys.stdout:
            sys.stdout.flush()  # what has no reader fails here, where it is told
        return int(status or 0)
    except InputError as error:
        _say(error)
        return 2
    except BrokenPipeError:
        sys.stdout = None  # what is still to be written to it has no reader; the interpreter would try again at its end
        _say("standard output was closed before all was written to it")
        return 1
    except OSError as error:
        no_folder = "temporary directory" in str(error)  # as tempfile says it
        _say(f"{error}; name a folder that can be written in TMPDIR" if no_folder else error)
        return 1 + no_folder
    except (MemoryError, ImportError) as error:
        _say(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'out of memory'}")
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return 130
