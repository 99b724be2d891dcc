"""Probes: the seconds of a step and of the set-up of a workload, where it will run."""

import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from lib import store
from lib.schedule.run.backend import Workers
from lib.schedule.run.jobs_file import PROBE
from lib.schedule.run.processes import TaskEnd

_PROBE_S, _LIMIT_S = 2.0, 900.0  # steps that are timed; and a probe, which may fetch data first

Probes = dict[str, Any]
"""By ``workload/devices/type``: ``step_s`` and ``setup_s``, or a text why there are none."""


def probe(workloads: Iterable[tuple[str, int]], workers: Workers, path: Path) -> Probes:
    """Time workloads, each on so many devices of each type; return the times.

    All slots of a type are at work meanwhile, as they will be in the run. ``path`` keeps the times
    for calls with the same slots and threads; what failed is tried again by the next call.
    """
    here = {slot.name: slot.threads for slot in workers.slots}
    kept = store.read_json(path) if path.exists() else {}
    probes, wanted = kept["probes"] if kept.get("slots") == here else {}, dict.fromkeys(workloads)
    for device_type in dict.fromkeys(slot.device_type for slot in workers.slots):
        slots = [number for number, slot in enumerate(workers.slots)
                 if slot.device_type == device_type]
        for devices in sorted({devices for _, devices in wanted}):
            places = [tuple(slots[first:first + devices])
                      for first in range(0, len(slots) - devices + 1, devices)]
            names = [name for name, count in wanted if count == devices
                     and not isinstance(probes.get(f"{name}/{devices}/{device_type}"), dict)]
            while places and names:
                for name, ends in _run_at_once(names[:len(places)], places, workers).items():
                    done = [end.result for end in ends if end.status == "done"]
                    key = f"{name}/{devices}/{device_type}"
                    probes[key] = f"{name} could not be probed on {device_type}: {ends[0].reason}"
                    if done:
                        probes[key] = {part: float(np.mean([times[part] for times in done]))
                                       for part in ("step_s", "setup_s")}
                names = names[len(places):]
    store.write_json({"slots": here, "probes": probes}, path)
    return probes


def _run_at_once(names: list[str], places: list[tuple[int, ...]],
                 workers: Workers) -> dict[str, list[TaskEnd]]:
    """Run probes on all places at once, workloads in turn; return how they ended."""
    running, ends = {}, defaultdict(list)
    for number, (place, name) in enumerate(zip(places, cycle(names), strict=False), start=1):
        running[number] = name
        workers.start(number, PROBE, {"workload": name, "seconds": _PROBE_S}, place)
    until = time.monotonic() + _LIMIT_S
    while running and time.monotonic() < until:
        for event in workers.poll(until - time.monotonic()):
            if isinstance(event, TaskEnd):
                ends[running.pop(event.attempt)].append(event)
    for number, name in running.items():
        workers.stop(number)
        ends[name].append(TaskEnd(number, "failed", reason=f"it did not end within {_LIMIT_S:g} s"))
    return ends
