"""Recordings made here, in the formats of an edge board: layers with time stamps, and power where there is a meter."""

import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib import files, locks, store
from lib.config.base import json_mapping
from lib.errors import InputError, choices
from lib.measure import machine
from lib.measure.energy import meters, power_log
from lib.measure.energy.power_log import STAMP, PowerLog
from lib.measure.energy.trace import LEAST_SAMPLES
from lib.measure.energy.windows import Recorder
from lib.measure.timing import synchronize
from lib.progress import track
from lib.tensorrt.recordings import captured_engine, dataset
from lib.work import user_code
from lib.work.graph import capture
from lib.work.networks import Network

_WARMUP = 3
_IDLE_S = 2.0


class _Stopwatch(TorchDispatchMode):
    """Times every operator that torch runs: its name, how long it took in ms, and when it ended, in s of ``perf_counter``."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self.runs = device, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        start_s = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        synchronize(self.device)
        end_s = time.perf_counter()
        self.runs.append((str(function), 1e3 * (end_s - start_s), end_s))
        return result


def record(network: Network, target: Path, runs: int = 100, device: str = "cpu",
           finish: Callable[[Path], object] = lambda folder: None) -> list[str]:
    """Run a network forward, layer by layer, and write ``target``: engine information, latencies, power where there is a meter.

    ``target`` is there as a whole or not at all, ``finish`` included, which may add to the folder that it is given: a recording
    is of one session, so one that was cut short begins anew. Returns notes. Raises InputError where ``target`` is there
    already, or where the operators of a run differ from those of the captured network.
    """
    files.folder(target.parent)
    with locks.writer(target), files.scratch(target) as scratch:
        if target.exists():
            raise InputError(f"{target} is there already: a recording is never overwritten")
        notes = _record(network, scratch, runs, device)
        finish(scratch)
        with files.writing(target):
            scratch.rename(target)
    return notes


def is_recorded(network: Network, target: Path, runs: int, device: str, synthetic: bool) -> bool:
    """Return whether ``target`` holds this very recording; InputError where it holds another one."""
    if not target.exists():
        return False
    wanted = {**_settings(network, runs, device), dataset.SYNTHETIC: synthetic}
    facts = json_mapping(target / dataset.RECORDING)
    there = {**facts, dataset.SYNTHETIC: facts.get("power") == dataset.SYNTHETIC}
    other = [f"{name} is {there.get(name)!r}, not {value!r}" for name, value in wanted.items() if there.get(name) != value]
    if other:
        raise InputError(f"{target} is there already, and is another recording: {choices(other)}; a recording is never "
                         "overwritten: name another folder (--out)")
    return True


def _settings(network: Network, runs: int, device: str) -> dict[str, Any]:
    return {"network": network.name, "shape": list(network.shape), "runs": runs, "device": device}


def _record(network: Network, folder: Path, runs: int, device: str) -> list[str]:
    """Write a recording into a folder; return notes."""
    graph, where = capture.of_network(network, device=device), torch.device(device)
    layers = captured_engine.layers(graph)
    with locks.device(device), Recorder(meters.open_meter(device)) as recorder:
        recorder.rest(_IDLE_S)
        offset_s = time.time() - time.perf_counter()
        passes = _timed(network, where, runs, [op.name for op in graph.ops])
    latencies = {layer["Name"]: [[round(operators[position][1], 6),
                                  datetime.fromtimestamp(offset_s + operators[position][2], UTC).strftime(STAMP)]
                                 for operators in passes] for position, layer in layers}
    log = _power(recorder, offset_s)
    source = dataset.REPLAYED if recorder.meter.replayed else dataset.MEASURED
    facts = {**_settings(network, runs, device), "machine": machine.name(), "utc": store.utc_now(), **machine.ids(),
             "power": source if log else dataset.NOT_MEASURED,
             "reason": recorder.meter.reason or ("" if log else "too few samples")}
    for name, content in ((dataset.ENGINE, {"Layers": [layer for _, layer in layers], "Bindings": []}),
                          (dataset.LATENCY, latencies), (dataset.RECORDING, facts)):
        files.create(folder / name, json.dumps(content, indent=None if name == dataset.LATENCY else 1).encode())
    if log:
        write_power(folder, log, recorder.idle_w)
    return [f"power: {facts['power']}" + (f" ({facts['reason']})" if facts["reason"] else "")]


def _timed(network: Network, device: torch.device, runs: int, names: list[str]) -> list[list[tuple[str, float, float]]]:
    """Return the operators of each run in order; InputError where they are others than ``names``."""
    with user_code.running(f"{network.name} does not run on an input of shape {network.shape}"), torch.no_grad():
        model, (placed, named) = user_code.in_mode(network.build().to(device), False), network.made(device)
        passes = []
        for _ in track(range(_WARMUP + runs), "runs"):
            with _Stopwatch(device) as stopwatch:
                model(*placed, **named)
            passes.append(stopwatch.runs)
    if any([name for name, _, _ in operators] != names for operators in passes):
        raise InputError(f"{network.name} runs other operators on {device} than were captured: no latency could be given to a "
                         "layer")
    return passes[_WARMUP:]


def _power(recorder: Recorder, offset_s: float) -> PowerLog | None:
    """Return what a meter gave as a log, its clock that of the time stamps; None where that is too little, or nothing."""
    trace = recorder.trace
    if max(np.isfinite(trace.power_w).sum(), np.isfinite(trace.counter_j).sum()) < LEAST_SAMPLES:
        return None
    power_w = trace.power_w if np.isfinite(trace.power_w).any() else np.gradient(trace.counter_j, trace.at_s)
    return PowerLog(trace.at_s + offset_s, power_w)


def write_power(folder: Path, log: PowerLog, idle_w: float) -> None:
    """Write the power log of a recording, and its idle power unless that is not known."""
    power_log.write(log, folder / dataset.POWER)
    if math.isfinite(idle_w):
        idle = {"timestamp": store.utc_now(), "avg_idle_power": idle_w * 1e6}
        files.create(folder / dataset.IDLE, store.encoded_json(idle))
