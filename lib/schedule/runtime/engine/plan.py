"""Priorities for any policy, and what a policy plans for a view: simulated from now on, with a reason for each placement."""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lib.errors import choices
from lib.schedule import risk
from lib.schedule.problem import Problem
from lib.schedule.runtime.engine.view import View
from lib.schedule.runtime.journal import ByDeviceType, Entry
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.state import Action, Policy, Predict, State
from lib.tables import columns

_SHOWN = 3  # other device types in a reason
_BY_PROGRESS, _LATE, _BEHIND = "end by its progress; ", "takes longer than predicted; ", "after a run whose end is unknown; "
_ENDLESS = _LATE, _BEHIND


class _Shown(NamedTuple):
    """The highest priority that waits for each device type, and the policy's memory since that changed."""

    highest: tuple[float, ...]
    memory: dict[type, Any]


def with_priorities(policy: Policy, priority: Callable[[int], int]) -> Policy:
    """Return a policy that obeys priorities (by job number, the highest first) and else decides as ``policy`` does.

    **No job starts on a device type while a job of higher priority waits that can run there.** ``policy`` sees neither such
    types nor jobs that have no other. Its memory is emptied whenever the highest priority that waits for a type changes.
    """
    def decide(state: State, predict: Predict) -> list[Action]:
        ranks = {job: priority(job) for job in state.waiting}
        if len(set(ranks.values())) <= 1:
            if _Shown in state.memory:
                state.memory.clear()
            return policy(state, predict)
        part, table = _part(state, predict.table, np.array(list(ranks)), np.array(list(ranks.values()), float)[:, None])
        return policy(part, Predict(table, predict.sigma))

    return decide


def _part(state: State, table: np.ndarray, jobs: np.ndarray, rank: np.ndarray) -> tuple[State, np.ndarray]:
    """Return the state that the policy sees, and the predicted seconds (jobs, types); ``rank`` is that of the waiting jobs."""
    able_s, table = table[jobs], table.copy()
    highest = np.where(np.isfinite(able_s), rank, -np.inf).max(axis=0)
    shown_s = np.where(rank < highest, np.inf, able_s)
    shown = np.isfinite(shown_s).any(axis=1)
    table[jobs] = np.where(shown[:, None], shown_s, 1.0)  # no NaN in a mean; hidden jobs do not wait
    waiting, changed = dict.fromkeys(jobs[shown].tolist()), set(jobs[(shown_s != able_s).any(axis=1)].tolist())
    part, before = copy(state), state.memory.get(_Shown)
    part.waiting, part.arrived = waiting, [job for job in state.arrived if job in waiting]
    if not before or before.highest != tuple(highest) or changed.intersection(part.arrived):
        state.memory.clear()
        before = state.memory[_Shown] = _Shown(tuple(highest), {})
        part.arrived, part.started, part.freed, part.finished = [], [], [], []
    part.memory = before.memory
    return part, table


def plan(view: View, policy: Policy, spread: ByDeviceType, left_s: Callable[[str], float]) -> pd.DataFrame:
    """Return the table ``schedule`` with ``reason`` and ``in_time``: what runs, what is planned, what no slot can run.

    ``status`` is running, planned or waiting (no device, no times). Times hold if predictions do, no job is added and none
    fails. ``left_s`` gives the seconds that a running job still takes, NaN where its prediction is all that is known. A job
    that takes longer than predicted has no end; jobs planned behind it on its devices have neither start nor end.
    ``in_time`` is the probability to keep a deadline, NaN without one or without an end; ``spread`` gives the standard
    deviation of the log time of a job on a device type. The view cannot be used afterwards.
    """
    rows, blocked, state, now_s = [], set(), view.state, view.state.now_s  # blocked: devices whose job has no known end
    if view.entries:
        running = {(ran.job, ran.attempt) for ran in state.running.values()}
        actual_s, notes = _times_left(view, left_s)
        problem = Problem(state.jobs, state.fleet, view.predict.table, actual_s)
        obeying = with_priorities(policy, lambda job: view.entries[job].priority)
        outcome = simulate(problem, obeying, state=state)
        in_time, attempts = _in_time(view, outcome, now_s, spread), outcome.schedule.sort_values(["start_s", "device"])
        for (job, attempt), parts in attempts.groupby(["job", "attempt"], sort=False):
            first, devices = parts.iloc[0], parts["device_index"]
            runs, moved = (job, attempt) in running, first["status"] != "done"
            if moved and not runs:
                continue
            note = _BEHIND if not blocked.isdisjoint(devices) else notes.get(job, "") if runs and not moved else ""
            blocked.update(devices if note in _ENDLESS else ())
            times_s = np.nan if note == _BEHIND else first["start_s"], np.nan if note in _ENDLESS else first["end_s"]
            facts = max(1, view.entries[job].attempt + (not runs)), "running" if runs else "planned"
            share = np.nan if note in _ENDLESS else in_time[job]
            rows += [(row.job_id, row.device, *times_s, *facts, note + _reason(view, row, outcome.schedule), share)
                     for row in parts.itertuples()]
    rows += [(entry.job_id, "", np.nan, np.nan, entry.attempt + 1, "waiting", _nowhere(entry), np.nan)
             for entry in view.stranded]
    return pd.DataFrame(rows, columns=[*columns("schedule"), "reason", "in_time"])


