"""Traces against the rules of the Trace Event Format, as Perfetto reads it."""

import json
from itertools import groupby, pairwise

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulation import trace
from lib.schedule.simulation.events import Faults, simulate

STATUSES = ("done", "failed", "retried", "moved", "lost")
COLOURS = {"good", "bad", "terrible", "black", "grey", "white", "yellow", "olive"}  # names that chrome://tracing knows


def no_json(word):
    raise ValueError(f"{word} is no JSON")


def check_trace(schedule):
    """Check that a trace obeys the format, and shows each attempt once, on its device's track and at its time.

    Tracks are neither the idle thread, 0, nor the main one, with its process' number. Perfetto cuts starts and durations to
    nanoseconds before it adds them, chrome://tracing adds them first: attempts overlap in neither where both are whole
    microseconds.
    """
    document = json.loads(trace.encoded(schedule, "a policy"), parse_constant=no_json)
    events = document.pop("traceEvents")
    assert document == {"displayTimeUnit": "ms"}
    tracks = dict(enumerate(sorted(set(schedule["device"])), 2))
    assert [event for event in events if event["ph"] == "M"] == [
        {"ph": "M", "name": name, "pid": 1, "tid": track, "args": arguments} for name, track, arguments in [
            ("process_name", 1, {"name": "a policy"}),
            *(("thread_name", track, {"name": device}) for track, device in tracks.items()),
            *(("thread_sort_index", track, {"sort_index": track}) for track in tracks)]]
    slices = [event for event in events if event["ph"] != "M"]
    for event in slices:
        assert event["ph"] == "X" and event["cname"] in COLOURS and event["cat"] == event["args"]["status"]
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("pid", "tid", "ts", "dur")), event
    for _, on_track in groupby(slices, lambda event: event["tid"]):
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in on_track]
        assert spans == sorted(spans) and all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    shown = [(event["name"], tracks[event["tid"]], event["ts"], event["ts"] + event["dur"], *event["args"].values())
             for event in slices]
    assert sorted(shown) == sorted((row.job_id, row.device, round(row.start_s * 1e6), round(row.end_s * 1e6), row.attempt,
                                    row.status) for row in schedule.itertuples())


def table(rows):
    return pd.DataFrame(rows, columns=["job_id", "device", "start_s", "end_s", "attempt", "status"])


def test_a_schedule_in_which_all_went_wrong_that_can():
    """Attempts were retried, failed, moved, and one was lost with its run."""
    draw = np.random.default_rng(0)
    times = draw.uniform(1, 5, (30, 2))
    actual = np.where(draw.random((30, 1)) < 0.2, times * [[30, 1]], times)
    problem = Problem(Jobs.plain(30), Fleet.from_counts({"cpu": 2, "gpu": 2}), times, actual, 0.3)
    result = simulate(problem, registry.policy("hybrid", steps=60_000), Faults(0.4, seed=4)).schedule
    last = result["end_s"].max()
    lost = table([("lost", "cpu[0]", last, last, 1, "lost"), ("lost", "cpu[0]", last, last + 1, 2, "done")])
    schedule = pd.concat([result[lost.columns], lost], ignore_index=True)
    assert set(schedule["status"]) == set(STATUSES)
    check_trace(schedule)


@given(begin=st.floats(0, 1e7), steps=st.lists(st.tuples(st.floats(0, 1e4) | st.floats(0, 1e-5) | st.just(0.0),
                                                         st.sampled_from(STATUSES)), min_size=1, max_size=12))
def test_neighbours_never_overlap_by_rounding(begin, steps):
    ends = np.cumsum([begin, *(seconds for seconds, _ in steps)])
    rows = [(f"j{number}", "cpu", ends[number], ends[number + 1], 1, status) for number, (_, status) in enumerate(steps)]
    check_trace(table(rows))
