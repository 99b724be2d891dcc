"""What aiconfigurator publishes (NVIDIA, Apache-2.0): times and power of GEMMs.

The data lie in the installed package, in a folder, or in a wheel that is read without being installed. Times are means in ms of
warm calls in CUDA graphs. Power is NVML's mean of about a second: short calls do not fill it, and their reading is rather that
of what ran before.
"""

import importlib.util
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from lib import store
from lib.csv_files import LARGEST_MB
from lib.errors import InputError, choices, refused
from lib.measure import importers
from lib.tables import columns

DEVICES = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200", "l40s": "l40s", "a100_sxm": "a100-sxm-80gb"}
FRAMEWORK = "trtllm"  # whose times are read
SHORT_MS = 0.02  # a call below which the sensor's mean still holds what ran before
_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
_TYPE, _SIZES = "gemm_dtype", ("m", "n", "k")
_READINGS = ("latency", "power", "power_limit")
_OVER_LIMIT = 1.05  # of the power limit that a sensor may read: regulation overshoots, and its error is 5 %
_DATA, _SUFFIX = PurePosixPath("aiconfigurator_core/systems/data"), ".whl"
Tables = dict[str, pd.DataFrame]


def _newest(folder: Path | None, pattern: str, read_table: Callable[[Path, str], pd.DataFrame],
            enough: Callable[[list[str]], bool] = bool) -> Tables:
    """Return the table of each device: of each framework the newest version of each file whose columns are ``enough``.

    ``folder`` None is that of the installed package; ``pattern`` is that of files below a device's folder.
    """
    folder, tables = folder or _of_package(), {}
    for name, device in DEVICES.items():
        files = sorted(folder.glob(f"{name}/{pattern}"), key=lambda path: (_version(path), path))
        newest = {(path.parents[1].name, path.name): path for path in files if enough(store.parquet_columns(path))}
        parts = [table for path in newest.values() if len(table := read_table(path, device))]
        if parts:
            tables[device] = pd.concat(parts, ignore_index=True)
    return tables


def _of_package() -> Path:
    """Return the data folder of the installed package; InputError where it is not installed."""
    package = importlib.util.find_spec("aiconfigurator_core")
    if not package:
        raise InputError("the package aiconfigurator-core is not installed; get it with: pip install "
                         "aiconfigurator-core==0.12.0 (82 MB), or name a folder of its layout: "
                         "<gpu>/gemm/<framework>/<version>/gemm_perf.parquet")
    return Path(package.submodule_search_locations[0]) / "systems" / "data"


def _version(path: Path) -> tuple:
    """Return a version folder's place among its like: numbers compare as numbers, a release after its candidates."""
    text = path.parent.name
    candidate = int((re.findall(r"rc(\d+)", text) or [999])[0])
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("rc")[0])), candidate


def _software(path: Path) -> str:
    return f"aiconfigurator {path.parents[1].name} {path.parent.name}"


def _frame(path: Path, numbers: Iterable[str], dtypes: Container[str] = ()) -> pd.DataFrame:
    """Read an original's GEMMs with these numbers, only those of ``dtypes`` if they are given.

    Raises InputError for a damaged file, and for cells that are no such numbers.
    """
    frame = store.read_parquet(path, (_TYPE, *_SIZES, *numbers), others=True)
    frame = frame[frame[_TYPE].isin(dtypes)] if dtypes else frame
    return importers.checked(frame.astype({_TYPE: str}), path, _SIZES, numbers)


def gemms(folder: Path | None = None) -> Tables:
    """Return the GEMMs in 16 bits as a ``sweep`` table a device; InputError for a folder without such files."""
    def read(path: Path, device: str) -> pd.DataFrame:
        frame = _frame(path, ("latency",), _DTYPES)
        parts = [importers.gemm(part["m"], part["k"], part["n"], part["latency"],
                                importers.Source(device, _software(path), "kernel", _DTYPES[dtype]))
                 for dtype, part in frame.groupby(_TYPE)]
        return pd.concat(parts) if parts else pd.DataFrame()

    tables = _newest(folder, f"gemm/{FRAMEWORK}/*/gemm_perf.parquet", read)
    if not tables:
        raise InputError(f"{folder or _of_package()} has no <gpu>/gemm/{FRAMEWORK}/<version>/gemm_perf.parquet of "
                         f"{choices(DEVICES)}")
    return tables


