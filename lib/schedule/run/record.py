"""The record of a real run: its schedule, the simulated one, and how each job ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lib import files, store
from lib.config.base import Positive, Strict, load
from lib.measure import archive
from lib.schedule import trace
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
    ends: list[_End]
    kinds: dict[str, str]
    facts: _Facts


_ENDS = list(_End.model_fields)


@dataclass(frozen=True)
class RunRecord:
    """A real run: ``schedule`` (every attempt) and ``simulated`` are tables ``schedule``.

    ``ends`` has one row per job; ``facts`` has by job the probability ``in_time`` to keep its
    deadline, as stated beforehand. ``earlier``: all jobs had ended before this call.
    """

    schedule: pd.DataFrame
    simulated: pd.DataFrame
    ends: pd.DataFrame
    job_classes: dict[str, str]
    facts: dict[str, Any]
    earlier: bool = False

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.ends["end_s"].max() - self.schedule["start_s"].min())

    @property
    def simulated_s(self) -> float:
        """Simulated makespan in s."""
        return float(self.simulated["end_s"].max() - self.simulated["start_s"].min())

    def side_by_side(self) -> dict[str, pd.DataFrame]:
        """Return both schedules by title, the measured one from its first start on."""
        times = self.schedule[["start_s", "end_s"]] - self.schedule["start_s"].min()
        return {f"simulated beforehand: {self.simulated_s:,.1f} s": self.simulated,
                f"measured: {self.makespan_s:,.1f} s": self.schedule.assign(**times)}

    def jobs(self) -> pd.DataFrame:
        """Return one row per done job: job_id, job_class, device, predicted_s, actual_s."""
        done = [table[table["status"] == "done"].drop_duplicates("job_id").set_index("job_id")
                for table in (self.schedule, self.simulated)]
        actual, predicted = ((table["end_s"] - table["start_s"]) for table in done)
        table = pd.DataFrame({"device": done[0]["device"], "actual_s": actual,
                              "predicted_s": predicted.reindex(actual.index)}).reset_index()
        return table.assign(job_class=table["job_id"].map(self.job_classes))


def write(record: RunRecord, folder: Path) -> None:
    """Write ``schedule.csv``, ``simulated.csv``, ``trace.json`` (Chrome trace) and ``ran.json``."""
    for name, table in (("schedule", record.schedule), ("simulated", record.simulated)):
        store.write(table[columns("schedule")], folder / f"{name}.csv", "schedule", derived=True)
    files.replace(folder / "trace.json", trace.encoded(record.schedule, record.facts["policy"]))
    content = {"ends": record.ends[_ENDS].to_dict("records"), "kinds": record.job_classes,
               "facts": record.facts}
    store.write_json(content, folder / FILE)


def ends(path: Path) -> _Content:
    """Read how the jobs of a run ended; InputError for another file."""
    return load(_Content, path)


def read(folder: Path) -> RunRecord:
    """Read a record; InputError if there is none, or it is damaged."""
    content = ends(folder / FILE)
    schedule, simulated = (store.read(folder / f"{name}.csv", "schedule")
                           for name in ("schedule", "simulated"))
    table = pd.DataFrame([dict(end) for end in content.ends], columns=_ENDS)
    return RunRecord(schedule, simulated, table, content.kinds, dict(content.facts))


def of_reference(reference: str = "") -> tuple[str, RunRecord]:
    """Return a machine (empty: the first that has one) and its record; InputError lists them."""
    name, path = archive.machine_with(PATTERN, "a record of a real run", reference)
    return name, read(path.parent)


def committed() -> Records:
    """Return the committed records by machine and run."""
    return {(machine, str(path.parent.relative_to(folder))): read(path.parent)
            for machine, folder in archive.machines().items()
            for path in sorted(folder.glob(PATTERN))}


def of_references(records: Records) -> pd.DataFrame:
    """Return one row per record: makespans in s, and how far measured is off simulated in %."""
    rows = []
    for (machine, run), record in records.items():
        several = (record.schedule.groupby(["job_id", "attempt"]).size() > 1).sum()
        rows.append({"machine": machine, "run": run, "jobs": len(record.ends),
                     "on several devices": int(several), "simulated s": record.simulated_s,
                     "measured s": record.makespan_s,
                     "off %": 100 * (record.makespan_s / record.simulated_s - 1)})
    return pd.DataFrame(rows)


def errors_by_run(records: Records) -> dict[tuple[str, str], np.ndarray]:
    """Return log actual over predicted times of jobs of a second or more, by record."""
    errors = {}
    for name, record in records.items():
        jobs = record.jobs()
        jobs = jobs[jobs["predicted_s"] >= _LEAST_S]
        if len(jobs):
            errors[name] = np.log(jobs["actual_s"] / jobs["predicted_s"]).to_numpy()
    return errors


def pooled(errors: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return the root mean square of errors of runs, and the share of its square that is common.

    Common is what the means of the runs have of it.
    """
    runs = list(errors)
    total = float(np.mean(np.concatenate(runs) ** 2))
    common = float(np.mean([run.mean() ** 2 for run in runs]))
    return total**0.5, min(1.0, common / total) if total else 0.0


def text(record: RunRecord) -> str:
    """Return how the jobs ended, what ran where, and predicted beside actual times."""
    facts, lines = record.facts, []
    if record.earlier:
        when = facts["written_utc"][:16].replace("T", " ")
        lines.append(f"Nothing ran now: all jobs ended in an earlier run, recorded {when} UTC, by "
                     f"the policy {facts['policy']}. To run the jobs again, name another folder "
                     "with --output.")
    counts = record.ends["status"].value_counts()
    lines.append(f"{counts.get('done', 0)} jobs done, {counts.get('failed', 0)} failed, in "
                 f"{record.makespan_s:,.1f} s; simulated beforehand: {record.simulated_s:,.1f} s "
                 f"({record.makespan_s / record.simulated_s - 1:+.1%}); lower bound, if "
                 f"predictions hold: {facts['bound_s']:,.1f} s")
    jobs = record.jobs()[["job_id", "device", "predicted_s", "actual_s"]]
    if len(jobs):
        jobs.columns = ["job", "device", "predicted s", "took s"]
        lines += ["", jobs.to_string(index=False, float_format="{:.2f}".format, na_rep="-",
                                     max_rows=_SHOWN), ""]
    ended_s = record.ends[record.ends["status"] == "done"].set_index("job_id")["end_s"]
    lines += [f"  {job}: expected to keep its deadline with {share:.0%}; it ended after "
              f"{ended_s[job]:,.1f} s"
              for job, share in facts.get("in_time", {}).items() if job in ended_s]
    failed = record.ends[record.ends["status"] == "failed"]
    lines += [f"  {row.job_id}: {row.reason}" for row in failed.itertuples()]
    return "\n".join([*lines, *(f"  {note}" for note in facts["notes"])])
