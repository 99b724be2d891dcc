"""A schedule as Chrome-trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from pathlib import Path
from typing import Any

import pandas as pd

from lib import files, store

_US = 1e6
_PROCESS, _FIRST = 1, 2  # a thread 0 would be the idle one, and one with its process' number the main one
_COLOURS = {"done": "good", "failed": "terrible", "retried": "bad", "moved": "yellow", "lost": "grey"}


def events(schedule: pd.DataFrame, name: str = "schedule") -> list[dict[str, Any]]:
    """Return the trace's events: a track a device, a slice an attempt (``X`` events, whole microseconds).

    Readers add start and duration, some after they cut each to nanoseconds: whole ones never overlap by rounding.
    """
    devices = list(dict.fromkeys(sorted(schedule["device"])))
    track = {device: number for number, device in enumerate(devices, _FIRST)}
    trace: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": _PROCESS, "tid": _PROCESS,
                                    "args": {"name": name}}]
    trace += [{"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": number, "args": {"name": device}}
              for device, number in track.items()]
    trace += [{"ph": "M", "name": "thread_sort_index", "pid": _PROCESS, "tid": number, "args": {"sort_index": number}}
              for number in track.values()]
    trace += [{"ph": "X", "name": str(row.job_id), "cat": row.status, "pid": _PROCESS, "tid": track[row.device],
               "ts": round(row.start_s * _US), "dur": round(row.end_s * _US) - round(row.start_s * _US),
               "cname": _COLOURS[row.status], "args": {"attempt": int(row.attempt), "status": row.status}}
              for row in schedule.sort_values(["device", "start_s", "end_s"]).itertuples()]
    return trace


def encoded(schedule: pd.DataFrame, name: str = "schedule") -> bytes:
    """Return the trace as the content of a file."""
    trace = {"traceEvents": events(schedule, name), "displayTimeUnit": "ms"}
    return store.encoded_json(trace)


def write(schedule: pd.DataFrame, path: Path, name: str = "schedule") -> Path:
    """Write the trace in one step; one that is there is replaced."""
    return files.replace(path, encoded(schedule, name))