def gemm_power(folder: Path | None = None) -> Tables:
    """Return the power of GEMMs, of any element type, as a ``power`` table a device; none where no file has it.

    A row without a positive time and power, or with one beyond the limit, is failed; short calls are marked.
    """
    def read(path: Path, device: str) -> pd.DataFrame:
        frame = _frame(path, _READINGS)
        sizes = frame.rename(columns={size: f"gemm_{size}" for size in "mkn"})[["gemm_m", "gemm_k", "gemm_n"]]
        timed, limit = (frame[name].where(frame[name] > 0) for name in ("latency", "power_limit"))
        watts = frame["power"].where((frame["power"] > 0) & ~(frame["power"] > _OVER_LIMIT * limit))
        good = timed.notna() & watts.notna()
        return sizes.assign(
            op="linear", flops=2.0 * sizes.prod(axis=1), dtype=frame[_TYPE].map(_DTYPES).fillna(frame[_TYPE]), latency_ms=timed,
            power_w=watts.where(good), limit_w=limit, window=np.where(timed >= SHORT_MS, "long", "short"),
            status=np.where(good, "ok", "failed"),
            reason=np.where(good, "", "the original has no positive time here, or no power up to the limit"),
            hardware_id=f"published:{device}", software_id=_software(path))[columns("power")]

    return _newest(folder, "gemm/*/*/gemm_perf.parquet", read, {*_READINGS[1:]}.issubset)


def bring_in(path: Path | None) -> dict[str, importers.Written]:
    """Write all that is published into ``data/imported/<device>``; return files and tables by device, of each kind of table."""
    with data_folder(path) as folder:
        if folder and not folder.exists():
            raise InputError(f"{folder} is missing")
        write = partial(importers.write, source="aiconfigurator", path=folder)
        return {"sweep": write(gemms(folder), "sweep", place=("sweeps", "aiconfigurator")),
                "power": write(gemm_power(folder), "power", place=("power", "aiconfigurator"))}


@contextmanager
def data_folder(path: Path | None) -> Iterator[Path | None]:
    """Give the data folder of aiconfigurator: None stays None, a wheel's tables of GEMMs are unpacked meanwhile.

    Raises InputError for a file that is no such wheel, or one whose tables are too large.
    """
    if path is None or not path.is_file():
        inside = path / _DATA if path else None
        yield inside if inside and inside.is_dir() else path
        return
    if path.suffix != _SUFFIX:
        raise InputError(f"{path} is neither a folder nor a wheel (aiconfigurator_core-<version>{_SUFFIX})")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / path.name
        with refused(f"{path} is no wheel or is damaged: "), zipfile.ZipFile(path) as archive:
            _unpack(archive, folder, path)
        yield folder


def _unpack(archive: zipfile.ZipFile, folder: Path, path: Path) -> None:
    """Write the tables of known devices under ``folder``; nothing else of the archive is read, and no more than it says."""
    devices = "|".join(DEVICES)
    is_table = re.compile(rf"{_DATA}/(({devices})/gemm(/(?!\.\.?/)[^/\\]+){{2}}/[^/\\]+_perf\.parquet)").fullmatch
    tables = [(entry, match[1]) for entry in archive.infolist() if (match := is_table(entry.filename))]
    if not tables:
        raise InputError(f"{path} holds no {_DATA}/<gpu>/gemm/<framework>/<version>/<table>_perf.parquet of "
                         f"{choices(DEVICES)}")
    megabytes = sum(entry.file_size for entry, _ in tables) / 1e6
    if megabytes > LARGEST_MB:
        raise InputError(f"{path} holds tables of {megabytes:,.0f} MB; it has at most {LARGEST_MB:,.0f} MB")
    for entry, name in tables:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink)
