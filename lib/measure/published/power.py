"""Power of GEMM kernels as aiconfigurator publishes it (NVIDIA, Apache-2.0), and what every published table of power has."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.measure import importers
from lib.tables import columns

SHORT_MS = 0.02  # a call below which the sensor's mean still holds what ran before: nobody's power
READINGS = ("latency", "power", "power_limit")  # of an original that has power
_OVER_LIMIT = 1.05  # of the power limit that a sensor may read: regulation overshoots, and its error is 5 %


def read(folder: Path | None = None) -> dict[str, pd.DataFrame]:
    """Read the power of GEMM kernels, of any element type, of aiconfigurator: the newest version of each framework that has it.

    The sensor (NVML) averages over about a second, so kernels below SHORT_MS are marked as short windows. Returns a ``power``
    table a device, none where no file has the column. Raises InputError for a damaged file.
    """
    folder, tables = folder or importers.aiconfigurator_folder(), {}
    for name, device in importers.AICONFIGURATOR.items():
        newest = {}
        for path in sorted(folder.glob(f"{name}/gemm/*/*/gemm_perf.parquet"), key=importers.version_order):
            if {"power", "power_limit"} <= set(store.parquet_columns(path)):
                newest[path.parents[1].name] = path
        if newest:
            tables[device] = pd.concat([_power(path, device) for path in newest.values()], ignore_index=True)
    return tables


def _power(path: Path, device: str) -> pd.DataFrame:
    """Return one file's ``power`` table; rows without a positive time and power, or with one beyond the limit, are failed."""
    frame = store.read_parquet(path, ("gemm_dtype", "m", "n", "k", *READINGS), others=True)
    frame = importers.checked(frame.assign(gemm_dtype=frame["gemm_dtype"].astype(str)), path, ("m", "n", "k"), READINGS)
    m, k, n = (frame[name].to_numpy(np.int64) for name in ("m", "k", "n"))
    table = readings(frame, path, device, SHORT_MS).assign(
        op="linear", gemm_m=m, gemm_k=k, gemm_n=n, flops=2.0 * m * k * n,
        dtype=frame["gemm_dtype"].map(importers.AICONFIGURATOR_DTYPES).fillna(frame["gemm_dtype"]))
    return table[columns("power")]


def readings(frame: pd.DataFrame, path: Path, device: str, short_ms: float) -> pd.DataFrame:
    """Return what every table of power has, of an original's READINGS: time, power, limit, window, status, ids.

    A row without a positive time and power, or with one beyond the limit, is failed; calls below ``short_ms`` are short.
    """
    timed = frame["latency"].where(frame["latency"] > 0)
    limit = frame["power_limit"].where(frame["power_limit"] > 0)
    watts = frame["power"].where((frame["power"] > 0) & ~(frame["power"] > _OVER_LIMIT * limit))
    good = timed.notna() & watts.notna()
    return pd.DataFrame({"latency_ms": timed, "power_w": watts.where(good), "limit_w": limit,
                         "window": np.where(timed >= short_ms, "long", "short"), "status": np.where(good, "ok", "failed"),
                         "reason": np.where(good, "", "the original has no positive time here, or no power up to the limit"),
                         "hardware_id": f"published:{device}",
                         "software_id": f"aiconfigurator {path.parents[1].name} {path.parent.name}"})


def bring_in(folder: Path | None) -> dict[str, tuple[Path, pd.DataFrame]]:
    """Turn the power that aiconfigurator publishes into ``data/imported/<device>/power``; return file and table by device."""
    return write(read(folder), "power", folder.name if folder else "aiconfigurator-core")


def write(tables: Mapping[str, pd.DataFrame], kind: str, origin: str) -> dict[str, tuple[Path, pd.DataFrame]]:
    """Write tables of power by device, of the kind ``power`` or ``attention_power``; return file and table by device."""
    targets = {device: importers.imported(device, "power", "aiconfigurator", f"{kind}.parquet") for device in tables}
    for device, table in tables.items():
        store.write(table, targets[device], kind, derived=True)
        store.write_meta(targets[device], kind, source="aiconfigurator", origin=origin, device=device, rows=len(table),
                         short_windows=int((table["window"] == "short").sum()))
    return {device: (targets[device], table) for device, table in tables.items()}
