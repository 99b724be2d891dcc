"""Traces against the rules of the Trace Event Format, as Perfetto reads it."""

import json
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulation import trace
from lib.schedule.simulation.events import Faults, simulate

STATUSES = ("done", "failed", "retried", "moved", "lost")
NEEDED = {"X": ("name", "cat", "ts", "dur", "pid", "tid", "args"), "M": ("name", "pid", "tid", "args")}
NAMED = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
COLOURS = {"good", "bad", "terrible", "black", "grey", "white", "yellow", "olive"}  # names that chrome://tracing knows


def nanoseconds(value):
    """Return microseconds as Perfetto's importer does: each number on its own, times 1000, cut off."""
    return int(value * 1000)


def wrong(text):
    """Yield what in a trace breaks the format, or would be shown wrongly."""
    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    document = json.loads(text, parse_constant=refuse)
    yield from (f"{name}?" for name in set(document) - {"traceEvents", "displayTimeUnit"})
    if document["displayTimeUnit"] not in ("ms", "ns"):
        yield "displayTimeUnit"
    named, tracks = {}, {}
    for event in document["traceEvents"]:
        missing = [key for key in NEEDED.get(event["ph"], ("a phase that is known",)) if key not in event]
        if missing:
            yield f"{event} lacks {missing}"
            continue
        if not all(type(event[key]) is int and 0 <= event[key] < 2**32 for key in ("pid", "tid")):
            yield f"{event}: pid and tid are whole numbers"
        if not isinstance(event["name"], str) or not isinstance(event["args"], dict):
            yield f"{event}: a name, and arguments"
        if event["ph"] == "M":
            key, kind = NAMED.get(event["name"], ("", object))
            if type(event["args"].get(key)) is not kind:
                yield f"{event}: no such metadata"
            named.setdefault(event["name"], []).append((event["pid"], event["tid"]))
        else:
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
            if not all(math.isfinite(event[key]) and event[key] >= 0 for key in ("ts", "dur")):
                yield f"{event}: times are finite, and not negative"
            if event.get("cname", "grey") not in COLOURS:
                yield f"{event}: no such colour"
    for name, places in named.items():
        if len(set(places)) < len(places):
            yield f"{name} is said twice of one track"
    if set(tracks) - set(named.get("thread_name", [])):
        yield "a track has no name"
    for track, events in tracks.items():
        if track[1] in (0, track[0]):
            yield f"{track}: the idle or the main thread"
        spans = [(nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"])) for event in events]
        if spans != sorted(spans):
            yield f"{track} is not in order"
        exact = [(event["ts"], event["ts"] + event["dur"]) for event in events]  # as chrome://tracing adds them
        for known in (spans, exact):
            yield from (f"{one} and {two} overlap on {track}" for one, two in pairwise(known) if two[0] < one[1])


def table(rows):
    return pd.DataFrame(rows, columns=["job_id", "device", "start_s", "end_s", "attempt", "status"])


def text(schedule, tmp_path):
    return trace.write(schedule, tmp_path / "trace.json", "a policy").read_text()


def eventful():
    """Return a schedule in which attempts were retried, failed, moved, and one was lost with its run."""
    draw = np.random.default_rng(0)
    times = draw.uniform(1, 5, (30, 2))
    actual = np.where(draw.random((30, 1)) < 0.2, times * [[30, 1]], times)
    problem = Problem(Jobs.plain(30), Fleet.of({"cpu": 2, "gpu": 2}), times, actual, 0.3)
    result = simulate(problem, registry.policy("hybrid", steps=60_000), Faults(0.4, seed=4)).schedule
    last = result["end_s"].max()
    lost = table([("lost", "cpu[0]", last, last, 1, "lost"), ("lost", "cpu[0]", last, last + 1, 2, "done")])
    return pd.concat([result[lost.columns], lost], ignore_index=True)


def test_a_schedule_in_which_all_went_wrong_that_can(tmp_path):
    schedule = eventful()
    assert set(schedule["status"]) == set(STATUSES)
    written = text(schedule, tmp_path)
    assert list(wrong(written)) == []
    slices = [event for event in json.loads(written)["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(schedule)
    by_track = {(event["pid"], event["tid"]): event["args"]["name"] for event in json.loads(written)["traceEvents"]
                if event["name"] == "thread_name"}
    shown = {(event["name"], by_track[event["pid"], event["tid"]], event["args"]["attempt"], event["args"]["status"],
              event["ts"], event["ts"] + event["dur"]) for event in slices}
    meant = {(row.job_id, row.device, row.attempt, row.status, round(row.start_s * 1e6), round(row.end_s * 1e6))
             for row in schedule.itertuples()}
    assert shown == meant


@settings(deadline=None, derandomize=True, max_examples=200)
@given(begin=st.floats(0, 1e7), steps=st.lists(st.tuples(st.floats(0, 1e4) | st.floats(0, 1e-5) | st.just(0.0),
                                                         st.sampled_from(STATUSES)), min_size=1, max_size=12))
def test_neighbours_never_overlap_by_rounding(tmp_path_factory, begin, steps):
    rows, now = [], begin
    for number, (seconds, status) in enumerate(steps):
        rows.append((f"j{number}", "cpu", now, now + seconds, 1, status))
        now += seconds
    assert list(wrong(text(table(rows), tmp_path_factory.mktemp("trace")))) == []


def test_what_breaks_the_format_is_seen(tmp_path):
    whole = json.loads(text(eventful(), tmp_path))
    cut = next(number for number, event in enumerate(whole["traceEvents"]) if event["ph"] == "X" and event["dur"] > 5)

    def broken(**changes):
        events = [{**event, **(changes if number == cut else {})} for number, event in enumerate(whole["traceEvents"])]
        return list(wrong(json.dumps({**whole, "traceEvents": events})))

    assert broken() == []
    for changes in ({"dur": 10**12}, {"ts": -1}, {"tid": "cpu"}, {"tid": 1.5}, {"pid": 7}, {"ph": "Q"}, {"cname": "pink"},
                    {"args": 3}, {"dur": whole["traceEvents"][cut]["dur"] + 1e-3}):
        assert broken(**changes), changes
    with pytest.raises(ValueError, match="no JSON"):
        broken(ts=math.nan)
