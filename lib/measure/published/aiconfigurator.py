"""What aiconfigurator publishes (NVIDIA, Apache-2.0): times and power of GEMMs, power of attention kernels.

The data lie in the installed package, in a folder, or in a wheel that is read without being installed. Times are means in ms of
warm calls in CUDA graphs. Power is NVML's mean of about a second: short calls do not fill it, and their reading is rather that
of what ran before. Attention is vLLM's with a paged cache of keys and values; its collector repeats a call at most 3000 times
and reads first before the calls begin, so even those that fill the second share about half of their reading.
"""

import importlib.util
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from lib import store
from lib.csv_files import LARGEST_MB
from lib.errors import InputError, choices, one_line
from lib.measure import importers
from lib.tables import columns

DEVICES = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200", "l40s": "l40s", "a100_sxm": "a100-sxm-80gb"}
FRAMEWORK = "trtllm"  # whose times are read
SHORT_MS = {"power": 0.02, "attention_power": 1e3 / 3000}  # a call below which the sensor's mean still holds what ran before
_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
_ATTENTION_DTYPES = {**_DTYPES, "fp8": "fp8"}
_ITEM = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
_READINGS = ("latency", "power", "power_limit")
_OVER_LIMIT = 1.05  # of the power limit that a sensor may read: regulation overshoots, and its error is 5 %
SHAPE = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "sliding_window")
_PHASES = {"context": "prefill", "generation": "decode"}
_TEXTS = ("framework", "version", "device", "op_name", "kernel_source", "attn_dtype", "kv_cache_dtype")
_COUNTS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "beam_width", "step", "window_size")
_NAMES = {"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim",
          "isl": "q_len", "window_size": "sliding_window", "kernel_source": "kernel"}
_DATA, _KINDS, _SUFFIX = PurePosixPath("aiconfigurator_core/systems/data"), ("gemm", "attention"), ".whl"
Tables = dict[str, pd.DataFrame]


def _newest(folder: Path | None, patterns: Iterable[str], read_table: Callable[[Path, str], pd.DataFrame],
            enough: Callable[[list[str]], bool] = bool) -> Tables:
    """Return the table of each device: of each framework the newest version of each file whose columns are ``enough``.

    ``folder`` None is that of the installed package; ``patterns`` lie below a device's folder.
    """
    folder, tables = folder or _of_package(), {}
    for name, device in DEVICES.items():
        files = sorted((path for pattern in patterns for path in folder.glob(f"{name}/{pattern}")),
                       key=lambda path: (_version(path), path))
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


def _frame(path: Path, texts: Iterable[str], counts: Iterable[str], numbers: Iterable[str],
           others: bool = True, dtypes: Container[str] = ()) -> pd.DataFrame:
    """Read an original's columns, only the GEMMs of ``dtypes`` if they are given.

    Raises InputError for a damaged file, and for cells that are no such numbers.
    """
    frame = store.read_parquet(path, (*texts, *counts, *numbers), others=others)
    frame = frame[frame["gemm_dtype"].isin(dtypes)] if dtypes else frame
    return importers.checked(frame.astype(dict.fromkeys(texts, str)), path, counts, numbers)


def gemms(folder: Path | None = None) -> Tables:
    """Return the GEMMs in 16 bits as a ``sweep`` table a device; InputError for a folder without such files."""
    def read(path: Path, device: str) -> pd.DataFrame:
        frame = _frame(path, ("gemm_dtype",), ("m", "n", "k"), ("latency",), dtypes=_DTYPES)
        parts = [importers.gemm(part["m"], part["k"], part["n"], part["latency"],
                                importers.Source(device, _software(path), "kernel", _DTYPES[dtype]))
                 for dtype, part in frame.groupby("gemm_dtype")]
        return pd.concat(parts) if parts else pd.DataFrame()

    tables = _newest(folder, [f"gemm/{FRAMEWORK}/*/gemm_perf.parquet"], read)
    if not tables:
        raise InputError(f"{folder or _of_package()} has no <gpu>/gemm/{FRAMEWORK}/<version>/gemm_perf.parquet of "
                         f"{choices(DEVICES)}")
    return tables


def gemm_power(folder: Path | None = None) -> Tables:
    """Return the power of GEMMs, of any element type, as a ``power`` table a device; none where no file has it."""
    def read(path: Path, device: str) -> pd.DataFrame:
        frame = _frame(path, ("gemm_dtype",), ("m", "n", "k"), _READINGS)
        sizes = frame.rename(columns={size: f"gemm_{size}" for size in "mkn"})[["gemm_m", "gemm_k", "gemm_n"]]
        return sizes.assign(**_readings(frame, path, device, "power"), op="linear", flops=2.0 * sizes.prod(axis=1),
                            dtype=frame["gemm_dtype"].map(_DTYPES).fillna(frame["gemm_dtype"]))[columns("power")]

    return _newest(folder, ["gemm/*/*/gemm_perf.parquet"], read, {*_READINGS[1:]}.issubset)


