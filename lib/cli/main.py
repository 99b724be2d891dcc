"""The parser of ``python -m lib`` and its exit statuses."""

import argparse
import re
import sys
import textwrap

from lib import __version__
from lib.cli import (
    dashboard,
    data,
    finetune,
    layer_power,
    measure,
    predict,
    report,
    schedule,
)
from lib.cli.options import Parser
from lib.errors import InputError, printable
from lib.names import did_you_mean

_GROUPS = {"notebooks": [report], "measure": [measure], "predict": [predict, layer_power],
           "schedule": [schedule], "train": [finetune, dashboard], "data": [data]}
_SHORT_HELP = """\
python -m lib advise resnet50 --device t4   how long a network takes on a device, and what to change
python -m lib run --report                  run all notebooks here and assemble the report
python -m lib --help                        all verbs
python -m lib VERB --help                   the options of a verb"""


def _say(error: Exception | str) -> None:
    """Print an error as one line without control characters."""
    print(f"error: {printable(str(error))}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m lib", formatter_class=argparse.RawDescriptionHelpFormatter,
                    description="Measure, explain, predict and place neural-network work.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb",
                                  help="one of those below")
    lines = []
    for group, modules in _GROUPS.items():
        before = set(verbs.choices)
        for module in modules:
            module.add(verbs)
        lines.append(f"\n{group}:")
        lines += [textwrap.fill(verb.description, 100, initial_indent=f"    {name:<13}",
                                subsequent_indent=" " * 17)
                  for name, verb in verbs.choices.items() if name not in before]
    lines.append("\nEach verb has its own --help; docs/ says more, docs/glossary.md explains terms.")
    parser.epilog = "\n".join(lines).strip()
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return 0: done, 1: something failed, 2: wrong input, 130: interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(_SHORT_HELP)
        return 0
    dashed = [re.sub(r"^--[\w-]+", lambda match: match[0].replace("_", "-"), text)
              for text in arguments]
    options, unknown = _parser().parse_known_args(dashed)
    if unknown:
        near = did_you_mean(unknown[0], re.findall(r"--[\w-]+", options.parser.format_help()))
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    try:
        status = options.call(options)
        if sys.stdout:
            sys.stdout.flush()  # fails here if nobody reads it
        return int(status or 0)
    except InputError as error:
        _say(error)
        return 2
    except BrokenPipeError:
        sys.stdout = None  # the interpreter would flush it again at its end
        _say("standard output was closed before all was written to it")
        return 1
    except OSError as error:
        if "temporary directory" in str(error):  # as tempfile says it
            _say(f"{error}; name a folder that can be written in TMPDIR")
            return 2
        _say(error)
        return 1
    except (MemoryError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        _say(f"{type(error).__name__}: {reason}")
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return 130
