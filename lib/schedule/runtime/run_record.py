"""The record of a real run: its schedule, the schedule simulated beforehand, and how each job ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lib import files, store
from lib.config.base import Positive, Strict, load
from lib.errors import InputError, choices
from lib.measure import archive
from lib.schedule.simulation import trace
from lib.tables import columns

_SHOWN = 20
_LEAST_S = 1.0  # of a job whose error counts: start-up rules shorter ones
FOLDER = "schedule"
FILE = "ran.json"
PATTERN = f"{FOLDER}/**/{FILE}"  # below a machine's folder
Records = dict[tuple[str, str], "RunRecord"]  # by machine and run


class _End(Strict):
    job_id: str
    status: Literal["done", "failed"]
    reason: str
    result: Any
    attempt: Positive
    end_s: float


class _Facts(Strict):
    policy: str
    bound_s: float
    notes: list[str]
    machine: str
    written_utc: str
    in_time: dict[str, float] = {}


class _Content(Strict):
    """The content of ``ran.json``."""

    ends: list[_End]
    kinds: dict[str, str]
    facts: _Facts


_ENDS = list(_End.model_fields)


@dataclass(frozen=True)
class RunRecord:
    """``schedule`` (every attempt) and ``simulated`` are tables ``schedule``; ``ends`` has one row per job.

    ``job_classes``: the class of each job. ``facts``: policy, bound_s, notes of what went wrong, machine,
    time of writing, and by job the probability ``in_time`` to keep its deadline, as it was said beforehand.
    ``earlier``: all jobs had ended before the call that returns this record.
    """

    schedule: pd.DataFrame
    simulated: pd.DataFrame
    ends: pd.DataFrame
    job_classes: dict[str, str]
    facts: dict[str, Any]
    earlier: bool = False

    @property
    def makespan_s(self) -> float:
        """Return the seconds from the first start, when workers were ready, to the last end."""
        return float(self.ends["end_s"].max() - self.schedule["start_s"].min()) if len(self.ends) else np.nan

    @property
    def simulated_s(self) -> float:
        """Return the simulated makespan in s."""
        return float(self.simulated["end_s"].max() - self.simulated["start_s"].min())

    def side_by_side(self) -> dict[str, pd.DataFrame]:
        """Return both schedules by title, the measured one from its first start on: workers were ready then."""
        measured = self.schedule.assign(**self.schedule[["start_s", "end_s"]] - self.schedule["start_s"].min())
        return {f"simulated beforehand: {self.simulated_s:,.1f} s": self.simulated,
                f"measured: {self.makespan_s:,.1f} s": measured}

    def jobs(self) -> pd.DataFrame:
        """Return one row per done job: ``job_id, job_class, device, predicted_s, actual_s`` (of the attempt that counted).

        The ``device`` of a gang is that of its first member.
        """
        actual, predicted = (table[table["status"] == "done"].drop_duplicates("job_id").set_index("job_id")
                             for table in (self.schedule, self.simulated))
        table = pd.DataFrame({"device": actual["device"],
                              "predicted_s": (predicted["end_s"] - predicted["start_s"]).reindex(actual.index),
                              "actual_s": actual["end_s"] - actual["start_s"]}).reset_index()
        return table.assign(job_class=table["job_id"].map(self.job_classes))


def write(record: RunRecord, folder: Path) -> None:
    """Write ``schedule.csv``, ``simulated.csv``, ``trace.json`` (Chrome trace) and the rest."""
    for name, table in (("schedule", record.schedule), ("simulated", record.simulated)):
        store.write(table[columns("schedule")], folder / f"{name}.csv", "schedule", derived=True)
    files.replace(folder / "trace.json", trace.encoded(record.schedule, record.facts["policy"]))
    content = {"ends": record.ends[_ENDS].to_dict("records"), "kinds": record.job_classes, "facts": record.facts}
    store.write_json(content, folder / FILE)


def ends(path: Path) -> _Content:
    """Read how the jobs of a run ended; InputError for another file."""
    return load(_Content, path)


def read(folder: Path) -> RunRecord:
    """Read a record; InputError if there is none, or it is damaged."""
    content = ends(folder / FILE)
    return RunRecord(store.read(folder / "schedule.csv", "schedule"), store.read(folder / "simulated.csv", "schedule"),
                     pd.DataFrame([dict(end) for end in content.ends], columns=_ENDS), content.kinds,
                     dict(content.facts))


def of_reference(reference: str = "") -> tuple[str, RunRecord]:
    """Return the name of a reference machine (empty: the first that has one) and its record; InputError lists them."""
    name, path = archive.machine_with(PATTERN, "a record of a real run", reference)
    return name, read(path.parent)


def committed() -> Records:
    """Return the committed records by machine and run."""
    return {(machine, str(path.parent.relative_to(folder))): read(path.parent)
            for machine, folder in archive.machines().items() for path in sorted(folder.glob(PATTERN))}


def of_references(records: Records | None = None) -> pd.DataFrame:
    """Return one row per record (None: the committed ones): makespans in s, and how far measured is off simulated in %."""
    rows = []
    for (machine, run), record in (committed() if records is None else records).items():
        gangs = (record.schedule.groupby(["job_id", "attempt"]).size() > 1).sum()
        rows.append({"machine": machine, "run": run, "jobs": len(record.ends), "on several devices": int(gangs),
                     "simulated s": record.simulated_s, "measured s": record.makespan_s,
                     "off %": 100 * (record.makespan_s / record.simulated_s - 1)})
    return pd.DataFrame(rows)


def spread() -> tuple[float, float]:
    """Return the standard deviation of log actual over predicted times of jobs, and the share of its square common to a run.

    By the jobs of all committed records that took a second or more. InputError where there is none.
    """
    errors = errors_by_run()
    if not errors:
        raise InputError("no record of a real run is committed, so nothing tells how far its times may be off")
    return pooled(errors.values())


def start_up_s() -> float:
    """Return the seconds until the workers of a run were ready, at the median of the committed records."""
    return float(np.median([record.schedule["start_s"].min() for record in committed().values()]))


def pooled(errors: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return the root mean square of errors (log time) of runs, and the share of its square that the runs' means have."""
    runs = list(errors)
    total = float(np.mean(np.concatenate(runs) ** 2))
    common = float(np.mean([run.mean() ** 2 for run in runs]))
    return total**0.5, min(1.0, common / total) if total else 0.0


