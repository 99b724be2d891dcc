"""What a policy plans for a view: simulated from now on, with the reason for each placement in words."""

import numpy as np
import pandas as pd

from lib.errors import choices
from lib.schedule.problem import Problem
from lib.schedule.runtime.engine.priorities import ranked
from lib.schedule.runtime.engine.view import Entry, View
from lib.schedule.simulation.events import simulate
from lib.schedule.state import Policy
from lib.tables import columns

_SHOWN = 3  # other device types in a reason


def plan(view: View, policy: Policy) -> pd.DataFrame:
    """Return table ``schedule`` and ``reason``: what runs, what the policy plans for the rest, what no slot can run.

    ``status`` is running, planned or waiting (no device, no times). Times are the run's, and hold if predictions do, no job is
    added and none fails. The view is used up.
    """
    rows, state = [], view.state
    if view.entries:
        running = {view.entries[ran.job].job_id for ran in state.running.values()}
        problem = Problem(state.jobs, state.fleet, view.predict.table, view.predict.table)
        priority = [entry.priority for entry in view.entries]
        schedule = simulate(problem, ranked(policy, priority.__getitem__), known=state.contention, state=state).schedule
        for row in schedule[schedule["status"] == "done"].sort_values(["start_s", "device"]).itertuples():
            entry, runs = view.entries[row.job], row.job_id in running
            reason = _reason(view, row.job, row.device_index, row.start_s, schedule)
            rows.append((row.job_id, row.device, row.start_s, row.end_s, max(1, entry.attempt + (not runs)),
                         "running" if runs else "planned", reason))
    rows += [(entry.job_id, "", np.nan, np.nan, entry.attempt + 1, "waiting", _nowhere(entry)) for entry in view.stranded]
    return pd.DataFrame(rows, columns=[*columns("schedule"), "reason"])


def _reason(view: View, job: int, device: int, start_s: float, schedule: pd.DataFrame) -> str:
    """Return what is predicted here and on other device types and, of those that are faster, until when they are busy."""
    fleet, type_of, row = view.state.fleet, view.state.type_of, view.predict.row(job)
    here, parts = type_of[device], [f"predicted {row[type_of[device]]:.3g} s here"]
    before = schedule[(schedule["start_s"] <= start_s) & (schedule["job"] != job)].groupby("device_index")["end_s"].max()
    for other in sorted(set(range(len(fleet.types))) - {here}, key=row.__getitem__)[:_SHOWN]:
        free_s, first = min((before.get(number, 0.0), number) for number, of in enumerate(type_of) if of == other)
        if row[other] == np.inf:
            parts.append(f"it cannot run on {fleet.names[first]}")
        else:
            busy = f" (busy for {free_s - start_s:,.3g} s more)" if row[other] < row[here] and free_s > start_s else ""
            parts.append(f"{row[other]:.3g} s on {fleet.names[first]}{busy}")
    return ", ".join(parts)


def _nowhere(entry: Entry) -> str:
    needs = [f"{entry.memory_mb:,.0f} MB"] * (entry.memory_mb > 0) + [f"{entry.cpu_cores:g} cores"] * (entry.cpu_cores > 0)
    times = choices(name for name, seconds in entry.seconds.items() if seconds < np.inf)
    return "no slot that is there can run it: " + (f"it needs {choices(needs)}" if needs and times else
                                                   "it can run on none of their device types")
