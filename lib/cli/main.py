"""The parser of ``python -m lib`` and its exit statuses."""

import argparse
import re
import sys
import textwrap

from lib import __version__
from lib.cli import dashboard, exchange, finetune, layer_power, measure, predict, report, schedule, work
from lib.errors import InputError, printable
from lib.names import did_you_mean

_GROUPS = {"notebooks": [report], "measure": [measure], "predict": [predict, layer_power], "schedule": [schedule],
           "train": [finetune, dashboard], "data": [work, exchange]}
_SHORT_HELP = """\
python -m lib advise resnet50 --device t4   how long a network takes on a device, and what to change
python -m lib run --report                  run all notebooks here and assemble the report
python -m lib --help                        all verbs
python -m lib VERB --help                   the options of a verb"""


def _say(error: Exception | str) -> None:
    """Print an error as one line; what it repeats of the input may hold line breaks or control a terminal."""
    print(f"error: {printable(str(error))}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to read more."""

    def error(self, message: str) -> None:
        """End with status 2."""
        _say(f"{message} (see {self.prog} --help)")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: str) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices)
            raise


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m lib", formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Measure, explain, predict and place neural-network work.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb", help="one of those below")
    lines: list[str] = []
    for group, modules in _GROUPS.items():
        before = set(verbs.choices)
        for module in modules:
            module.add(verbs)
        lines.append(f"\n{group}:")
        for name in verbs.choices:
            if name not in before:
                lines.append(textwrap.fill(verbs.choices[name].description, 100, initial_indent=f"    {name:<13}",
                                           subsequent_indent=" " * 17))
    lines.append("\nEach verb has its own --help; docs/ says more, docs/glossary.md what words mean.")
    parser.epilog = "\n".join(lines).strip()
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return the exit status: 0 done, 1 something failed, 2 wrong input, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(_SHORT_HELP)
        return 0
    dashed = [re.sub(r"^--[\w-]+", lambda match: match[0].replace("_", "-"), text) for text in arguments]
    options, unknown = _parser().parse_known_args(dashed)
    if unknown:
        near = did_you_mean(unknown[0], re.findall(r"--[\w-]+", options.parser.format_help()))
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
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
