"""Scheduling from Python or the command line: a problem, a policy and an objective; a schedule and its figures."""

from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files, store
from lib.errors import InputError, choices
from lib.schedule import bounds, moldable, risk
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.risk import PREDICTED, Risk
from lib.schedule.simulation import metrics, trace
from lib.schedule.simulation.events import Outcome, simulate
from lib.tables import columns

FIGURES = ("policy", "objective", "makespan_s", "mean_jct_s", "p99_jct_s", "energy_j", "energy_source", "price",
           "lower_bound_s", "ratio", "decide_s", "jobs", "devices", "moved", "worst_user", "late_s")
_PROVEN = 1e-5  # relative: a makespan so near to its lower bound is the least
_DEVICES, _JOBS = 16, 5  # that are shown
_LEAST = 5e-4  # a probability to run out of memory that is told


@dataclass(frozen=True)
class Answer:
    """A schedule with its figures."""

    policy: str
    objective: str
    outcome: Outcome
    risk: Risk | None = None
    taken: str = PREDICTED  # the times that the policy planned with

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Return FIGURES; unknown ones are None."""
        problem = self.outcome.problem
        measured = metrics.metrics(self.outcome, max(bounds.makespan_bound(problem), bounds.whole_jobs_bound(problem)))
        facts = {"policy": self.policy, "objective": self.objective, "jobs": len(problem.jobs), "devices": len(problem.fleet),
                 "late_s": metrics.late_s(self.outcome)}
        return {name: (measured | facts)[name] for name in FIGURES}

    @property
    def risks(self) -> dict[str, Any]:
        """Return what may become of the schedule, by job where it is of jobs; empty where times are certain."""
        if not self.risk:
            return {}
        by_job = {name: pd.Series(values, self.outcome.problem.jobs.ids).dropna().to_dict() for name, values in (
            ("in_time", self.risk.in_time), ("time_limit_s", self.risk.time_limit_s),
            ("out_of_memory", np.where(self.risk.out_of_memory >= _LEAST, self.risk.out_of_memory, np.nan)))}
        return {"planned_with": self.taken, "makespan_range_s": self.risk.makespan_s, "all_in_time": self.risk.all_in_time,
                **by_job, "time_limit_risk": self.risk.limit_risk}

    @property
    def schedule(self) -> pd.DataFrame:
        """Return the table ``schedule``, one row per attempt."""
        return self.outcome.schedule[columns("schedule")].sort_values(["start_s", "device"], ignore_index=True)

    def write(self, out: Path | None = None, trace_path: Path | None = None) -> None:
        """Write the schedule as CSV and the trace as JSON to new files, if given; InputError if one exists already."""
        for path in (out, trace_path):
            if path is not None:
                files.check_new(path)
        if out is not None:
            store.write(self.schedule, out, "schedule")
        if trace_path is not None:
            files.create(trace_path, trace.encoded(self.outcome.schedule, self.policy))


def schedule(problem: Problem, policy: str = "hybrid", objective: str = "makespan", high_s: np.ndarray | None = None,
             limit_risk: float = 0.05) -> Answer:
    """Schedule a problem by a policy that pursues an objective (``registry.policy_for``).

    With ``high_s`` (jobs, types), the high ends of 90 % ranges, or with those of the jobs' memory, the plan is that of least
    expected cost (``risk.place``), and the answer has its ``risk``. Raises InputError if the problem has no device for the
    policy, or no deadline for that objective, and for wrong high ends or a ``limit_risk`` that is none.
    """
    if wanted := registry.lacks(policy, problem.fleet):
        raise InputError(f"the policy {policy} has no device: none is {wanted}; the types are: {choices(problem.fleet.types)}")
    if objective == "deadline" and not np.isfinite(problem.jobs.deadline_s).any():
        raise InputError("the objective deadline needs deadline_s of some job in the jobs file")
    aimed = registry.policy_for(policy, objective, problem.jobs.has_gangs or problem.offers is not None)
    if problem.offers is not None:
        return Answer(policy, objective, moldable.place(problem, aimed, objective))
    if high_s is None and problem.jobs.memory_high_mb is None:
        return Answer(policy, objective, simulate(problem, aimed))
    sigma = np.zeros(problem.predicted_s.shape) if high_s is None else risk.spread(problem, high_s)
    planned, taken = risk.place(problem, aimed, objective, sigma)
    real = planned if problem.actual_s is problem.predicted_s else \
        simulate(problem.with_predictions(planned.problem.predicted_s, problem.sigma), aimed)
    return Answer(policy, objective, real, risk.assess(planned, sigma, limit_risk), taken)


def text(answer: Answer) -> str:
    """Return the figures in a few lines, then a line a device: its jobs with their start and end in s."""
    figures = answer.figures
    above = figures["makespan_s"] / figures["lower_bound_s"] - 1
    best = "proven best" if above < _PROVEN else \
        f"at most {above:.1%} above the best (none is below {figures['lower_bound_s']:,.6g} s)"
    lines = [f"{answer.policy}, for {answer.objective}: {figures['jobs']} jobs on {figures['devices']} devices, decided in "
             f"{figures['decide_s'] * 1e3:,.1f} ms",
             f"  makespan         {figures['makespan_s']:,.6g} s, {best}",
             f"  completion time  mean {figures['mean_jct_s']:,.6g} s, p99 {figures['p99_jct_s']:,.6g} s"]
    if figures["energy_j"] is not None:
        lines.append(f"  energy           {figures['energy_j']:,.6g} J ({figures['energy_source']})")
    if figures["worst_user"] is not None:
        lines.append(f"  worst user       ends after {figures['worst_user']:.2f} times what its share alone allows")
    if figures["price"] is not None:
        lines.append(f"  price            {figures['price']:,.6g}")
    return "\n".join([*lines, *_missed(answer), *_risky(answer), "", *_placed(answer)])


def _missed(answer: Answer) -> list[str]:
    """Return how many deadlines are missed, and the latest jobs; nothing without deadlines."""
    jobs, late_s, words = answer.outcome.problem.jobs, answer.figures["late_s"], []
    if late_s is None:
        return []
    for job in list(late_s)[:_JOBS]:
        due_s, arrival_s = (float(times[jobs.ids.index(job)]) for times in (jobs.deadline_s, jobs.arrival_s))
        before = f", before it arrives at {arrival_s:,.6g} s" if due_s < arrival_s else ""
        words.append(f"{job} {late_s[job]:,.6g} s late (due at {due_s:,.6g} s{before})")
    words += [f"{len(late_s) - _JOBS} more with --json"] * (len(late_s) > _JOBS)
    return [f"  deadlines        {len(late_s)} of {np.isfinite(jobs.deadline_s).sum()} missed" + ": " * bool(words)
            + "; ".join(words)]


def _risky(answer: Answer) -> list[str]:
    """Return how sure the schedule is, and the jobs that are most likely late."""
    if not answer.risk:
        return []
    risks, ids = answer.risks, answer.outcome.problem.jobs.ids
    low, high = risks["makespan_range_s"]
    lines = [f"  planned with     the {answer.taken}: that costs least on average"] * (answer.taken != PREDICTED)
    lines += [f"  90 % range       makespan {low:,.6g} to {high:,.6g} s"]
    if risks["in_time"]:
        doubtful = sorted(risks["in_time"].items(), key=itemgetter(1))[:_JOBS]
        lines += [f"  in time          all with {risks['all_in_time']:.0%}; least sure: "
                  + ", ".join(f"{job} {share:.0%}" for job, share in doubtful)]
    if short := sorted(risks["out_of_memory"].items(), key=itemgetter(1), reverse=True)[:_JOBS]:
        lines.append("  out of memory    most likely: " + ", ".join(f"{job} {share:.0%}" for job, share in short))
    limits = "; ".join(f"{job} {risks['time_limit_s'][job]:,.4g} s" for job in ids[:_JOBS])
    more = f"; {len(ids) - _JOBS} more with --json" * (len(ids) > _JOBS)
    return [*lines, f"  time limits      overrun with {risks['time_limit_risk']:.0%}: {limits}{more}"]


def _placed(answer: Answer) -> list[str]:
    """Return a line a device with its first jobs, those of the first devices."""
    schedule, names = answer.schedule, answer.outcome.problem.fleet.names
    width = max(map(len, names[:_DEVICES]))
    lines = []
    for name in names[:_DEVICES]:
        rows = schedule[schedule["device"] == name]
        jobs = [f"{row.job_id} {row.start_s:,.4g} to {row.end_s:,.4g}" for row in rows.head(_JOBS).itertuples()]
        more = [f"{len(rows) - _JOBS} more"] * (len(rows) > _JOBS)
        lines.append(f"  {name:<{width}}  {'; '.join(jobs + more) or 'nothing'}")
    return lines + [f"  {len(names) - _DEVICES} more devices: --out writes all"] * (len(names) > _DEVICES)