def attention_power(folder: Path | None = None) -> Tables:
    """Return the power of attention kernels as an ``attention_power`` table a device; none where no file has it.

    Raises InputError for a file with other columns, or cells that are no such numbers.
    """
    def read(path: Path, device: str) -> pd.DataFrame:
        frame = _frame(path, _TEXTS, _COUNTS, _READINGS, others=False)
        original = path.name.partition("_")[0]
        dtypes = {name: frame[name].map(_ATTENTION_DTYPES) for name in ("attn_dtype", "kv_cache_dtype")}
        for name, wrong, right in (
                ("op_name", frame["op_name"] != f"{original}_attention", f"{original}_attention"),
                ("beam_width", frame["beam_width"] != 1, "1: beams are not known here"),
                ("num_key_value_heads", frame["num_heads"] % frame["num_key_value_heads"] != 0, "a divisor of num_heads"),
                *((name, values.isna(), f"one of {choices(_ATTENTION_DTYPES)}") for name, values in dtypes.items())):
            if wrong.any():
                value = frame[name][wrong].iloc[0]
                raise InputError(f"{path}: {importers.row_name(wrong.idxmax())} has {value!r} as {name}: it is {right}")
        table = frame.rename(columns=_NAMES)[[*_NAMES.values()]].assign(
            **_readings(frame, path, device, "attention_power"), op="attention", phase=_PHASES[original],
            kv_len=frame["isl"] + frame["step"], dtype=dtypes["attn_dtype"], kv_dtype=dtypes["kv_cache_dtype"])
        return table.assign(**work(table))[columns("attention_power")]

    return _newest(folder, [f"attention/*/*/{phase}_attention_perf.parquet" for phase in _PHASES], read,
                   lambda names: not {*_READINGS[1:]}.isdisjoint(names))


def _readings(frame: pd.DataFrame, path: Path, device: str, table: str) -> dict[str, pd.Series | np.ndarray | str]:
    """Return what every table of power has, of an original's _READINGS: time, power, limit, window, status, ids.

    A row without a positive time and power, or with one beyond the limit, is failed; short calls are marked.
    """
    timed, limit = (frame[name].where(frame[name] > 0) for name in ("latency", "power_limit"))
    watts = frame["power"].where((frame["power"] > 0) & ~(frame["power"] > _OVER_LIMIT * limit))
    good = timed.notna() & watts.notna()
    return {"latency_ms": timed, "power_w": watts.where(good), "limit_w": limit,
            "window": np.where(timed >= SHORT_MS[table], "long", "short"), "status": np.where(good, "ok", "failed"),
            "reason": np.where(good, "", "the original has no positive time here, or no power up to the limit"),
            "hardware_id": f"published:{device}", "software_id": _software(path)}


def pairs(q_len: np.ndarray, kv_len: np.ndarray, sliding_window: np.ndarray) -> np.ndarray:
    """Return how many pairs of query and key causal attention has in a head: queries are the last of the ``kv_len`` tokens."""
    reach = np.where(sliding_window > 0, np.minimum(sliding_window, kv_len), kv_len).astype(float)
    first = kv_len - q_len + 1.0  # keys before or at the first query
    rising = np.clip(reach - first, 0, q_len)  # queries that see all before them
    return rising * first + rising * (rising - 1) / 2 + (q_len - rising) * np.minimum(reach, kv_len)


def work(table: Mapping[str, pd.Series]) -> dict[str, np.ndarray]:
    """Return ``flops`` and compulsory ``bytes`` of causal attention, from the shape columns of ``attention_power``."""
    batch, heads, kv_heads, size, q_len, kv_len, window = (np.asarray(table[name], float) for name in SHAPE)
    visible = np.where(window > 0, np.minimum(kv_len, q_len + window - 1), kv_len)
    item, kv_item = (np.array([_ITEM[dtype] for dtype in table[name]]) for name in ("dtype", "kv_dtype"))
    return {"flops": 4.0 * batch * heads * size * pairs(q_len, kv_len, window),
            "bytes": batch * size * (2 * q_len * heads * item + 2 * visible * kv_heads * kv_item)}


def bring_in(path: Path | None) -> dict[str, importers.Written]:
    """Write all that is published into ``data/imported/<device>``; return files and tables by device, of each kind of table."""
    with data_folder(path) as folder:
        if folder and not folder.exists():
            raise InputError(f"{folder} is missing")
        write = partial(importers.write, source="aiconfigurator", path=folder)
        return {"sweep": write(gemms(folder), "sweep", place=("sweeps", "aiconfigurator")),
                **{table: write(read(folder), table, place=("power", "aiconfigurator"))
                   for table, read in (("power", gemm_power), ("attention_power", attention_power))}}


@contextmanager
def data_folder(path: Path | None) -> Iterator[Path | None]:
    """Give the data folder of aiconfigurator: None stays None, a wheel's GEMM and attention tables are unpacked meanwhile.

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
        try:
            with zipfile.ZipFile(path) as archive:
                _unpack(archive, folder, path)
        except InputError:
            raise
        except Exception as error:  # a damaged file fails in many ways
            raise InputError(f"{path} is no wheel or is damaged: {one_line(error)}") from None
        yield folder


def _unpack(archive: zipfile.ZipFile, folder: Path, path: Path) -> None:
    """Write the tables of known devices under ``folder``; nothing else of the archive is read, and no more than it says."""
    kinds, devices = "|".join(_KINDS), "|".join(DEVICES)
    is_table = re.compile(rf"{_DATA}/(({devices})/({kinds})(/(?!\.\.?/)[^/\\]+){{2}}/[^/\\]+_perf\.parquet)").fullmatch
    tables = [(entry, match[1]) for entry in archive.infolist() if (match := is_table(entry.filename))]
    if not tables:
        raise InputError(f"{path} holds no {_DATA}/<gpu>/<{kinds}>/<framework>/<version>/<table>_perf.parquet of "
                         f"{choices(DEVICES)}")
    megabytes = sum(entry.file_size for entry, _ in tables) / 1e6
    if megabytes > LARGEST_MB:
        raise InputError(f"{path} holds tables of {megabytes:,.0f} MB; it has at most {LARGEST_MB:,.0f} MB")
    for entry, name in tables:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink)
