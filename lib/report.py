"""The report: run the notebooks with papermill, join them with nbconvert, compare their key numbers."""

import itertools
import math
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lib import executed_notebooks, locks, paths, store
from lib.config import base, definitions, notebooks
from lib.config.notebooks import KEYS_MIME
from lib.errors import InputError, choices
from lib.executed_notebooks import cells_to_html, outputs, read
from lib.names import did_you_mean

SUMMARY = "00_summary"  # runs last, since it reads the key numbers of the others; the page shows it first
_NOT_SHOWN = {"try", "keys", "papermill-error-cell-tag"}  # tags of cells that the page leaves out


@dataclass(frozen=True)
class Job:
    """One execution of one notebook. ``stem`` names its executed file; ``values`` are its parameters."""

    notebook: str
    stem: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Parameters as papermill takes them: -r keeps text that papermill would read as a number."""
        words = []
        for name, value in self.values.items():
            is_odd = isinstance(value, str) and (
                not re.fullmatch(r"[A-Za-z_/][\w./,:+ -]*", value)
                or value.lower() in ("true", "false", "none", "nan", "inf", "infinity"))
            words += ["-r" if is_odd else "-p", name, str(value)]
        return words

    @property
    def command(self) -> str:
        """The papermill line that runs the same."""
        return shlex.join(["papermill", f"notebooks/{self.notebook}.ipynb", "out.ipynb", *self.arguments])


class Outcome(base.Strict):
    """How a job ended: one entry of ``manifest.json``. ``error`` is one line, empty where the status is ok."""

    notebook: base.PlainName
    stem: base.PlainName
    command: str
    values: dict[str, Any]
    status: Literal["ok", "failed"]
    error: str
    seconds: float
    finished_utc: str


# ---------------------------------------------------------------------------------------- the plan

def plan(full: bool, names: list[str], workloads: list[str], devices: list[str],
         extra: dict[str, Any], usual: dict[str, Any]) -> list[Job]:
    """List the executions of ``params/report.yaml`` in its order, each checked against its notebook's parameters.

    Args:
        full: the full parameter sets instead of the quick ones.
        names: notebooks by name or number (01 or 01_machine); empty: all.
        workloads: workload ids, for notebooks that run over workloads.
        devices: device ids, for notebooks that run over devices.
        extra: parameters for all chosen notebooks that declare them. InputError where none does.
        usual: parameters for all notebooks that declare them.
    """
    sections = definitions.load_report_plan().sections
    for name in names:
        if not any(section.notebook.startswith(name) for section in sections):
            raise InputError(f"no notebook {name!r} in params/report.yaml; there are: "
                             f"{choices(section.notebook for section in sections)}")
    chosen = [section for section in sections if not names or section.notebook.startswith(tuple(names))]
    declared = {name for section in chosen for name in notebooks.notebook_model(section.notebook).model_fields}
    if unknown := sorted(set(extra) - declared):
        raise InputError(f"no chosen notebook has the parameter {choices(unknown)}; "
                         f"there are: {choices(sorted(declared))}{did_you_mean(unknown[0], declared)}")
    for workload in workloads:
        definitions.workload(workload)
    return [job for section in chosen for job in _jobs(section, full, workloads, devices, usual | extra)]


def _jobs(section: definitions.Section, full: bool, workloads: list[str], devices: list[str],
          given: dict[str, Any]) -> Iterator[Job]:
    model = notebooks.notebook_model(section.notebook)
    over = [[{}], [{}]]
    for number, (name, every) in enumerate({"workload": workloads, "device": devices}.items()):
        if f"{name}s" in section.over:
            over[number] = [{name: given.get(name, value)} for value in (every[:1] if name in given else every)]
    for workload, device in itertools.product(*over):
        values = workload | device | (section.full if full else section.quick)
        values |= {name: value for name, value in given.items() if name in model.model_fields}
        checked = base.build(model, values, section.notebook)
        if "workload" in model.model_fields:
            definitions.workload(checked.workload)
        parts = [section.notebook, *workload.values(), *device.values()]
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", "_".join(parts))[:100]
        yield Job(section.notebook, stem, values)


# ---------------------------------------------------------------------------------------- running

def run(jobs: list[Job], folder: Path, output: Path | None = None, parallel: int = 1) -> list[Outcome]:
    """Execute jobs, ``parallel`` at a time, each in a process of its own; keep executed notebooks in ``folder``.

    A failing job does not stop the others. The folder's ``manifest.json`` and ``keys.json`` are updated.
    ``output`` replaces the folder that notebooks write to (LIB_OUTPUT).
    """
    from tqdm import tqdm

    manifest(folder)  # a damaged one is refused before the work
    done: list[Outcome] = []
    last = [job for job in jobs if job.notebook == SUMMARY]
    first = [job for job in jobs if job.notebook != SUMMARY]
    if parallel > 1:
        first.reverse()  # the last notebooks take longest
    with ThreadPoolExecutor(parallel) as pool, tqdm(total=len(jobs), unit="notebook", disable=None) as bar:
        try:
            for group in (first, last):
                for future in as_completed([pool.submit(_execute, job, folder, output, parallel) for job in group]):
                    outcome = future.result()
                    done.append(outcome)
                    bar.update()
                    bar.write(f"{outcome.status:>6} {outcome.seconds:6.1f} s  {outcome.stem}  {outcome.error}", sys.stderr)
                    _keep(outcome, folder)
        except BaseException:  # Ctrl-C, a full disk: start no more
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    stems = [job.stem for job in jobs]
    return sorted(done, key=lambda outcome: stems.index(outcome.stem))


def _execute(job: Job, folder: Path, output: Path | None, parallel: int) -> Outcome:
    """Execute one job, and describe how it ended."""
    environment = {"LIB_BATCH": "1"}
    if output:
        environment["LIB_OUTPUT"] = str(output)
    if parallel > 1:  # threads of notebooks beside each other would wait for one another
        environment["OMP_NUM_THREADS"] = "1"
    source, begin, error = paths.NOTEBOOKS / f"{job.notebook}.ipynb", time.monotonic(), ""
    try:
        executed_notebooks.execute(source, folder / f"{job.stem}.ipynb", job.values, paths.ROOT, environment)
    except (InputError, executed_notebooks.ExecutionError) as failure:
        error = str(failure)
    return Outcome(notebook=job.notebook, stem=job.stem, command=job.command, values=job.values, error=error,
                   status="failed" if error else "ok", seconds=round(time.monotonic() - begin, 1),
                   finished_utc=store.utc_now())


def _keep(outcome: Outcome, folder: Path) -> None:
    """Replace one job's entry in ``manifest.json`` and ``keys.json``; other processes may do the same."""
    order = {section.notebook: number for number, section in enumerate(definitions.load_report_plan().sections)}
    with locks.writer(folder / "manifest.json", locks.PATIENCE_S):
        source = outcome.values.get("source")  # a folder holds runs of one source: measured here, or replayed
        same = [entry for entry in manifest(folder) if entry.values.get("source") == source]
        entries = {entry.stem: entry for entry in [*same, outcome]}
        ranked = sorted(entries.values(), key=lambda entry: (order.get(entry.notebook, len(order)), entry.stem))
        store.write_json([entry.model_dump() for entry in ranked], folder / "manifest.json")
        if outcome.notebook != SUMMARY:
            path = folder / "keys.json"
            numbers = store.read_json(path) if path.is_file() else {}
            numbers[outcome.stem] = keys(folder, outcome.stem)
            store.write_json({stem: numbers[stem] for stem in entries if stem in numbers}, path)


