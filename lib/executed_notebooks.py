"""Executed notebooks: run a notebook with papermill in a process of its own, read its outputs, show its cells as HTML."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lib import files, paths
from lib.errors import InputError, choices, death, printable, refused

_TAGS = ["a", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3", "h4", "h5",
         "h6", "hr", "i", "li", "ol", "p", "pre", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th",
         "thead", "tr", "ul"]
_ATTRIBUTES = {"*": ["class"], "a": ["href"], "td": ["colspan", "rowspan"], "th": ["colspan", "rowspan"]}
_SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_LONGEST = 2000  # characters of an error
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ExecutionError(RuntimeError):
    """Raised for a notebook that did not run to its end; the message is one line."""


def execute(source: Path, target: Path, parameters: Mapping[str, Any], cwd: Path = paths.ROOT,
            environment: Mapping[str, str] | None = None) -> None:
    """Execute a notebook with papermill and keep the executed notebook at ``target``, also when it fails.

    Args:
        source: the notebook.
        target: the executed notebook, which replaces what is there.
        parameters: values for its parameters cell.
        cwd: the folder in which its kernel starts.
        environment: variables beside those of this process.

    Raises:
        InputError: for a missing notebook, or a target that is its source.
        ExecutionError: for a notebook that failed.
    """
    if not source.is_file():
        raise InputError(f"{source} is missing")
    target = files.folder(target.parent).resolve() / target.name
    if target == source.resolve():
        raise InputError(f"{source} would be replaced by its own execution; give another target")
    partial = target.with_name(f".{target.stem}.partial.ipynb")  # a killed run leaves the earlier notebook as it was
    # Figures are drawn by the kernel's own backend, whatever backend the caller's terminal has.
    variables = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"} | dict(environment or {})
    with tempfile.TemporaryFile("w+", errors="replace") as log, tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
        yaml.safe_dump(dict(parameters), values)
        values.flush()
        command = [sys.executable, "-m", "papermill", _literal(source), _literal(partial), "--cwd", str(cwd),
                   "--no-progress-bar", "-f", values.name]
        ended = subprocess.run(command, check=False, cwd=paths.ROOT, env=variables, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=log,
                               preexec_fn=end_with_parent)
        log.seek(0)
        reason = _reason(partial, ended.returncode, log.read()) if ended.returncode else ""
    with files.writing(target):
        if partial.is_file():
            partial.replace(target)
        else:  # papermill did not begin
            target.unlink(missing_ok=True)
    if reason:
        raise ExecutionError(reason)


def declared_parameters(source: Path) -> list[str]:
    """Names that a notebook's parameters cell declares."""
    import papermill

    with refused(f"{source} is no notebook: "):
        return list(papermill.inspect_notebook(_literal(source)))


def check_declared(source: Path, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names that a notebook declares; InputError for a parameter that it does not have."""
    declared = declared_parameters(source)
    if unknown := sorted(set(parameters) - set(declared)):
        raise InputError(f"{source.name} has no parameter {choices(unknown)}; there are: {choices(declared)}")
    return declared


def _literal(path: Path) -> str:
    """Escape braces, in which papermill fills in parameters."""
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


def end_with_parent() -> None:
    """Ask Linux to end this process, which was just started, when its parent is killed; nothing elsewhere."""
    if _libc:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _reason(executed: Path, status: int, log: str) -> str:
    """Say in one line why papermill failed: the error of a cell, or papermill's last line."""
    if "DeadKernelError" in log:
        return "the kernel died: out of memory?"
    errors = [output for output in outputs(executed) if output["output_type"] == "error"] if executed.is_file() else []
    if errors:
        text = f"{errors[-1]['ename']}: {errors[-1]['evalue']}".removesuffix(": ")
    else:
        text = log.strip().rpartition("\n")[2] or f"papermill {death(status)}"
    return printable(" ".join(text.split()))[:_LONGEST]


def read(path: Path) -> Any:
    """Read a notebook file; InputError for a damaged one."""
    import nbformat

    with refused(f"{path} is no notebook: "):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook


def outputs(path: Path) -> list[Any]:
    """All outputs of an executed notebook in their order."""
    return [output for cell in read(path).cells for output in cell.get("outputs", ())]


def cells_to_html(cells: list[Any]) -> str:
    """Convert cells by nbconvert: text, tables, pictures as data, folded code. Scripts, styles and forms are left out."""
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors.sanitize import SanitizeHTML
    from traitlets.config import Config

    for output in (output for cell in cells for output in cell.get("outputs", ())):
        if "text/html" in output.get("data", {}):  # the sanitizer would keep the text of a style sheet
            output.data["text/html"] = re.sub(r"<(style|script)\b.*?</\1\s*>", "", output.data["text/html"],
                                              flags=re.S | re.I)
    exporter = HTMLExporter(template_name=paths.TEMPLATE.name, extra_template_basedirs=[str(paths.TEMPLATE.parent)],
                            sanitize_html=True, exclude_input_prompt=True, exclude_output_prompt=True,
                            exclude_anchor_links=True,
                            config=Config({"NbConvertBase": {"display_data_priority": _SHOWN}}))
    sanitizer = SanitizeHTML(tags=_TAGS, attributes=_ATTRIBUTES, strip=True)
    exporter.register_filter("clean_html", lambda html: sanitizer.sanitize_html_tags(str(html)))
    return exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))[0]
