"""What the hybrid policy would do from now on: a simulation that begins with what runs."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pandas as pd

from lib.dashboard.predictions import Predictions
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.run.queue import RUNNING, TOGETHER, QueueJob
from lib.schedule.run.slots import Slot, fleet_of
from lib.schedule.simulate import simulate
from lib.schedule.state import Start

COLUMNS = ["job_id", "device", "start_s", "end_s", "status", "reason"]
LEAST_S = 1.0  # of a job that takes longer than predicted
LATER_S = 1e-6  # jobs that wait arrive after those that run


def plan(rows: Sequence[QueueJob], slots: Sequence[Slot], predictions: Predictions,
         now_s: float) -> pd.DataFrame:
    """Return device, start_s, end_s (from now), status and reason of running and planned jobs.

    A job that takes longer than predicted has no end. A job that no device can run is left out.
    """
    fleet = fleet_of(slots)
    rows = [row for row in rows if row.status == RUNNING or _types(row, fleet)]
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    seconds, placed = np.full((len(rows), len(fleet.types)), inf), {}
    for job, row in enumerate(rows):
        if row.status == RUNNING:
            placed[job] = [fleet.names.index(name) for name in row.device.split(TOGETHER)]
            kind = fleet.type_of[placed[job][0]]
            seconds[job, kind] = max(LEAST_S, row.start_s + row.predicted_s - now_s)
            continue
        for kind in _types(row, fleet):
            seconds[job, kind] = predictions.seconds(row, fleet.types[kind])
    arrival_s = np.array([0.0 if job in placed else LATER_S for job in range(len(rows))])
    jobs = replace(Jobs.plain(len(rows), arrival_s), ids=tuple(row.job_id for row in rows),
                   devices=np.array([row.devices for row in rows], int))
    policy, priority = policy_for("hybrid"), np.array([row.priority for row in rows], float)

    def from_now(state, predict):
        running = [job for job in state.waiting.tolist() if job in placed]
        if running:
            return [Start(job, placed[job][0], tuple(placed[job][1:])) for job in running]
        return by_priority(state, predict, policy, priority)

    outcome = simulate(Problem(jobs, fleet, seconds, seconds), from_now)
    lines = []
    for attempt in outcome.attempts_done.sort_values(["start_s", "device"]).itertuples():
        row, runs = rows[attempt.job], attempt.job in placed
        late = runs and row.start_s + row.predicted_s < now_s
        kind = fleet.types[fleet.type_of[attempt.device_index]]
        lines.append((row.job_id, attempt.device, row.start_s - now_s if runs else attempt.start_s,
                      inf if late else attempt.end_s, "running" if runs else "planned",
                      row.placement if runs else predictions.placement(row, kind)))
    return pd.DataFrame(lines, columns=COLUMNS)


def _types(row: QueueJob, fleet: Fleet) -> list[int]:
    """Return the numbers of the device types that a job may have and of which there are enough."""
    return [kind for kind, name in enumerate(fleet.types) if fleet.counts[kind] >= row.devices
            and (row.device_types is None or name in row.device_types)]
