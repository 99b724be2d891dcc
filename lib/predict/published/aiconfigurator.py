"""Times and power of GEMMs that aiconfigurator publishes, as ``sweep`` and ``power`` tables.

The data lie in a folder (the package's, or its data) or in a wheel. Times are means in ms of warm
calls in CUDA graphs. Power is NVML's mean of about a second: short calls do not fill it.
"""

import re
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices, refused
from lib.predict.published.kernels import Benchmark, products
from lib.predict.published.reading import with_numbers
from lib.tables import columns

DEVICES = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200", "l40s": "l40s",
           "a100_sxm": "a100-sxm-80gb"}
FRAMEWORK = "trtllm"  # whose times are read
SHORT_MS = 0.02  # a call below which the sensor's mean still holds what ran before
_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
_SIZES = {"m": "gemm_m", "k": "gemm_k", "n": "gemm_n"}
_OVER_LIMIT = 1.05  # of the power limit: regulation overshoots, and a sensor errs by 5 %
_FOLDER = "aiconfigurator_core/systems/data"
_FILE = re.compile(rf"{_FOLDER}/(?:{'|'.join(DEVICES)})/gemm/[\w.-]+/[\w.-]+/gemm_perf\.parquet")


@contextmanager
def data_folder(path: Path) -> Iterator[Path]:
    """Give the folder of the devices' data; the GEMMs of a wheel are unpacked meanwhile.

    Raises InputError for a file that is no wheel.
    """
    if path.is_dir():
        yield path / _FOLDER if (path / _FOLDER).is_dir() else path
        return
    with tempfile.TemporaryDirectory() as scratch:
        with refused(f"{path} is no wheel or is damaged: "), zipfile.ZipFile(path) as wheel:
            wheel.extractall(scratch, filter(_FILE.fullmatch, wheel.namelist()))
        yield Path(scratch) / _FOLDER


def _newest(folder: Path, framework: str, wanted: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield device and file: of each framework the newest version with the columns ``wanted``."""
    for name, device in DEVICES.items():
        found = sorted(folder.glob(f"{name}/gemm/{framework}/*/gemm_perf.parquet"), key=_version)
        newest = {path.parents[1].name: path for path in found
                  if wanted <= set(store.parquet_columns(path))}
        yield from ((device, path) for path in newest.values())


def _version(path: Path) -> tuple:
    """Return a sort key of a file's version: numbers by value, a release after its candidates."""
    release, _, candidate = path.parent.name.partition("rc")
    number = int(candidate) if candidate.isdigit() else 999
    return path.parents[1].name, [int(part) for part in re.findall(r"\d+", release)], number


def _software(path: Path) -> str:
    return f"aiconfigurator {path.parents[1].name} {path.parent.name}"


def _read(path: Path, numbers: list[str], dtypes: Collection[str] = ()) -> pd.DataFrame:
    """Read an original's GEMMs, those of ``dtypes`` alone if given; InputError for wrong cells."""
    table = store.read_parquet(path, ("gemm_dtype", *_SIZES, *numbers), others=True)
    if dtypes:
        table = table[table["gemm_dtype"].isin(dtypes)]
    table = with_numbers(table.astype({"gemm_dtype": str}), path, _SIZES, numbers)
    return table.rename(columns=_SIZES)


def gemms(path: Path) -> dict[str, pd.DataFrame]:
    """Read the GEMMs in 16 bits, a ``sweep`` table per device; InputError where there are none."""
    parts = {}
    with data_folder(path) as folder:
        for device, file in _newest(folder, FRAMEWORK, set()):
            for dtype, rows in _read(file, ["latency"], _DTYPES).groupby("gemm_dtype"):
                by = Benchmark(device, _software(file), dtype=_DTYPES[dtype])
                parts.setdefault(device, []).append(
                    products(rows[list(_SIZES.values())], rows["latency"], by))
    if not parts:
        raise InputError(f"{path} has no <gpu>/gemm/{FRAMEWORK}/<version>/gemm_perf.parquet of "
                         f"{choices(DEVICES)}")
    return {device: pd.concat(tables, ignore_index=True) for device, tables in parts.items()}


def gemm_power(path: Path) -> dict[str, pd.DataFrame]:
    """Read the power of GEMMs of any element type, a ``power`` table per device, if there is any.

    A row without a positive time and power, or with power beyond the limit, is a failed row.
    """
    parts = {}
    with data_folder(path) as folder:
        for device, file in _newest(folder, "*", {"power", "power_limit"}):
            parts.setdefault(device, []).append(_power(file, device))
    return {device: pd.concat(tables, ignore_index=True) for device, tables in parts.items()}


def _power(path: Path, device: str) -> pd.DataFrame:
    table = _read(path, ["latency", "power", "power_limit"])
    sizes = table[["gemm_m", "gemm_k", "gemm_n"]]
    latency, limit = (table[name].where(table[name] > 0) for name in ("latency", "power_limit"))
    watts = table["power"].where((table["power"] > 0) & ~(table["power"] > _OVER_LIMIT * limit))
    good = latency.notna() & watts.notna()
    return sizes.assign(
        op="linear", flops=2.0 * sizes.prod(axis=1), latency_ms=latency, limit_w=limit,
        dtype=table["gemm_dtype"].map(_DTYPES).fillna(table["gemm_dtype"]),
        power_w=watts.where(good), window=np.where(latency >= SHORT_MS, "long", "short"),
        status=np.where(good, "ok", "failed"), reason=np.where(
            good, "", "the original has no positive time here, or no power up to the limit"),
        hardware_id=f"published:{device}", software_id=_software(path))[columns("power")]
