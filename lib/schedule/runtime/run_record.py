"""What became of jobs that were carried out for real: as it was, as it was foreseen, and how each job ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.schedule.simulation import trace
from lib.tables import columns

FOLDER = "schedule"
_FILE = "ran.json"
_ENDS = ("job_id", "status", "reason", "result", "attempt", "end_s")


@dataclass(frozen=True)
class Record:
    """``schedule`` (every attempt) and ``simulated`` are tables of that kind; ``ends`` has a row a job; ``kinds`` names alike.

    ``facts``: policy, bound_s, notes of what went wrong, whether contention was known, machine, when it was written.
    """

    schedule: pd.DataFrame
    simulated: pd.DataFrame
    ends: pd.DataFrame
    kinds: dict[str, str]
    facts: dict[str, Any]

    @property
    def makespan_s(self) -> float:
        """Return the seconds from the first start, when workers were ready, to the last end."""
        return float(self.ends["end_s"].max() - self.schedule["start_s"].min()) if len(self.ends) else np.nan

    @property
    def simulated_s(self) -> float:
        """Return the makespan as it was foreseen, in s."""
        return float(self.simulated["end_s"].max() - self.simulated["start_s"].min())

    def side_by_side(self) -> dict[str, pd.DataFrame]:
        """Return both schedules with a title each, the real one from its first start on: workers were ready then."""
        first = self.schedule["start_s"].min()
        real = self.schedule.assign(start_s=self.schedule["start_s"] - first, end_s=self.schedule["end_s"] - first)
        return {f"simulated beforehand: {self.simulated_s:,.1f} s": self.simulated,
                f"as it was: {self.makespan_s:,.1f} s": real}

    def jobs(self) -> pd.DataFrame:
        """Return a row a job that is done: ``job_id, kind, device, predicted_s, actual_s`` (of the attempt that counted)."""
        mine = self.schedule[self.schedule["status"] == "done"].set_index("job_id")
        said = self.simulated[self.simulated["status"] == "done"].set_index("job_id")
        table = pd.DataFrame({"device": mine["device"], "predicted_s": (said["end_s"] - said["start_s"]).reindex(mine.index),
                              "actual_s": mine["end_s"] - mine["start_s"]}).reset_index()
        return table.assign(kind=table["job_id"].map(self.kinds))


def write(record: Record, folder: Path) -> None:
    """Write ``schedule.csv``, ``simulated.csv``, ``trace.json`` (Chrome trace) and what else is known."""
    for name, table in (("schedule", record.schedule), ("simulated", record.simulated)):
        store.write(table[columns("schedule")], folder / f"{name}.csv", "schedule", derived=True)
    trace.write(record.schedule, folder / "trace.json", record.facts["policy"])
    store.write_json({"ends": record.ends[list(_ENDS)].to_dict("records"), "kinds": record.kinds, "facts": record.facts},
                     folder / _FILE)


def read(folder: Path) -> Record:
    """Read a record back; InputError where there is none."""
    held = store.read_json(folder / _FILE)
    return Record(store.read(folder / "schedule.csv", "schedule"), store.read(folder / "simulated.csv", "schedule"),
                  pd.DataFrame(held["ends"], columns=list(_ENDS)), held["kinds"], held["facts"])


def of_reference(reference: str = "") -> tuple[str, Record]:
    """Return the name of a reference machine (empty: the first that has one) and its record; InputError lists them."""
    known = {path.parent.parent.name: path.parent for path in sorted(paths.REFERENCE.glob(f"*/{FOLDER}/{_FILE}"))}
    if not known or (reference and reference not in known):
        raise InputError(f"no record of a real run on {reference or 'any machine'} in {paths.REFERENCE}; there are: "
                         f"{choices(known) or 'none'}")
    name = reference or next(iter(known))
    return name, read(known[name])


def words(record: Record) -> str:
    """Say what became of the jobs."""
    counts = record.ends["status"].value_counts()
    lines = [f"{counts.get('done', 0)} jobs done, {counts.get('failed', 0)} failed, in {record.makespan_s:,.1f} s; simulated "
             f"beforehand: {record.simulated_s:,.1f} s ({record.makespan_s / record.simulated_s - 1:+.1%}"
             f"{', contention included' if record.facts['contention'] else ''}); no schedule ends before "
             f"{record.facts['bound_s']:,.1f} s if predictions hold"]
    lines += [f"  {row.job_id}: {row.reason}" for row in record.ends[record.ends["status"] == "failed"].itertuples()]
    lines += [f"  {note}" for note in record.facts["notes"]]
    again = record.schedule[~record.schedule["status"].isin(("done", "failed"))]
    if len(again):
        which = choices(f"{row.job_id} on {row.device} ({row.status})" for row in again.itertuples())
        lines.append(f"  attempts that did not count: {which}")
    return "\n".join(lines)
