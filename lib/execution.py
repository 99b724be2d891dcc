"""How a notebook is executed: by papermill, with declared parameters alone, and one line for whatever went wrong.

``python -m lib.execution SOURCE TARGET PARAMETERS_AS_JSON`` does the same in a process of its own.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.errors import InputError, choices


class ExecutionError(RuntimeError):
    """Raised for a notebook that did not run to its end; the message is one line."""


def execute_notebook(source: Path, target: Path, parameters: Mapping[str, Any], cwd: Path) -> None:
    """Execute ``source`` in a kernel that starts in ``cwd`` and keep the executed notebook at ``target``, also when it fails.

    Raises InputError for a missing notebook or a parameter that it does not declare, ExecutionError for one that failed.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    if not source.is_file():
        raise InputError(f"{source} is missing")
    declared = papermill.inspect_notebook(str(source)) if parameters else {}
    if unknown := set(parameters) - set(declared):
        raise InputError(f"{source.name} has no parameter {choices(sorted(unknown))}; there are: {choices(declared)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        papermill.execute_notebook(source.resolve(), target.resolve(), dict(parameters), cwd=cwd, progress_bar=False,
                                   log_output=False, request_save_on_cell_execute=False, autosave_cell_every=0)
    except papermill.PapermillExecutionError as error:
        raise ExecutionError(f"{error.ename}: {' '.join(str(error.evalue).split())}") from None
    except DeadKernelError:
        raise ExecutionError("the kernel died: out of memory?") from None


def main(arguments: list[str]) -> int:
    """Execute one notebook; the exit status is 1 and the last line of stderr says why when it failed."""
    source, target, parameters = arguments
    try:
        execute_notebook(Path(source), Path(target), json.loads(parameters), Path.cwd())
    except (InputError, ExecutionError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
