"""Power of GEMM kernels as aiconfigurator publishes it (NVIDIA, Apache-2.0), and what every published table of power has."""

from collections.abc import Callable, Iterable
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
    """Read the power of GEMM kernels, of any element type, of aiconfigurator.

    The sensor (NVML) averages over about a second, so kernels below SHORT_MS are marked as short windows. Returns one ``power``
    table per device, none where no file has the column. Raises InputError for a damaged file.
    """
    return newest_tables(folder, ("gemm/*/*/gemm_perf.parquet",), _power, all)


def newest_tables(folder: Path | None, patterns: Iterable[str], read_table: Callable[[Path, str], pd.DataFrame],
                  enough: Callable[[Iterable[bool]], bool]) -> dict[str, pd.DataFrame]:
    """Return the table of each device: of each framework the newest version of each file with power columns.

    ``folder`` None is that of the installed package; ``patterns`` lie below a device's folder. ``enough`` (any, all) of the
    columns power and power_limit must be there.
    """
    folder, tables = folder or importers.aiconfigurator_folder(), {}
    for name, device in importers.AICONFIGURATOR.items():
        files = [path for pattern in patterns for path in folder.glob(f"{name}/{pattern}")]
        newest = {(path.parents[1].name, path.name): path
                  for path in sorted(files, key=lambda path: (importers.version_order(path), path))
                  if enough(name in store.parquet_columns(path) for name in READINGS[1:])}
        if newest:
            tables[device] = pd.concat([read_table(path, device) for path in newest.values()], ignore_index=True)
    return tables


def _power(path: Path, device: str) -> pd.DataFrame:
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
    return importers.write(read(folder), "power", "aiconfigurator", folder, "power", "aiconfigurator")
