"""Published operator measurements as ``sweep`` tables, one per device: models of devices that are not at hand learn from them.

FLOPs and compulsory bytes are computed from the shapes. An original without spread or repeats gives noisy rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, files, paths, store
from lib.config import definitions
from lib.config.base import mapping
from lib.errors import InputError, choices, entry
from lib.measure.energy.trace import Energy
from lib.tables import PARAMETERS, columns
from lib.work.graph import counts

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_FROM_NONE = ("Padding",)  # what an original may count none of
_LATENCY_TYPES = {"external": "kernel", "internal": "end_to_end"}
_LEAST_MS, _MOST_MS = 1e-6, 1e9  # of what can be a time: not a nanosecond, nor eleven days
_MOST = 2**31 - 1  # of what an original counts
_ONE_VALUE = "the original gives one value, without spread"


@dataclass(frozen=True)
class Source:
    """Who measured the rows of a table: our id of the device, the software, and how the calls were timed."""

    device: str
    software: str
    latency_type: str
    dtype: str = "fp32"


def _table(op: str, values: Mapping[str, Any], flops: np.ndarray, moved: np.ndarray, latency_ms: pd.Series,
           source: Source) -> pd.DataFrame:
    """Complete the parameters of one operator family to a ``sweep`` table; rows without a positive time are failed ones."""
    absent = {name: "" for name, column in PARAMETERS.items() if column.kind == "str"}
    latency_ms = latency_ms.to_numpy(float, copy=True)
    good = (latency_ms > _LEAST_MS) & (latency_ms < _MOST_MS)
    latency_ms[~good] = np.nan
    frame = pd.DataFrame({**absent, **values, "op": op, "dtype": source.dtype, "pass": "forward", "device": "cuda:0",
                          "latency_ms": latency_ms, "n": np.where(good, 1, 0),
                          "latency_type": source.latency_type, "cache": "warm", "flops": flops, "bytes": moved,
                          "gflops": flops / latency_ms / 1e6, "gbps": moved / latency_ms / 1e6,
                          "status": np.where(good, "ok", "failed"),
                          "reason": np.where(good, _ONE_VALUE, "the original has no time here that could be one"),
                          "verdict": np.where(good, "noisy", "unusable"), "hardware_id": f"published:{source.device}",
                          "software_id": source.software, "threads": 1, "low_ms": latency_ms, "high_ms": latency_ms,
                          "tf32": False,
                          **Energy(np.nan, reason="the original gives no energy").columns})
    named = [name for name in values if name not in ("layout", "kind")]
    keys = frame[named].astype(str).agg(" ".join, axis=1) + f" {op} {source.dtype} {source.latency_type}"
    numbers = keys.groupby(keys).cumcount().astype(str)
    frame["config"] = [store.digest([key, number, source.device]) for key, number in zip(keys, numbers, strict=True)]
    return frame.reindex(columns=columns("sweep"))


def _output(v: pd.DataFrame, size: pd.Series) -> pd.Series:
    return (size + 2 * v.padding_h - v.kernel_h) // v.stride_h + 1


def convolution(v: pd.DataFrame, item: int) -> tuple[pd.Series, pd.Series]:
    """Return FLOPs and compulsory bytes of square, dense 2-D convolutions without bias, a row of parameters each.

    ``item`` is the size of an element, in bytes.
    """
    v = v.astype(float)  # no product of counts overflows

    def read(size: pd.Series, out: pd.Series) -> pd.Series:
        """Return how many rows or columns of the input the kernel touches."""
        touched = (out - 1) * v.stride_h + v.kernel_h - v.padding_h
        return np.minimum(size, np.where(v.stride_h <= v.kernel_h, touched, out * v.kernel_h))

    out_height, out_width = _output(v, v.height), _output(v, v.width)
    made = v.batch * v.out_channels * out_height * out_width
    weights = v.out_channels * v.in_channels * v.kernel_h ** 2
    taken = v.batch * v.in_channels * read(v.height, out_height) * read(v.width, out_width)
    return 2.0 * made * v.in_channels * v.kernel_h ** 2, item * (taken + weights + made)


def _convolutions(frame: pd.DataFrame, source: Source, named: Mapping[str, str]) -> pd.DataFrame:
    """Turn square convolutions into our columns; ``named`` maps batch, in_channels, ... to the original's names."""
    v = pd.DataFrame({name: frame[column].to_numpy(np.int64) for name, column in named.items()})
    v = v.assign(batch=v.get("batch", 1), width=v.get("width", v.height), padding_h=v.get("padding_h", v.kernel_h // 2))
    empty = np.minimum(_output(v, v.height), _output(v, v.width)) < 1
    if empty.any():
        raise InputError(f"{source.software}: {row_name(frame.index[empty][0])} has a kernel larger than its padded input")
    values = v.assign(kernel_w=v.kernel_h, stride_w=v.stride_h, padding_w=v.padding_h, dilation_h=1, dilation_w=1, groups=1,
                      bias=0, input_grad=1, layout="contiguous")
    return _table("conv2d", values, *convolution(v, _BYTES[source.dtype]), frame["Latency"], source)


def gemm(m: pd.Series, k: pd.Series, n: pd.Series, latency_ms: pd.Series, source: Source, batch: pd.Series | int = 1,
         op: str = "linear") -> pd.DataFrame:
    """Turn GEMMs, or batched ones, into our columns."""
    sizes = pd.DataFrame({"batch": batch, "gemm_m": m, "gemm_k": k, "gemm_n": n}).astype(np.int64)
    count, m, k, n = sizes.to_numpy(float).T
    values = {**(sizes if op == "bmm" else sizes.drop(columns="batch")), "layout": "nn" if op == "bmm" else "nt"}
    moved = _BYTES[source.dtype] * count * (m * k + k * n + m * n)
    return _table(op, values, 2.0 * count * m * k * n, moved, latency_ms, source)


_ROWWISE: dict[str, tuple[str, str, int, float]] = {  # NeuSight's name: our family, kind, matrices moved, FLOPs an element
    **{op: ("elementwise", op, 3, counts.PER_OUTPUT[op]) for op in ("add", "mul", "div", "pow")},
    **{op: ("activation", op, 2, counts.PER_OUTPUT[op]) for op in ("relu", "gelu", "tanh")},
    "softmax": ("softmax", "softmax", 2, counts.PER_INPUT["_softmax"]),
    "ln": ("layer_norm", "layer_norm", 2, counts.PER_INPUT["native_layer_norm"])}


def _rowwise(frame: pd.DataFrame, source: Source, op: str) -> pd.DataFrame:
    """Turn NeuSight's operators on a matrix of B rows and H columns into our families."""
    rows, width = frame["B"].to_numpy(np.int64), frame["H"].to_numpy(np.int64)
    size, (family, kind, matrices, flops) = rows * width, _ROWWISE[op]
    values = {"elementwise": {"outer": rows, "inner": width, "broadcast": "none", "inplace": 0 * rows},
              "activation": {"elements": size, "inplace": 0 * rows}}.get(family, {"rows": rows, "columns": width})
    moved = matrices * size + (2 * width + 2 * rows if op == "ln" else 0)
    return _table(family, {"kind": kind, **values}, float(flops) * size, 4.0 * moved, frame["Latency"], source)


def _read_csv(path: Path, counts: Iterable[str], numbers: tuple[str, ...] = ("Latency",)) -> pd.DataFrame:
    """Read a CSV with these columns, whole numbers and others; InputError names what is missing or no such number."""
    frame = require(csv_files.frame(path), path, {*counts, *numbers})
    if not len(frame):
        raise InputError(f"{path} has no row")
    return checked(frame, path, counts, numbers)


def require(frame: pd.DataFrame, path: Path, names: set[str]) -> pd.DataFrame:
    """Return an original's rows; InputError where it lacks columns."""
    if missing := names - set(frame):
        raise InputError(f"{path} has no columns {choices(sorted(missing))}; it has: {choices(frame)}")
    return frame


def checked(frame: pd.DataFrame, path: Path, counts: Iterable[str], numbers: tuple[str, ...]) -> pd.DataFrame:
    """Return an original's rows, with what it counts as int64; InputError names the first cell that is no such number."""
    for name in (*counts, *numbers):
        values = pd.to_numeric(frame[name], errors="coerce").astype(float)
        least = 0 if name in (*numbers, *_FROM_NONE) else 1
        wrong = ~values.between(least, _MOST) | (values % 1 != 0) if name in counts else values.isna() & frame[name].notna()
        wrong |= frame[name].dtype == bool
        if wrong.any():
            raise InputError(f"{path}: {row_name(wrong.idxmax())} has {frame[name][wrong].iloc[0]!r} as {name}: it is a "
                             + (f"whole number from {least} to {_MOST:,}" if name in counts else "number"))
    return frame.astype(dict.fromkeys(counts, "int64") | dict.fromkeys(numbers, "float64"))


def row_name(index: int) -> str:
    """Return how a message names a row of an original."""
    return f"row {index + 1} below the header"


_NEUSIGHT_CONV = {"batch": "B", "in_channels": "Input_Channel", "out_channels": "Output_Channel", "kernel_h": "Kernel_Szie",
                  "height": "Input_Size", "stride_h": "Stride", "padding_h": "Padding"}
NEUSIGHT: dict[str, tuple[set[str], Callable]] = {  # NeuSight's operators: whole numbers, reader
    "conv": ({*_NEUSIGHT_CONV.values()}, partial(_convolutions, named=_NEUSIGHT_CONV)),
    "linear": ({*"BMNK"}, lambda rows, source: gemm(rows["B"] * rows["M"], rows["N"], rows["K"], rows["Latency"], source)),
    "bmm": ({*"BMNK"}, lambda rows, source: gemm(rows["M"], rows["N"], rows["K"], rows["Latency"], source, rows["B"], "bmm")),
    **{op: ({"B", "H"}, partial(_rowwise, op=op)) for op in _ROWWISE}}
_NEUSIGHT_TORCH = "p2.1.0"  # the folder of torch's release in the original


def neusight_files(folder: Path) -> dict[Path, str]:
    """Return the tables, a GPU each, with their operators; InputError names a GPU that is there twice."""
    files_by_path = {path: op for op in NEUSIGHT for place in (op, f"{op}/{_NEUSIGHT_TORCH}")
                     for path in sorted(folder.glob(f"{place}/*.csv"))}
    first = {}
    for path, op in files_by_path.items():
        if (other := first.setdefault((op, path.stem), path)) != path:
            raise InputError(f"{other} and {path} are of one GPU; leave one of them out")
    return files_by_path


def neusight_ignored(folder: Path) -> list[str]:
    """Return what lies in a folder of NeuSight's data and is not read: other operators, releases of torch and files."""
    read = neusight_files(folder).keys()
    with_some = {parent for path in read for parent in path.parents}
    there = [path for level in ("*", "*/*", "*/*/*") for path in folder.glob(level)]
    return sorted(path.relative_to(folder).as_posix() for path in there
                  if path not in read | with_some and (path.parent in with_some or path.parent == folder))


def neusight(folder: Path) -> dict[str, pd.DataFrame]:
    """Read ``<folder>/<op>/<GPU>.csv`` of NeuSight (Lee et al., ASPLOS 2025; MIT): fp32, eager launches, ms.

    Operators: conv, linear, bmm, softmax, ln, add, mul, div, pow, relu, gelu, tanh, also as in the original, below a folder of
    torch's release. In its products N is the contraction. Returns a ``sweep`` table a device. Raises InputError naming what is
    not there, and a GPU that is there twice.
    """
    tables = {}
    known = {device.name: device.id for device in definitions.load_devices().values()}
    for path, op in neusight_files(folder).items():
        device = entry(known, path.stem, "device", "in params/devices.yaml, add it there")
        tables.setdefault(device, []).append(neusight_table(path, op, device))
    if not tables:
        raise InputError(f"{folder} has no <operator>/<GPU>.csv of {choices(NEUSIGHT)}; it is the folder of NeuSight's data "
                         "scripts/asplos/data/dataset/train/collect with one folder an operator")
    return {device: pd.concat(parts, ignore_index=True) for device, parts in tables.items()}


def neusight_table(path: Path, op: str, device: str) -> pd.DataFrame:
    """Read one ``<op>/<GPU>.csv`` of NeuSight as a ``sweep`` table; InputError names a cell that is no such number."""
    counted, reader = NEUSIGHT[op]
    return reader(_read_csv(path, counted), Source(device, "neusight torch-2.1 fp32 tf32-off", "end_to_end"))


def pytorch_scheduler(path: Path) -> dict[str, pd.DataFrame]:
    """Read ``results_convolution*.csv`` of the convolution study of 2023 (fp32, ms; external = kernel, internal = end to end).

    Raises InputError naming missing columns, and for FLOPs that are not those of the shapes.
    """
    device, there = "v100-pcie-32gb", csv_files.frame(path)
    named = {"in_channels": "In Channels", "out_channels": "Out Channels", "kernel_h": "Kernel Size", "stride_h": "Stride",
             **(dict.fromkeys(("height", "width"), "Input Size") if "Input Size" in there else
                {"height": "Height", "width": "Width"}),
             **({"batch": "Batch size"} if "Batch size" in there else {})}
    frame = _read_csv(path, set(named.values()), ("Flops", "Latency"))
    kinds = frame["Latency Type"] if "Latency Type" in frame else pd.Series("external", index=frame.index)
    if not kinds.isin(_LATENCY_TYPES).all():
        raise InputError(f"{path}: {row_name((~kinds.isin(_LATENCY_TYPES)).idxmax())} has a Latency Type that is none of "
                         f"{choices(_LATENCY_TYPES)}")
    parts = []
    for kind, rows in frame.groupby(kinds):
        table = _convolutions(rows, Source(device, "pytorch-scheduler 2023", _LATENCY_TYPES[kind]), named)
        wrong = table["flops"].to_numpy() != rows["Flops"].to_numpy(float)
        if wrong.any():
            raise InputError(f"{path}: {wrong.sum()} rows state FLOPs that their shapes do not have, the first in line "
                             f"{int(rows.index[wrong][0]) + 2}")
        parts.append(table)
    return {device: pd.concat(parts, ignore_index=True)}


READERS = {"neusight": neusight, "pytorch-scheduler": pytorch_scheduler}
Written = dict[str, tuple[Path, pd.DataFrame]]


def bring_in(kind: str, path: Path | None) -> Written:
    """Turn published data into ``sweep`` tables, see ``write``, in ``sweeps/<kind>``. Raises InputError."""
    if path is None:
        raise InputError(f"import {kind} needs the path of its data")
    if not path.exists():
        raise InputError(f"{path} is missing")
    stem = kind if kind != "pytorch-scheduler" else path.stem
    if not re.fullmatch(files.NAME, stem):
        raise InputError(f"{path}: {stem!r} cannot be the name of a folder; rename the file (letters, digits, dots, dashes)")
    return write(READERS[kind](path), "sweep", kind, path, ("sweeps", stem))


def write(tables: Mapping[str, pd.DataFrame], table: str, source: str, path: Path | None, place: tuple[str, ...],
          **facts: Any) -> Written:
    """Write tables of devices, read from ``path``, below ``data/imported/<device>/<place>``; return file and table by device.

    A second import replaces the first, and no other file.
    """
    written = {device: (imported(device, *place, f"{table}.parquet"), rows) for device, rows in tables.items()}
    for device, (target, rows) in written.items():
        short = {"short_windows": int((rows["window"] == "short").sum())} if "window" in rows else {}
        store.write(rows, target, table, derived=True)
        store.write_meta(target, table, source=source, origin=path.name if path else "aiconfigurator-core",
                         device=device, rows=len(rows), **short, **facts)
    return written


def imported(*parts: str) -> Path:
    """Return the path of an import in ``data/imported``; InputError where a file lies that no import wrote."""
    path = paths.IMPORTED.joinpath(*parts)
    meta = path.with_name(f"{path.stem}.meta.json")
    if path.exists() and not (meta.is_file() and "source" in mapping(store.read_json(meta), meta)):
        raise InputError(f"{path} is there already and was not imported; move it elsewhere")
    return path
