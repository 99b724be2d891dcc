"""Run notebooks for the report: strict parameters, a process each, every outcome in a manifest."""

import itertools
import math
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # of pydantic; before Python 3.12 it needs this one

from lib import execution, locks, paths, store
from lib.config import base, definitions, notebooks
from lib.errors import InputError, choices, one_line, refused
from lib.names import did_you_mean
from lib.report.notebook import KEYS_MIME


@dataclass(frozen=True)
class Job:
    """One execution of one notebook. ``stem`` names its executed file; ``values`` are its parameters."""

    notebook: str
    stem: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Return the papermill line that does the same."""
        return shlex.join(["papermill", f"notebooks/{self.notebook}.ipynb", "out.ipynb", *self.arguments])

    @property
    def arguments(self) -> list[str]:
        """Return the parameters as papermill's arguments; text that it would take for a number goes as raw text."""
        return [word for name, value in self.values.items() for word in (_flag(value), name, str(value))]


def _flag(value: Any) -> str:
    if not isinstance(value, str):
        return "-p"
    try:
        float(value)
    except ValueError:
        return "-r" if value in ("True", "False", "None") else "-p"
    return "-r"


class Outcome(base.Strict):
    """How a job ended; one entry of the manifest. ``error`` says why where the status is failed."""

    notebook: base.PlainName
    stem: base.PlainName
    command: str
    values: dict[str, Any]
    status: Literal["ok", "failed"]
    error: str
    seconds: float
    finished_utc: str


class KeyNumber(TypedDict):
    """A key number as an executed notebook recorded it."""

    value: float | str
    unit: str
    tolerance: float | None


def plan(full: bool, names: Iterable[str], workloads: list[str], devices: list[str], extra: dict[str, Any]) -> list[Job]:
    """Return the jobs of the report in its order, each checked against its notebook's parameters.

    ``names`` limits it to some notebooks (01 or 01_machine). ``extra`` are parameters for all of them that have them;
    one that none has is refused. Raises InputError.
    """
    sections = _chosen(definitions.load_report_plan().sections, list(names))
    declared = {name for section in sections for name in notebooks.notebook_model(section.notebook).model_fields}
    if unknown := set(extra) - declared:
        raise InputError(f"no chosen notebook has the parameter {choices(sorted(unknown))}; "
                         f"there are: {choices(sorted(declared))}{did_you_mean(min(unknown), declared)}")
    for workload in workloads:
        definitions.workload(workload)
    return [job for section in sections for job in _jobs(section, full, workloads, devices, extra)]


def _chosen(sections: tuple[definitions.Section, ...], names: list[str]) -> list[definitions.Section]:
    for name in names:
        if not any(section.notebook.startswith(name) for section in sections):
            raise InputError(f"no notebook {name!r} in params/report.yaml; there are: {choices(s.notebook for s in sections)}")
    return [section for section in sections if not names or section.notebook.startswith(tuple(names))]


def _jobs(section: definitions.Section, full: bool, workloads: list[str], devices: list[str], extra: dict) -> Iterator[Job]:
    model = notebooks.notebook_model(section.notebook)
    for workload in workloads if "workloads" in section.over else [""]:
        for device in devices if "devices" in section.over else [""]:
            over = {"workload": workload, "device": device}
            values = {**{key: value for key, value in over.items() if value}, **(section.full if full else section.quick),
                      **{key: value for key, value in extra.items() if key in model.model_fields}}
            checked = base.build(model, values, section.notebook)
            if "workload" in model.model_fields:
                definitions.workload(checked.workload)
            stem = "_".join(filter(None, (section.notebook, workload, device.replace(":", "-"))))
            yield Job(section.notebook, stem, values)


