"""What the hybrid policy would do from now on: a simulation that begins with what runs."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pandas as pd

from lib.dashboard.predictions import Predictions
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run.queue import RUNNING, TOGETHER, QueueJob
from lib.schedule.run.slots import Slot, fits, fleet_of
from lib.schedule.simulate import simulate
from lib.schedule.state import Start

COLUMNS = ("job_id", "device", "start_s", "end_s", "status", "reason")
LEAST_S = 1.0  # of a job that takes longer than predicted


def plan(rows: Sequence[QueueJob], slots: Sequence[Slot], predictions: Predictions, now_s: float) -> pd.DataFrame:
    """Return job_id, device, start_s, end_s (from now), status and reason of running and planned jobs.

    A job that takes longer than predicted has no end. A job that no device can run is left out.
    """
    fleet = fleet_of(slots)
    jobs = replace(Jobs.plain(len(rows)), ids=tuple(row.job_id for row in rows),
                   devices=np.array([row.devices for row in rows], int))
    able, placed = fits(jobs, fleet), {}
    seconds = np.full(able.shape, inf)
    for number, row in enumerate(rows):
        if row.status == RUNNING:
            devices = [fleet.names.index(name) for name in row.device.split(TOGETHER)]
            placed[number] = devices
            left_s = row.start_s + (row.predicted_s or 0.0) - now_s
            seconds[number, fleet.type_of[devices[0]]] = max(LEAST_S, left_s)
            continue
        for kind, name in enumerate(fleet.types):
            if able[number, kind] and (row.device_types is None or name in row.device_types):
                seconds[number, kind] = predictions.seconds(row, name)
    known = np.flatnonzero(np.isfinite(seconds).any(axis=1))
    if not len(known):
        return pd.DataFrame(columns=list(COLUMNS))
    return _simulated([rows[number] for number in known], fleet, seconds[known],
                      {at: placed[number] for at, number in enumerate(known) if number in placed}, predictions, now_s)


def _simulated(rows, fleet, seconds, placed, predictions, now_s) -> pd.DataFrame:
    """Simulate the policy; ``placed`` are the devices of the jobs that run, by job number."""
    arrival_s = np.array([0.0 if number in placed else 1e-6 for number in range(len(rows))])
    jobs = replace(Jobs.plain(len(rows), arrival_s), ids=tuple(row.job_id for row in rows),
                   devices=np.array([row.devices for row in rows], int))
    policy, priority = policy_for("hybrid"), np.array([row.priority for row in rows], float)

    def from_now(state, predict):
        begin = [job for job in state.waiting.tolist() if job in placed]
        if begin:  # what runs already
            return [Start(job, placed[job][0], tuple(placed[job][1:])) for job in begin]
        return by_priority(state, predict, policy, priority)

    table = simulate(Problem(jobs, fleet, seconds, seconds), from_now).attempts_done
    lines = []
    for attempt in table.sort_values(["start_s", "device"]).itertuples():
        row, runs = rows[attempt.job], attempt.job in placed
        kind = fleet.types[fleet.type_of[attempt.device_index]]
        late = runs and row.start_s + (row.predicted_s or 0.0) < now_s
        start_s = row.start_s - now_s if runs else attempt.start_s
        lines.append((row.job_id, attempt.device, start_s, inf if late else attempt.end_s,
                      "running" if runs else "planned",
                      row.placement if runs else predictions.placement(row, kind)))
    return pd.DataFrame(lines, columns=list(COLUMNS))