def _times_left(view: View, left_s: Callable[[str], float]) -> tuple[np.ndarray, dict[int, str]]:
    """Return the seconds of each job (jobs, types), of running jobs by what is left, and notes on ends by job number."""
    seconds, notes, state = view.predict.table.copy(), {}, view.state
    for device, ran in state.running.items():
        cell, passed_s, more_s = (ran.job, state.type_of[device]), state.now_s - ran.start_s, left_s(state.jobs.ids[ran.job])
        if not np.isnan(more_s):
            seconds[cell], notes[ran.job] = passed_s + more_s, _BY_PROGRESS
        elif passed_s >= seconds[cell]:
            seconds[cell], notes[ran.job] = 2 * passed_s, _LATE  # so that the plan leaves its device alone for a while
    return seconds, notes


def _in_time(view: View, outcome: Outcome, now_s: float, spread: ByDeviceType) -> np.ndarray:
    problem, plan = outcome.problem, outcome.attempts_done
    if not np.isfinite(problem.jobs.deadline_s).any():
        return np.full(len(problem.jobs), np.nan)
    sigma = np.zeros(problem.predicted_s.shape)
    for row in plan.itertuples():
        device_type = problem.fleet.type_of[row.device_index]
        sigma[row.job, device_type] = spread(view.entries[row.job].spec, problem.fleet.types[device_type])
    return risk.kept(problem, risk.ends_s(problem, plan, sigma, now_s))


def _reason(view: View, placed: Any, schedule: pd.DataFrame) -> str:
    """Return what is predicted here and on other device types, and until when those that are faster are busy."""
    fleet, type_of, row = view.state.fleet, view.state.type_of, view.predict.table[placed.job].tolist()
    here = type_of[placed.device_index]
    before = schedule[(schedule["start_s"] <= placed.start_s) & (schedule["job"] != placed.job)]
    busy_until = before.groupby("device_index")["end_s"].max()
    parts = [f"predicted {row[here]:.3g} s here"]
    for there in sorted(set(range(len(fleet.types))) - {here}, key=row.__getitem__)[:_SHOWN]:
        free_s, first = min((busy_until.get(device, 0.0), device) for device in np.flatnonzero(fleet.type_of == there))
        if row[there] == np.inf:
            parts.append(f"it cannot run on {fleet.names[first]}")
        else:
            wait_s = free_s - placed.start_s
            busy = f" (busy for {wait_s:,.3g} s more)" if row[there] < row[here] and wait_s > 0 else ""
            parts.append(f"{row[there]:.3g} s on {fleet.names[first]}{busy}")
    return ", ".join(parts)


def _nowhere(entry: Entry) -> str:
    needs = [f"{entry.memory_mb:,.0f} MB"] * (entry.memory_mb > 0) + [f"{entry.cpu_cores:g} cores"] * (entry.cpu_cores > 0)
    if needs and any(seconds < np.inf for seconds in entry.seconds.values()):
        return f"no slot that is there can run it: it needs {choices(needs)}"
    return "no slot that is there can run it: it can run on none of their device types"
