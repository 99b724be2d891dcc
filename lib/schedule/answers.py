"""The verb ``schedule``: a problem and a policy in; a schedule, its figures and how sure they are out."""

from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files, store
from lib.errors import InputError, choices
from lib.schedule import bounds, metrics, risk, trace
from lib.schedule.policies import missing_device, policy_for
from lib.schedule.problem import Problem
from lib.schedule.risk import Risk
from lib.schedule.simulate import Outcome, simulate
from lib.tables import columns

SHOWN_DEVICES, SHOWN_JOBS = 16, 5


@dataclass(frozen=True)
class Answer:
    """A schedule by a policy, and what may become of it where times are uncertain."""

    policy: str
    objective: str
    outcome: Outcome
    risk: Risk | None = None

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Figures of the schedule by name; None where unknown."""
        problem = self.outcome.problem
        return {"policy": self.policy, "objective": self.objective, "jobs": len(problem.jobs),
                "devices": len(problem.fleet),
                **metrics.metrics(self.outcome, bounds.makespan_bound(problem)),
                "late_s": metrics.late_s(self.outcome)}

    @property
    def risks(self) -> dict[str, Any]:
        """Probabilities and time limits of jobs by id; empty where times are certain."""
        if self.risk is None:
            return {}
        ids = self.outcome.problem.jobs.ids
        return {"makespan_range_s": self.risk.makespan_s, "all_in_time": self.risk.all_in_time,
                "in_time": pd.Series(self.risk.in_time, ids).dropna().to_dict(),
                "time_limit_s": pd.Series(self.risk.time_limit_s, ids).to_dict(),
                "time_limit_risk": self.risk.limit_risk}

    @property
    def schedule(self) -> pd.DataFrame:
        """The table ``schedule``, one row per attempt."""
        rows = self.outcome.schedule[columns("schedule")]
        return rows.sort_values(["start_s", "device"], ignore_index=True)

    def write(self, out: Path | None = None, trace_path: Path | None = None) -> None:
        """Write schedule and trace to new files, where given; InputError if a file exists."""
        for path in (out, trace_path):
            if path is not None:
                files.check_new(path)
        if out is not None:
            store.write(self.schedule, out, "schedule")
        if trace_path is not None:
            files.create(trace_path, trace.encoded(self.outcome.schedule, self.policy))


def schedule(problem: Problem, policy: str = "hybrid", objective: str = "makespan",
             high_s: np.ndarray | None = None, limit_risk: float = 0.05) -> Answer:
    """Schedule a problem by a policy that pursues an objective.

    With ``high_s`` (jobs, types), the high ends of 90 % ranges, the answer says how likely each
    deadline is kept, and proposes time limits that a job exceeds with the probability
    ``limit_risk``. Raises InputError if the problem has no device for the policy, or no deadline
    for that objective, and for high ends below the predictions.
    """
    if wanted := missing_device(policy, problem.fleet):
        raise InputError(f"the policy {policy} has no device: none is {wanted}; the types are: "
                         f"{choices(problem.fleet.types)}")
    if objective == "deadline" and not np.isfinite(problem.jobs.deadline_s).any():
        raise InputError("the objective deadline needs deadline_s of some job in the jobs file")
    chosen = policy_for(policy, objective)
    sigma = None if high_s is None else risk.spread(problem, high_s)
    outcome = simulate(problem, chosen)
    if sigma is None:
        return Answer(policy, objective, outcome)
    planned = outcome
    if problem.actual_s is not problem.predicted_s:
        planned = simulate(replace(problem, actual_s=problem.predicted_s), chosen)
    return Answer(policy, objective, outcome, risk.assess(planned, sigma, limit_risk))


def text(answer: Answer) -> str:
    """Return the figures in a few lines, then one line per device: its jobs with their start and end in s."""
    figures = answer.figures
    above = figures["makespan_s"] / figures["lower_bound_s"] - 1
    best = f"at most {above:.1%} above the best (none is below {figures['lower_bound_s']:,.6g} s)"
    if above < bounds.PROVEN:
        best = "proven best"
    lines = [f"{answer.policy}, for {answer.objective}: {figures['jobs']} jobs on "
             f"{figures['devices']} devices, decided in {figures['decide_s'] * 1e3:,.1f} ms",
             f"  makespan         {figures['makespan_s']:,.6g} s, {best}",
             f"  completion time  mean {figures['mean_jct_s']:,.6g} s, "
             f"p99 {figures['p99_jct_s']:,.6g} s"]
    if figures["energy_j"] is not None:
        lines.append(f"  energy           {figures['energy_j']:,.6g} J "
                     f"({figures['energy_source']})")
    if figures["price"] is not None:
        lines.append(f"  price            {figures['price']:,.6g}")
    if figures["late_s"] is not None:
        lines.append(_missed_deadlines(answer))
    if answer.risk is not None:
        lines += _risk_lines(answer)
    return "\n".join([*lines, "", *_device_lines(answer)])


def _missed_deadlines(answer: Answer) -> str:
    jobs, late_s, words = answer.outcome.problem.jobs, answer.figures["late_s"], []
    for job in list(late_s)[:SHOWN_JOBS]:
        number = jobs.ids.index(job)
        due_s, arrival_s = jobs.deadline_s[number], jobs.arrival_s[number]
        before = f", before it arrives at {arrival_s:,.6g} s" if due_s < arrival_s else ""
        words.append(f"{job} {late_s[job]:,.6g} s late (due at {due_s:,.6g} s{before})")
    if len(late_s) > SHOWN_JOBS:
        words.append(f"{len(late_s) - SHOWN_JOBS} more with --json")
    missed = f"  deadlines        {len(late_s)} of {np.isfinite(jobs.deadline_s).sum()} missed"
    return f"{missed}: {'; '.join(words)}" if words else missed


def _risk_lines(answer: Answer) -> list[str]:
    risks, ids = answer.risks, answer.outcome.problem.jobs.ids
    low, high = risks["makespan_range_s"]
    lines = [f"  90 % range       makespan {low:,.6g} to {high:,.6g} s"]
    if risks["in_time"]:
        doubtful = sorted(risks["in_time"].items(), key=itemgetter(1))[:SHOWN_JOBS]
        lines.append(f"  in time          all with {risks['all_in_time']:.0%}; least sure: "
                     + ", ".join(f"{job} {share:.0%}" for job, share in doubtful))
    limits = "; ".join(f"{job} {risks['time_limit_s'][job]:,.4g} s" for job in ids[:SHOWN_JOBS])
    if len(ids) > SHOWN_JOBS:
        limits += f"; {len(ids) - SHOWN_JOBS} more with --json"
    return [*lines, f"  time limits      overrun with {risks['time_limit_risk']:.0%}: {limits}"]


def _device_lines(answer: Answer) -> list[str]:
    schedule, names = answer.schedule, answer.outcome.problem.fleet.names
    width, lines = max(map(len, names[:SHOWN_DEVICES])), []
    for name in names[:SHOWN_DEVICES]:
        rows = schedule[schedule["device"] == name]
        jobs = [f"{row.job_id} {row.start_s:,.4g} to {row.end_s:,.4g}"
                for row in rows.head(SHOWN_JOBS).itertuples()]
        if len(rows) > SHOWN_JOBS:
            jobs.append(f"{len(rows) - SHOWN_JOBS} more")
        lines.append(f"  {name:<{width}}  {'; '.join(jobs) or 'nothing'}")
    if len(names) > SHOWN_DEVICES:
        lines.append(f"  {len(names) - SHOWN_DEVICES} more devices: --output writes all")
    return lines