def manifest(folder: Path) -> list[Outcome]:
    """Outcomes of the runs in ``folder``, in the order of the report; InputError for a damaged manifest."""
    path = folder / "manifest.json"
    entries = store.read_json(path) if path.is_file() else []
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list of runs, not {str(entries)[:60]!r}")
    return [base.build(Outcome, base.mapping(entry, path), str(path)) for entry in entries]


# ---------------------------------------------------------------------------------------- key numbers

def keys(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """Key numbers of an executed notebook: id -> value, unit, tolerance; empty where it did not get that far."""
    path = folder / f"{stem}.ipynb"
    if not path.is_file():
        return {}
    recorded = [output["data"][KEYS_MIME] for output in outputs(path) if KEYS_MIME in output.get("data", {})]
    numbers = recorded[-1] if recorded else {}
    if not isinstance(numbers, dict):
        raise InputError(f"{path}: its key numbers are damaged: {str(numbers)[:60]!r}")
    return numbers


def moved(folder: Path, outcomes: Iterable[Outcome]) -> list[str]:
    """Compare the key numbers of replayed notebooks with ``data/reference/keys.json``: one line per difference."""
    committed, lines = store.read_json(paths.REFERENCE / "keys.json"), []
    for outcome in outcomes:
        if outcome.status != "ok":
            lines.append(f"{outcome.stem}: {outcome.error}")
            continue
        then, now = committed.get(outcome.stem, {}), _reproducible(folder, outcome.stem)
        lines += [f"{outcome.stem}: {key} is no longer recorded" for key in then if key not in now]
        lines += [f"{outcome.stem}: {key} is new ({item['value']}); accept it with --accept"
                  for key, item in now.items() if key not in then]
        lines += [f"{outcome.stem}: {key} moved from {then[key]['value']} to {now[key]['value']} "
                  f"(tolerance {then[key]['tolerance']:.1%})" for key in then if key in now and not _equal(then[key], now[key])]
    return lines


def _reproducible(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    return {key: item for key, item in keys(folder, stem).items() if item["tolerance"] is not None}


def _equal(then: dict[str, Any], now: dict[str, Any]) -> bool:
    old, new = then["value"], now["value"]
    if isinstance(old, str) or isinstance(new, str):
        return old == new
    return math.isclose(new, old, rel_tol=0, abs_tol=then["tolerance"] * abs(old) + 1e-12)


def accept(folder: Path, outcomes: Iterable[Outcome]) -> Path:
    """Make the key numbers of replayed notebooks the committed ones; other notebooks' numbers stay."""
    path = paths.REFERENCE / "keys.json"
    replayed = {outcome.stem: _reproducible(folder, outcome.stem) for outcome in outcomes
                if outcome.status == "ok" and outcome.notebook != SUMMARY}
    return store.write_json((store.read_json(path) if path.is_file() else {}) | replayed, path)


# ---------------------------------------------------------------------------------------- the page

def page(folder: Path) -> tuple[str, list[str]]:
    """Join the executed notebooks of ``folder`` into one self-contained page; return it with one line per problem.

    Cells tagged ``open`` are shown; the cells between them are folded under their headings. Of a notebook that ran several
    times (over workloads or devices), each run is folded as a whole. Cells tagged ``once`` are shown in its first run alone,
    cells tagged ``last`` once, below all runs.
    Raises InputError when nothing has been run, or when a file is damaged.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    outcomes = manifest(folder)
    if not outcomes:
        raise InputError(f"nothing has been run yet: no manifest in {folder}; start with: python -m lib run")
    plan_of_report = definitions.load_report_plan()
    names = [section.notebook for section in plan_of_report.sections]
    sections = [_section(name, [outcome for outcome in outcomes if outcome.notebook == name], folder) for name in names]
    problems = [line for section in sections for line in section["problems"]]
    environment = Environment(loader=FileSystemLoader(paths.TEMPLATE), undefined=StrictUndefined, autoescape=True,
                              trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("page.html.j2")
    style = (paths.TEMPLATE / "style.css").read_text(encoding="utf-8")
    return template.render(title=plan_of_report.title, subtitle=plan_of_report.subtitle, sections=sections, style=style,
                           problems=problems, built_utc=store.utc_now(), git=store.git_state()), problems


def _section(name: str, outcomes: list[Outcome], folder: Path) -> dict[str, Any]:
    """Build one notebook's section: title, problems, and parts, which are (heading to fold under or "", HTML)."""
    section = {"name": name, "title": name, "parts": [], "problems": [], "runs": outcomes}
    runs = [(outcome, read(path).cells) for outcome in outcomes if (path := folder / f"{outcome.stem}.ipynb").is_file()]
    for outcome in outcomes:
        if outcome.status != "ok":
            section["problems"].append(f"{outcome.stem}: {outcome.error}")
        elif not (folder / f"{outcome.stem}.ipynb").is_file():
            section["problems"].append(f"{outcome.stem}: the executed notebook is missing")
    if not outcomes:
        section["problems"].append(f"{name}: has not been run")
    if not runs:
        return section
    question, *_ = runs[0][1]
    section["title"] = re.sub(r"^# ", "", question.source.partition("\n")[0])
    question.source = question.source.partition("\n")[2]
    runs = [(outcome, [cell for cell in cells if not _NOT_SHOWN & _tags(cell)]) for outcome, cells in runs]
    section["parts"].append(("", _html([question])))
    if len(runs) == 1:
        section["parts"] += _folded(runs[0][1][1:])
        return section
    for outcome, cells in runs:
        values = [str(outcome.values[key]) for key in ("workload", "device") if key in outcome.values]
        of_run = [cell for cell in cells if cell is not question and "last" not in _tags(cell)
               and ("once" not in _tags(cell) or outcome is runs[0][0])]
        section["parts"].append((" on ".join(values), _html(of_run)))
    section["parts"].append(("", _html([cell for cell in runs[-1][1] if "last" in _tags(cell)])))
    return section


def _tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def _folded(cells: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield (heading, HTML) of neighbouring cells; the heading is empty for cells tagged ``open``."""
    for is_open, neighbours in itertools.groupby(cells, lambda cell: "open" in _tags(cell)):
        group = list(neighbours)
        prose = "\n".join(cell.source for cell in group if cell.cell_type == "markdown")
        headings = re.findall(r"^##+ (.+)$", prose, re.M)
        yield "" if is_open else " · ".join(headings) or "Details", _html(group)


def _html(cells: list[Any]) -> str:
    """Convert cells to HTML; a link to another notebook leads to its section."""
    return re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="#\1"', cells_to_html(cells))
