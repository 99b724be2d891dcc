"""Latencies of an engine's layers, and their power: the mean of the samples in each window."""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from lib import store
from lib.config.base import error_line
from lib.errors import InputError
from lib.measure.energy.power_log import PowerLog, seconds
from lib.tensorrt.engine import Engine

ABOVE_IDLE = "layer_power_excluding_idle_power_micro_watt"
COLUMNS = ("cycle", "layer_name", "layer_type", "layer_power_including_idle_power_micro_watt",
           ABOVE_IDLE, "layer_run_time")
_Milliseconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
_Stamp = Annotated[float, BeforeValidator(seconds)] | None
_Run = Annotated[tuple[_Milliseconds, _Stamp],
                 BeforeValidator(lambda run: run if isinstance(run, list) else (run, None))]
_RUNS = TypeAdapter(Annotated[dict[str, list[_Run]], Field(min_length=1)])


def read_latencies(path: Path, engine: Engine) -> pd.DataFrame:
    """Return one row per layer and cycle: layer_name, cycle, layer_run_time (ms), start_s, end_s.

    The file holds ``{layer: [ms, ...]}``, ``{layer: [[ms, "YYYYMMDD-HH:MM:SS.ffffff"], ...]}``, or
    trtexec's ``--exportProfile`` (one median per layer). Without time stamps start_s and end_s are
    NaN. Latencies of a name that several layers share are left out. Raises InputError.
    """
    content = store.read_json(path)
    if isinstance(content, list):
        content = _from_trtexec(content, engine, path)
    try:
        runs = _RUNS.validate_python(content)
    except ValidationError as error:
        raise InputError(error_line(error, f"{path} holds no latencies of layers", ())) from None
    rows = [(name, cycle, *run) for name, cycles in runs.items()
            for cycle, run in enumerate(cycles, start=1)]
    table = pd.DataFrame(rows, columns=["layer_name", "cycle", "layer_run_time", "end_s"])
    table = table[~table["layer_name"].isin(engine.shared_names)].astype({"end_s": float})
    return table.assign(start_s=table["end_s"] - table["layer_run_time"] / 1e3)


def _from_trtexec(entries: list, engine: Engine, path: Path) -> dict[str, list]:
    times = {}
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        if isinstance(fields.get("name"), str):
            times[fields["name"]] = [fields.get("medianMs", fields.get("averageMs"))]
        elif "count" not in fields:
            raise InputError(f"{path}: an entry is no layer of trtexec's profile, which has a name "
                             "and medianMs or averageMs")
    if next(iter(times), None) in engine.shared_names:  # trtexec takes it for the next run's start
        raise InputError(f"{path}: several layers of the engine have the first layer's name, so "
                         "trtexec mixes the times of all layers; use params/profile_layers.py")
    return times


def window_means(start_s: np.ndarray, end_s: np.ndarray,
                 log: PowerLog) -> tuple[np.ndarray, np.ndarray]:
    """Return mean power (W) and number of the samples with start <= t <= end of windows (n,).

    A window without a sample or time stamp (NaN) has a mean of NaN.
    """
    first = np.searchsorted(log.at_s, start_s, side="left")
    last = np.searchsorted(log.at_s, end_s, side="right")
    total = np.concatenate([[0.0], np.cumsum(log.power_w)])
    count = np.where(np.isfinite(start_s) & np.isfinite(end_s), last - first, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, (total[last] - total[first]) / count, np.nan), count


def map_power(engine: Engine, latencies: pd.DataFrame, log: PowerLog | None = None,
              idle_w: float = np.nan) -> tuple[pd.DataFrame, list[str]]:
    """Return one row per cycle and layer in ``COLUMNS`` (µW, ms), and notes on what is missing.

    Raises InputError for latencies of another engine, and for a log that does not overlap them.
    """
    layers = pd.DataFrame([(layer.name, layer.layer_type) for layer in engine.layers],
                          columns=["layer_name", "layer_type"])
    table = layers.merge(latencies, on="layer_name")
    table = table.sort_values(["cycle", "start_s"], ignore_index=True)
    if table.empty:
        raise InputError(f"{engine.path}: none of its layers has latencies; the two files are not "
                         "of one engine and optimisation profile")
    unknown = set(latencies["layer_name"]) - set(layers["layer_name"])
    silent = ~layers["layer_name"].isin(latencies["layer_name"])
    notes = [f"{len(unknown)} latencies are of no layer of the engine"] if unknown else []
    if silent.any():
        shared = layers["layer_name"].isin(engine.shared_names).sum()
        notes.append(f"{silent.sum()} of {len(layers)} layers have no latency ({shared} of them "
                     "share their name)")
    mean_w = np.full(len(table), np.nan)
    if log:
        outside = (table["end_s"] < log.at_s[0]) | (table["start_s"] > log.at_s[-1])
        stamped = table["end_s"].notna().sum()
        if outside.sum() == stamped:
            raise InputError(f"{engine.path}: the power log ({len(log.at_s)} samples) does not "
                             f"overlap the run; {stamped} latencies have time stamps")
        mean_w, samples = window_means(table["start_s"].to_numpy(), table["end_s"].to_numpy(), log)
        notes += [*log.notes, f"{(samples > 0).sum()} of {len(table)} windows hold a power sample, "
                  f"{outside.sum()} lie outside of the log"]
    table[COLUMNS[3]], table[ABOVE_IDLE] = mean_w * 1e6, (mean_w - idle_w) * 1e6
    return table[list(COLUMNS)], notes