def execute(job: Job, folder: Path, output: Path | None = None, threads: int = 0) -> Outcome:
    """Run one job in a process of its own and keep the executed notebook in ``folder``, also when it fails.

    ``output`` moves what the notebook writes (see LIB_OUTPUT). ``threads`` (0: as torch chooses) are for notebooks beside
    each other, whose threads would wait for one another at every barrier.
    """
    environment = {"LIB_BATCH": "1", "MPLBACKEND": "agg", **({"LIB_OUTPUT": str(output)} if output else {}),
                   **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    begin, reason = time.monotonic(), ""
    try:
        execution.execute_notebook(paths.NOTEBOOKS / f"{job.notebook}.ipynb", folder / f"{job.stem}.ipynb", job.values,
                                   paths.ROOT, environment)
    except (InputError, execution.ExecutionError) as error:
        reason = str(error)
    return Outcome(notebook=job.notebook, stem=job.stem, command=job.command, values=job.values, error=reason,
                   status="failed" if reason else "ok", seconds=round(time.monotonic() - begin, 1),
                   finished_utc=store.utc_now())


def read(executed: Path) -> Any:
    """Return an executed notebook; InputError for what is none."""
    import nbformat

    with refused(f"{executed} is no executed notebook: "):
        notebook = nbformat.read(executed, as_version=4)
        nbformat.validate(notebook)
        return notebook


def outputs(executed: Path) -> Iterator[Mapping[str, Any]]:
    """Yield every output of an executed notebook."""
    for cell in read(executed).cells:
        yield from cell.get("outputs", ())


def keys(executed: Path) -> dict[str, KeyNumber]:
    """Return the key numbers that an executed notebook recorded; empty when it did not get that far."""
    recorded = [output["data"][KEYS_MIME] for output in outputs(executed) if KEYS_MIME in output.get("data", {})]
    try:
        return TypeAdapter(dict[str, KeyNumber]).validate_python(recorded[-1] if recorded else {})
    except ValidationError as error:
        raise InputError(f"{executed}: its key numbers are damaged: {one_line(error)}") from None


def manifest(folder: Path) -> list[Outcome]:
    """Return the outcomes of the runs in ``folder``, in the order of the report; InputError for a damaged manifest."""
    path = folder / "manifest.json"
    entries = store.read_json(path) if path.is_file() else []
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list of runs, not {str(entries)[:60]!r}")
    return [base.build(Outcome, base.mapping(entry, path), str(path)) for entry in entries]


def _side_by_side(jobs: list[Job]) -> Iterator[list[list[Job]]]:
    """Yield, notebook by notebook, what is measured at once: all but the GPUs in one row of jobs, then a row a GPU."""
    for _, group in itertools.groupby(jobs, lambda job: job.notebook):
        rows: dict[str, list[Job]] = {}
        for job in group:
            device = str(job.values.get("device", ""))
            rows.setdefault(device if device.startswith("cuda") else "", []).append(job)
        if "" in rows:
            yield [rows.pop("")]
        if rows:
            yield list(rows.values())


def run(jobs: list[Job], folder: Path, output: Path | None = None, parallel: int = 1, cores: int = 0) -> list[Outcome]:
    """Run jobs, show progress, and update the folder's manifest: ``parallel`` at once for replays; else the GPUs alone.

    Several GPUs share ``cores`` (0: each has as many threads as torch chooses). A failing job does not stop the others. Returns
    this run's outcomes.
    """
    from tqdm import tqdm

    done: list[Outcome] = []
    reporting, stop = threading.Lock(), threading.Event()

    def one_after_another(row: list[Job], threads: int) -> None:
        for job in row:
            if stop.is_set():
                return
            outcome = execute(job, folder, output, threads)
            with reporting:
                done.append(outcome)
                bar.update()
                bar.write(f"{outcome.status:>6} {outcome.seconds:6.1f} s  {outcome.stem}"
                          + (f"  {outcome.error}" if outcome.error else ""), file=sys.stderr)
                _merge(done, folder)

    waves = [[[job] for job in reversed(jobs)]] if parallel > 1 else list(_side_by_side(jobs))  # the last replays take longest
    most = parallel if parallel > 1 else max(map(len, waves), default=1)
    with ThreadPoolExecutor(most) as pool, tqdm(total=len(jobs), unit="notebook", disable=None) as bar:
        try:
            for wave in waves:
                threads = 1 if parallel > 1 else -(-cores // len(wave)) if len(wave) > 1 else 0
                for ended in as_completed([pool.submit(one_after_another, row, threads) for row in wave]):
                    ended.result()
        except BaseException:  # Ctrl-C, a full disk: what still runs would run for nobody
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            execution.end_all()
            raise
    order = [job.stem for job in jobs]
    return sorted(done, key=lambda outcome: order.index(outcome.stem))


def _merge(done: list[Outcome], folder: Path) -> None:
    """Merge outcomes into the manifest, which other processes merge theirs into: a job that ran again replaces its entry."""
    order = {section.notebook: number for number, section in enumerate(definitions.load_report_plan().sections)}
    path = folder / "manifest.json"
    with locks.writer(path, locks.PATIENCE_S):
        entries = {entry.stem: entry for entry in [*manifest(folder), *done]}
        ranked = sorted(entries.values(), key=lambda entry: (order.get(entry.notebook, len(order)), entry.stem))
        store.write_json([entry.model_dump() for entry in ranked], path)


def moved(folder: Path, outcomes: list[Outcome]) -> list[str]:
    """Compare the key numbers of replayed notebooks with the committed ones; return a line for each that moved.

    Numbers without a tolerance are timings and are not compared.
    """
    committed, lines = store.read_json(paths.REFERENCE / "keys.json"), []
    for outcome in outcomes:
        if outcome.status != "ok":
            lines.append(f"{outcome.stem}: {outcome.error}")
            continue
        then, now = committed.get(outcome.stem, {}), _compared(folder, outcome)
        words = [f"{name!r} is no longer recorded" for name in then if name not in now]
        words += [f"{name!r} is new ({now[name]['value']:g}); accept it with --accept" for name in now if name not in then]
        words += [f"{name!r} moved from {old['value']:g} to {now[name]['value']:g} (tolerance {old['tolerance']:.1%})"
                  for name, old in then.items() if name in now and not math.isclose(
                      now[name]["value"], old["value"], rel_tol=0, abs_tol=old["tolerance"] * abs(old["value"]) + 1e-12)]
        lines += [f"{outcome.stem}: {text}" for text in words]
    return lines


def shown(folder: Path, outcome: Outcome) -> list[str]:
    """Return the key numbers of a replayed notebook that are compared, a line each."""
    return [f"  {name}: {item['value']:.4g} {item['unit']}" for name, item in _compared(folder, outcome).items()]


def _compared(folder: Path, outcome: Outcome) -> dict[str, KeyNumber]:
    recorded = keys(folder / f"{outcome.stem}.ipynb")
    return {name: item for name, item in recorded.items() if item["tolerance"] is not None}



def accept(folder: Path, outcomes: list[Outcome]) -> Path:
    """Write the key numbers of replayed notebooks as the committed ones; those of notebooks that were not replayed stay."""
    path = paths.REFERENCE / "keys.json"
    replayed = {outcome.stem: _compared(folder, outcome) for outcome in outcomes if outcome.status == "ok"}
    return store.write_json({**(store.read_json(path) if path.is_file() else {}), **replayed}, path)
