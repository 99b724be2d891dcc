"""One question to the scheduler: jobs and devices from files, a policy, an objective; and the answer as people read it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lib import store
from lib.schedule import bounds, problem
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics, trace
from lib.schedule.simulation.events import Outcome, simulate
from lib.tables import columns

ANSWER = ("policy", "objective", "makespan_s", "mean_jct_s", "p99_jct_s", "energy_j", "price", "lower_bound_s", "ratio",
          "decide_s", "jobs", "devices", "moved")


@dataclass(frozen=True)
class Answer:
    """A schedule and its figures."""

    policy: str
    objective: str
    outcome: Outcome

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Give the figures of ANSWER; what cannot be known is None."""
        asked = self.outcome.problem
        found = metrics.metrics(self.outcome, bounds.makespan_bound(asked))
        named = {"policy": self.policy, "objective": self.objective, "jobs": len(asked.jobs), "devices": len(asked.fleet)}
        return {name: {**found, **named}[name] for name in ANSWER}

    @property
    def schedule(self) -> pd.DataFrame:
        """Return the schedule as the table of that name, a row an attempt."""
        return self.outcome.schedule[columns("schedule")].sort_values(["start_s", "device"], ignore_index=True)

    def write(self, out: Path | None = None, trace_path: Path | None = None) -> None:
        """Write the schedule as CSV and the trace as JSON, where asked; a file that is there is replaced in one step."""
        if out is not None:
            store.write(self.schedule, out, "schedule", derived=True)
        if trace_path is not None:
            trace.write(self.outcome.schedule, trace_path, self.policy)


def ask(asked: Problem, name: str = "hybrid", objective: str = "makespan") -> Answer:
    """Schedule a problem by a policy that pursues an objective (``policies.aimed``)."""
    return Answer(name, objective, simulate(asked, registry.aimed(name, objective)))


def ask_files(times: Path, devices: Path, jobs: Path | None = None, actual: Path | None = None, name: str = "hybrid",
              objective: str = "makespan") -> Answer:
    """Schedule what files describe (``problem.read``)."""
    return ask(problem.read(times, devices, jobs, actual), name, objective)


def words(answer: Answer) -> str:
    """Say how the schedule is, in a few lines."""
    found, asked = answer.figures, answer.outcome.problem
    lines = [f"{answer.policy}, for {answer.objective}: {found['jobs']} jobs on {found['devices']} devices",
             f"  makespan              {found['makespan_s']:,.6g} s, {found['ratio']:.4f} of the lower bound "
             f"({found['lower_bound_s']:,.6g} s)",
             f"  completion time       mean {found['mean_jct_s']:,.6g} s, p99 {found['p99_jct_s']:,.6g} s",
             f"  decided in            {found['decide_s'] * 1e3:,.1f} ms"]
    if found["energy_j"] is not None:
        lines.append(f"  energy                {found['energy_j']:,.6g} J")
    if found["price"] is not None:
        lines.append(f"  price                 {found['price']:,.6g}")
    busy = metrics.busy_s(answer.outcome)
    for kind, label in enumerate(asked.fleet.types):
        rows = answer.outcome.done
        count = int((asked.fleet.type_of[rows["place"]] == kind).sum())
        share = busy[kind] / max(1e-12, asked.fleet.counts[kind] * found["makespan_s"])
        lines.append(f"  {label:<20}  {count} jobs, in use {share:.0%} of the time")
    return "\n".join(lines)
