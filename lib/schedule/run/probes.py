"""Probes: the seconds of a step and of the set-up of a workload, where it will run."""

import time
from collections import defaultdict
from collections.abc import Iterable
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

    All slots of a type are at work meanwhile, as they will be in the run. ``path`` keeps the times;
    what failed is tried again by the next call.
    """
    probes = store.read_json(path) if path.exists() else {}
    types = dict.fromkeys(slot.device_type for slot in workers.slots)
    wanted = dict.fromkeys(workloads)
    for device_type in types:
        slots = [number for number, slot in enumerate(workers.slots)
                 if slot.device_type == device_type]
        for devices in sorted({devices for _, devices in wanted}):
            names = [name for name, count in wanted if count == devices
                     and not isinstance(probes.get(f"{name}/{devices}/{device_type}"), dict)]
            places = [tuple(slots[first:first + devices])
                      for first in range(0, len(slots) - devices + 1, devices)]
            for first in range(0, len(names) if places else 0, len(places)):
                ends = _run_at_once(names[first:first + len(places)], places, workers)
                for name, found in ends.items():
                    probes[f"{name}/{devices}/{device_type}"] = _times(name, device_type, found)
    store.write_json(probes, path)
    return probes


def _run_at_once(names: list[str], places: list[tuple[int, ...]],
                 workers: Workers) -> dict[str, list[TaskEnd]]:
    """Run probes on all places at once, workloads in turn; return how they ended."""
    running, ends = {}, defaultdict(list)
    for number, place in enumerate(places):
        name = running[number + 1] = names[number % len(names)]
        workers.start(number + 1, PROBE, {"workload": name, "seconds": _PROBE_S}, place)
    until = time.monotonic() + _LIMIT_S
    while running and time.monotonic() < until:
        for event in workers.poll(until - time.monotonic()):
            if isinstance(event, TaskEnd):
                ends[running.pop(event.attempt)].append(event)
    for number, name in running.items():
        workers.stop(number)
        ends[name].append(TaskEnd(number, "failed", reason=f"it did not end within {_LIMIT_S:g} s"))
    return ends


def _times(name: str, device_type: str, ends: list[TaskEnd]) -> dict[str, float] | str:
    done = [end.result for end in ends if end.status == "done"]
    if not done:
        return f"{name} could not be probed on {device_type}: {ends[0].reason}"
    return {key: float(np.mean([times[key] for times in done])) for key in ("step_s", "setup_s")}
