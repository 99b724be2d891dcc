"""How a notebook is executed: by papermill, with declared parameters alone, and one line for whatever went wrong.

It runs in a process of its own (``python -m lib.execution REQUEST_AS_JSON``), which ends as soon as the process that it works
for is gone, however that went, and takes its kernel and whatever the kernel started along.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lib import files, paths
from lib.errors import InputError, choices, death, one_line, printable, refused

_LONGEST = 2000  # characters of a reason
_FAILED, _INPUT = 1, 2
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_running: set[subprocess.Popen] = set()


class ExecutionError(RuntimeError):
    """Raised for a notebook that did not run to its end; the message is one line, and never empty."""


def execute_notebook(source: Path, target: Path, parameters: Mapping[str, Any], cwd: Path,
                     environment: Mapping[str, str] | None = None, offered: Mapping[str, Any] | None = None) -> None:
    """Execute ``source`` in a kernel that starts in ``cwd`` and keep the executed notebook at ``target``, also when it fails.

    ``environment`` are variables for it; ``offered`` parameters are given where it declares them and has no others of that
    name. Raises InputError for what is no notebook, a parameter that it does not declare or a
    kernel that is not installed, ExecutionError for one that failed.
    """
    if not source.is_file():
        raise InputError(f"{source} is missing")
    target = files.folder(target.parent).resolve() / target.name
    if target == source.resolve():
        raise InputError(f"{source} would be replaced by its own execution; give another target")
    with files.writing(target):
        target.unlink(missing_ok=True)
    request = json.dumps([str(source.resolve()), str(target), dict(parameters), str(cwd.resolve()), dict(offered or {})])
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        status, answer = _child(request, {**os.environ, **(environment or {})}, log)
        if status:
            log.seek(0)
            last = log.read().strip().rpartition("\n")[2]
            reason = answer or f"the notebook's process {death(status)}" + (f": {last}" if last else "")
            raise (InputError if status == _INPUT else ExecutionError)(printable(" ".join(reason.split()))[:_LONGEST])


def _child(request: str, environment: Mapping[str, str], log: IO[str]) -> tuple[int, str]:
    """Run a request in a process of its own; return its exit status and its answer; ``log`` gets what it writes besides.

    Its stdin is a pipe that it watches and whose other end only this process holds. In a session of its own it does not see a
    terminal's Ctrl-C, which is for this process.
    """
    with subprocess.Popen([sys.executable, "-m", "lib.execution", request], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=log, text=True, errors="replace", cwd=paths.ROOT, env=environment,
                          start_new_session=True) as child:
        _running.add(child)
        try:
            answer = child.stdout.read()
            return child.wait(), answer
        finally:
            _running.discard(child)


def end_all() -> None:
    """End every notebook that this process is executing, in whatever thread."""
    for child in list(_running):
        child.stdin.close()


def _end_with_leader() -> None:
    """Wait until the process that holds the other end of stdin is gone; then end this one and all that it started."""
    import psutil

    while os.read(0, 1):
        pass
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(_FAILED)


def _kernel_manager() -> type:
    """Return the manager of a kernel that talks encrypted, and that Linux ends with this process.

    Elsewhere ipykernel looks for its parent each second.
    """
    import zmq
    from jupyter_client import AsyncKernelManager

    libc, this = ctypes.CDLL(None), os.getpid()

    def end_with_parent() -> None:
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != this:  # it was gone before
            os._exit(_FAILED)

    how = {"transport_encryption": "auto" if zmq.has("curve") else "disabled",
           **({"preexec_fn": end_with_parent} if sys.platform == "linux" else {})}

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options: Any) -> None:
            await self._async_start_kernel(**options, **how)

    return Manager


def _execute(source: Path, target: Path, parameters: Mapping[str, Any], cwd: str,
             offered: Mapping[str, Any] | None = None) -> None:
    """Execute a notebook in this process, as ``execute_notebook`` says."""
    import papermill

    _check(source)
    declared = papermill.inspect_notebook(_literal(source)) if parameters or offered else {}
    parameters = {name: value for name, value in (offered or {}).items() if name in declared} | dict(parameters)
    if unknown := set(parameters) - set(declared):
        raise InputError(f"{source.name} has no parameter {choices(sorted(unknown))}; there are: {choices(declared)}")
    partial = target.with_name(f".{target.stem}.partial.ipynb")
    try:
        failure = _failure(source, partial, parameters, cwd)
        with files.writing(target):
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    if failure:
        raise ExecutionError(failure)


def _failure(source: Path, target: Path, parameters: Mapping[str, Any], cwd: str) -> str:
    """Execute a notebook to ``target`` with papermill, as far as it goes; return why it failed, empty where it did not."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel, find_kernel_specs
    from nbclient.exceptions import DeadKernelError

    try:
        papermill.execute_notebook(_literal(source), _literal(target), dict(parameters), cwd=cwd, progress_bar=False,
                                   log_output=False, request_save_on_cell_execute=True, autosave_cell_every=0,
                                   kernel_manager_class=_kernel_manager())
    except papermill.PapermillExecutionError as error:
        return _reason(error)
    except DeadKernelError:
        return "the kernel died: out of memory?"
    except NoSuchKernel as error:
        raise InputError(f"{source.name} asks for the kernel {error.name!r}, which is not installed; there are: "
                         f"{choices(sorted(find_kernel_specs()))}") from None
    return ""


def _reason(error: Any) -> str:
    """Return why a cell failed: its error and the message or, where there is none, which cell it was."""
    name, message = error.ename or "an error", str(error.evalue or "").strip()
    return f"{name}: {message}" if message else f"{name} without a message, in cell [{error.exec_count}]"


def _check(source: Path) -> None:
    """Raise InputError for a file that is no notebook, or one that names no kernel."""
    import nbformat

    with refused(f"{source} is no notebook: "):
        notebook = nbformat.read(source, as_version=4)
    if not notebook.metadata.get("kernelspec", {}).get("name"):
        raise InputError(f"{source.name} names no kernel; open it in JupyterLab, choose one, and save it")


def _literal(path: Path) -> str:
    """Return a path as papermill takes it, which puts parameters in for names in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def main(arguments: list[str]) -> int:
    """Execute the one notebook of a request; where that fails, stdout says why and the exit status of what kind it is."""
    answer = os.dup(1)
    os.dup2(2, 1)  # from here on stdout is the kernel's, and of the libraries
    sys.modules["rfc3987_syntax"] = None  # optional in jsonschema, which would build its grammar of IRIs for a second
    threading.Thread(target=_end_with_leader, daemon=True).start()
    source, target, parameters, cwd, offered = json.loads(arguments[0])
    try:
        _execute(Path(source), Path(target), parameters, cwd, offered)
        return 0
    except Exception as error:  # also of papermill and of what it stands on: a kernel that does not start
        reason = str(error) if isinstance(error, InputError | ExecutionError) else one_line(error)
        os.write(answer, reason.encode(errors="replace"))
        return _INPUT if isinstance(error, InputError) else _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
