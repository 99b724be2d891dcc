"""Recordings of engines: layers, latencies and power log of each network, and power per layer.

A recording is a folder ``<model>/`` or ``<model>/trt_profiling/`` with ``trt_engine_info.json`` and
``trt_layer_latency.json`` (or trtexec's ``X.graph.json`` and ``X.profile.json``). A power log,
``power_log.log`` or ``<model>_power_log.log``, lies in one of these folders, and
``idling_power.json`` there or beside the folders of models.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import files, store
from lib.config.base import json_mapping
from lib.errors import InputError
from lib.measure.energy import power_log
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt.engine import Engine, read_engine
from lib.tensorrt.power_mapping import map_power, read_latencies

ENGINE, LATENCY = "trt_engine_info.json", "trt_layer_latency.json"
POWER, IDLE, FACTS = "power_log.log", "idling_power.json", "recording.json"
LAYERWISE = "power_runtime_mapping_layerwise.csv"
MEASURED = "measured"
_GRAPH, _PROFILE = ".graph.json", ".profile.json"  # of trtexec


class Recording(NamedTuple):
    """A recording of an engine; ``power_source`` is measured, or what the log is instead."""

    engine: Engine
    latencies: pd.DataFrame
    log: PowerLog | None
    idle_w: float
    power_source: str


def _visible(raw: Path, pattern: str) -> list[Path]:
    """Return the files below a folder, but for those in hidden folders."""
    return [path for path in sorted(raw.rglob(pattern))
            if not any(part.startswith(".") for part in path.relative_to(raw).parts)]


def find_recordings(raw: Path) -> dict[str, Path]:
    """Return the engine's file of each recording below a folder, by the recording's name."""
    recordings, used = {}, set()
    for path in sorted([*_visible(raw, ENGINE), *_visible(raw, f"*{_GRAPH}")]):
        parts = list(path.parent.relative_to(raw).parts)
        if parts and parts[-1] == "trt_profiling":
            parts.pop()
        if len(list(path.parent.glob(f"*{_GRAPH}"))) > 1:
            parts.append(path.name.removesuffix(_GRAPH))
        name = "-".join(parts) or raw.resolve().name
        if name in recordings:
            raise InputError(f"{raw}: {recordings[name].parent} and {path.parent} would both be "
                             f"called {name!r}; rename one of them")
        recordings[name] = path
        used.add(_power_files(path)[0])
    if not recordings:
        raise InputError(f"{raw} holds no recording: no folder with {ENGINE} and {LATENCY}, or "
                         f"with trtexec's X{_GRAPH} and X{_PROFILE}")
    for path in _visible(raw, "*power_log*.log"):
        if path.resolve() not in used and "idling" not in path.name:
            raise InputError(f"{path} is used by no recording: name it <model>/{POWER} or <model>/"
                             f"<model>_{POWER}, with an engine in <model> and {IDLE} there or one "
                             "level up, or move it away")
    return recordings


def _power_files(engine: Path) -> tuple[Path | None, Path | None]:
    """Return the power log and the idle power beside an engine; None where one is missing."""
    place = engine.parent.resolve()
    model = place.parent if place.name == "trt_profiling" else place
    logs = [folder / name for folder in (place, model) for name in (POWER, f"{model.name}_{POWER}")]
    idles = [folder / IDLE for folder in (place, model, model.parent)]
    log = next((path.resolve() for path in logs if path.is_file()), None)
    idle = next((path for path in idles if path.is_file()), None)
    return (log, idle) if log and idle else (None, None)


def read_recording(path: Path) -> Recording:
    """Read the recording of an engine's file; InputError for a missing or damaged file."""
    engine = read_engine(path)
    latency = LATENCY if path.name == ENGINE else path.name.replace(_GRAPH, _PROFILE)
    latencies = read_latencies(path.with_name(latency), engine)
    log, idle = _power_files(path)
    if log is None:
        return Recording(engine, latencies, None, np.nan, "not measured")
    return Recording(engine, latencies, power_log.read(log), power_log.read_idle_w(idle),
                     power_source(path.parent))


def power_source(folder: Path) -> str:
    """Return where a recording's power is from: ``recording.json`` says what was not measured."""
    path = folder / FACTS
    return str(json_mapping(path).get("power")) if path.exists() else MEASURED


def preprocess(raw: Path, target: Path) -> dict[Path, list[str]]:
    """Write ``target/<model>/`` with a row per cycle and layer; return notes by folder."""
    notes = {}
    for name, path in find_recordings(raw).items():
        recording, place = read_recording(path), target / name
        table, notes[place] = map_power(recording.engine, recording.latencies, recording.log,
                                        recording.idle_w)
        if not recording.log:
            notes[place].append(f"no power: {POWER} or {IDLE} is missing")
        with files.writing(place):
            (place / LAYERWISE).unlink(missing_ok=True)  # an earlier table is of other facts
        files.replace(place / FACTS, store.encoded_json({"power": recording.power_source}))
        files.replace(place / ENGINE, path.read_bytes())
        files.replace(place / LAYERWISE, table.to_csv(index=False).encode())
    return notes
