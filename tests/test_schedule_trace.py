"""Traces against the rules of the Trace Event Format, as Perfetto reads it."""

import json
from itertools import groupby, pairwise

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from lib.schedule import trace

STATUSES = ("done", "failed", "retried", "moved", "lost", "cancelled")
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


@given(begin=st.floats(0, 1e7), steps=st.lists(st.tuples(st.floats(0, 1e4) | st.floats(0, 1e-5) | st.just(0.0),
                                                         st.sampled_from(STATUSES)), min_size=1, max_size=12))
def test_neighbours_never_overlap_by_rounding(begin, steps):
    """On two devices at once, whatever became of the attempts."""
    ends = np.cumsum([begin, *(seconds for seconds, _ in steps)])
    check_trace(pd.DataFrame([(f"j{number}", device, ends[number], ends[number + 1], 1, status)
                              for device in ("gpu[0]", "cpu[1]") for number, (_, status) in enumerate(steps)],
                             columns=["job_id", "device", "start_s", "end_s", "attempt", "status"]))
