"""Times of GEMMs that aiconfigurator publishes, as ``sweep`` tables.

The data lie in a folder (the package's, or its data) or in a wheel. Times are means in ms of warm
calls in CUDA graphs.
"""

import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from lib import store
from lib.errors import InputError, choices, refused
from lib.predict.published.kernels import Benchmark, products
from lib.predict.published.reading import with_numbers

DEVICES = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200", "l40s": "l40s",
           "a100_sxm": "a100-sxm-80gb"}
FRAMEWORK = "trtllm"  # whose times are read
_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
_SIZES = {"m": "gemm_m", "k": "gemm_k", "n": "gemm_n"}
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


def _newest(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each device with the file of the newest version of FRAMEWORK."""
    for name, device in DEVICES.items():
        found = sorted(folder.glob(f"{name}/gemm/{FRAMEWORK}/*/gemm_perf.parquet"), key=_version)
        if found:
            yield device, found[-1]


def _version(path: Path) -> tuple[list[int], int]:
    """Return a sort key of a file's version: numbers by value, a release after its candidates."""
    release, _, candidate = path.parent.name.partition("rc")
    number = int(candidate) if candidate.isdigit() else 999
    return [int(part) for part in re.findall(r"\d+", release)], number


def _software(path: Path) -> str:
    return f"aiconfigurator {path.parents[1].name} {path.parent.name}"


def _read(path: Path) -> pd.DataFrame:
    """Read an original's GEMMs in 16 bits; InputError for wrong cells."""
    table = store.read_parquet(path, ("gemm_dtype", *_SIZES, "latency"), others=True)
    table = table[table["gemm_dtype"].isin(_DTYPES)]
    table = with_numbers(table.astype({"gemm_dtype": str}), path, _SIZES, ["latency"])
    return table.rename(columns=_SIZES)


def gemms(path: Path) -> dict[str, pd.DataFrame]:
    """Read the GEMMs in 16 bits, a ``sweep`` table per device; InputError where there are none."""
    parts = {}
    with data_folder(path) as folder:
        for device, file in _newest(folder):
            for dtype, rows in _read(file).groupby("gemm_dtype"):
                by = Benchmark(device, _software(file), dtype=_DTYPES[dtype])
                parts.setdefault(device, []).append(
                    products(rows[list(_SIZES.values())], rows["latency"], by))
    if not parts:
        raise InputError(f"{path} has no <gpu>/gemm/{FRAMEWORK}/<version>/gemm_perf.parquet of "
                         f"{choices(DEVICES)}")
    return {device: pd.concat(tables, ignore_index=True) for device, tables in parts.items()}