def errors_by_run(records: Records | None = None) -> dict[tuple[str, str], np.ndarray]:
    """Return log actual over predicted times of jobs of a second or more, by record (None: the committed ones)."""
    result = {}
    for name, record in (committed() if records is None else records).items():
        jobs = record.jobs().dropna()
        jobs = jobs[jobs["predicted_s"] >= _LEAST_S]
        if len(jobs):
            result[name] = np.log(jobs["actual_s"] / jobs["predicted_s"]).to_numpy()
    return result


def text(record: RunRecord) -> str:
    """Return how the jobs ended, what ran where, and what was predicted beside what it took, of the first _SHOWN jobs."""
    counts, facts = record.ends["status"].value_counts(), record.facts
    when = facts["written_utc"][:16].replace("T", " ")
    lines = [f"Nothing ran now: all jobs ended in an earlier run, recorded {when} UTC, by the policy {facts['policy']}. To run "
             "the jobs again, name another folder with --out."] * record.earlier
    lines += [f"{counts.get('done', 0)} jobs done, {counts.get('failed', 0)} failed, in {record.makespan_s:,.1f} s; simulated "
             f"beforehand: {record.simulated_s:,.1f} s ({record.makespan_s / record.simulated_s - 1:+.1%}); "
             f"lower bound, if predictions hold: {facts['bound_s']:,.1f} s"]
    jobs = record.jobs().rename(columns={"job_id": "job", "predicted_s": "predicted s", "actual_s": "took s"})
    if len(jobs):
        shown = jobs[["job", "device", "predicted s", "took s"]].head(_SHOWN)
        lines += ["", shown.to_string(index=False, float_format="{:.2f}".format, na_rep="-")]
        lines += [f"  {len(jobs) - _SHOWN} more: schedule.csv has all"] * (len(jobs) > _SHOWN) + [""]
    ended_s = record.ends[record.ends["status"] == "done"].set_index("job_id")["end_s"]
    lines += [f"  {job}: said to keep its deadline with {share:.0%}; it ended after {ended_s[job]:,.1f} s"
              for job, share in facts.get("in_time", {}).items() if job in ended_s]
    lines += [f"  {row.job_id}: {row.reason}" for row in record.ends[record.ends["status"] == "failed"].itertuples()]
    lines += [f"  {note}" for note in facts["notes"]]
    again = record.schedule[~record.schedule["status"].isin(("done", "failed"))]
    if len(again):
        attempts = choices(f"{row.job_id} on {row.device} ({row.status})" for row in again.itertuples())
        lines.append(f"  attempts that did not count: {attempts}")
    return "\n".join(lines)
