"""A schedule as Chrome-trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import pandas as pd

from lib import store

_US = 1e6
_PROCESS, _FIRST = 1, 2  # thread 0 would be the idle thread, and the process' number the main one
_COLOURS = {"done": "good", "failed": "terrible", "retried": "bad", "moved": "yellow", "lost": "grey",
            "cancelled": "grey"}


def encoded(schedule: pd.DataFrame, name: str) -> bytes:
    """Return the content of a trace: one track per device, one slice per attempt (``X`` events, whole microseconds).

    Readers add start and duration, some after cutting each to nanoseconds: whole microseconds never overlap by rounding.
    """
    track = {device: number for number, device in enumerate(sorted(set(schedule["device"])), _FIRST)}
    facts = [("process_name", _PROCESS, {"name": name}),
             *(("thread_name", number, {"name": device}) for device, number in track.items()),
             *(("thread_sort_index", number, {"sort_index": number}) for number in track.values())]
    trace = [{"ph": "M", "name": fact, "pid": _PROCESS, "tid": number, "args": arguments}
                                   for fact, number, arguments in facts]
    trace += [{"ph": "X", "name": str(row.job_id), "cat": row.status, "pid": _PROCESS, "tid": track[row.device],
               "ts": round(row.start_s * _US), "dur": round(row.end_s * _US) - round(row.start_s * _US),
               "cname": _COLOURS[row.status], "args": {"attempt": int(row.attempt), "status": row.status}}
              for row in schedule.sort_values(["device", "start_s", "end_s"]).itertuples()]
    return store.encoded_json({"traceEvents": trace, "displayTimeUnit": "ms"})
