"""Published times of kernels as ``sweep`` tables: NeuSight and the convolution study of 2023.

FLOPs and compulsory bytes are computed from the shapes. One time without spread gives a noisy row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files, store
from lib.config import definitions
from lib.errors import InputError, choices, entry
from lib.measure.energy.trace import Energy
from lib.predict.published.reading import read_csv, row_name
from lib.tables import PARAMETERS, columns
from lib.work.graph import counts

_ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_LEAST_MS, _MOST_MS = 1e-6, 1e9  # what can be a time
_LATENCY_TYPES = {"external": "kernel", "internal": "end_to_end"}  # of pytorch-scheduler


@dataclass(frozen=True)
class Benchmark:
    """How the rows of a table were measured: our id of the device, the software, what was timed."""

    device: str
    software: str
    latency_type: str = "kernel"
    dtype: str = "fp32"


def sweep(op: str, values: Mapping, flops: np.ndarray, moved: np.ndarray, latency_ms: pd.Series,
          by: Benchmark) -> pd.DataFrame:
    """Complete parameters of an operator family to a ``sweep`` table.

    Args:
        op: the family
        values: a column per parameter
        flops: per row
        moved: compulsory bytes per row
        latency_ms: a row without a positive, finite time is a failed row
        by: who measured
    """
    latency_ms = latency_ms.to_numpy(float, copy=True)
    good = (latency_ms > _LEAST_MS) & (latency_ms < _MOST_MS)
    latency_ms[~good] = np.nan
    table = pd.DataFrame({
        **{name: "" for name, column in PARAMETERS.items() if column.kind == "str"}, **values,
        "op": op, "dtype": by.dtype, "pass": "forward", "device": "cuda:0", "cache": "warm",
        "latency_ms": latency_ms, "low_ms": latency_ms, "high_ms": latency_ms,
        "latency_type": by.latency_type, "n": np.where(good, 1, 0), "flops": flops, "bytes": moved,
        "gflops": flops / latency_ms / 1e6, "gbps": moved / latency_ms / 1e6,
        "status": np.where(good, "ok", "failed"), "verdict": np.where(good, "noisy", "unusable"),
        "reason": np.where(good, "the original gives one value, without spread",
                           "the original has no time here that could be one"),
        "hardware_id": f"published:{by.device}", "software_id": by.software, "threads": 1,
        "tf32": False, **Energy(np.nan, reason="the original gives no energy").columns})
    named = [name for name in values if name not in ("layout", "kind")]
    keys = table[named].astype(str).agg(" ".join, axis=1) + f" {op} {by.dtype} {by.latency_type}"
    repeats = keys.groupby(keys).cumcount().astype(str)
    table["config"] = [store.digest([key, repeat, by.device])
                       for key, repeat in zip(keys, repeats, strict=True)]
    return table.reindex(columns=columns("sweep"))


def _output(v: pd.DataFrame, size: pd.Series) -> pd.Series:
    return (size + 2 * v.padding_h - v.kernel_h) // v.stride_h + 1


def _lines_read(v: pd.DataFrame, size: pd.Series) -> pd.Series:
    """Return how many rows or columns of the input the kernel touches."""
    out = _output(v, size)
    touched = (out - 1) * v.stride_h + v.kernel_h - v.padding_h
    return np.minimum(size, np.where(v.stride_h <= v.kernel_h, touched, out * v.kernel_h))


def convolution_work(v: pd.DataFrame, item_bytes: int) -> tuple[pd.Series, pd.Series]:
    """Return FLOPs and compulsory bytes of square, dense 2-D convolutions without bias."""
    v = v.astype(float)  # no product of counts overflows
    outputs = v.batch * v.out_channels * _output(v, v.height) * _output(v, v.width)
    weights = v.out_channels * v.in_channels * v.kernel_h ** 2
    inputs = v.batch * v.in_channels * _lines_read(v, v.height) * _lines_read(v, v.width)
    flops = 2.0 * outputs * v.in_channels * v.kernel_h ** 2
    return flops, item_bytes * (inputs + weights + outputs)


def _convolutions(table: pd.DataFrame, by: Benchmark, names: Mapping[str, str]) -> pd.DataFrame:
    """Turn square convolutions into ``sweep`` rows; ``names``: the original's columns by ours."""
    v = pd.DataFrame({name: table[column].to_numpy(np.int64) for name, column in names.items()})
    v = v.assign(batch=v.get("batch", 1), width=v.get("width", v.height),
                 padding_h=v.get("padding_h", v.kernel_h // 2))
    empty = np.minimum(_output(v, v.height), _output(v, v.width)) < 1
    if empty.any():
        row = row_name(table.index[empty][0])
        raise InputError(f"{by.software}: {row} has a kernel larger than its padded input")
    values = v.assign(kernel_w=v.kernel_h, stride_w=v.stride_h, padding_w=v.padding_h, dilation_h=1,
                      dilation_w=1, groups=1, bias=0, input_grad=1, layout="contiguous")
    work = convolution_work(v, _ITEM_BYTES[by.dtype])
    return sweep("conv2d", values, *work, table["Latency"], by)


def products(sizes: pd.DataFrame, latency_ms: pd.Series, by: Benchmark) -> pd.DataFrame:
    """Turn GEMMs, with a column ``batch`` batched ones, into ``sweep`` rows."""
    is_batched = "batch" in sizes
    sizes = sizes.astype(np.int64)
    m, k, n = sizes[["gemm_m", "gemm_k", "gemm_n"]].to_numpy(float).T
    batch = sizes["batch"].to_numpy(float) if is_batched else 1.0
    moved = _ITEM_BYTES[by.dtype] * batch * (m * k + k * n + m * n)
    values = {**sizes, "layout": "nn" if is_batched else "nt"}
    op = "bmm" if is_batched else "linear"
    return sweep(op, values, 2.0 * batch * m * k * n, moved, latency_ms, by)


_ROWWISE = {  # NeuSight's operator: our family, kind, matrices moved, FLOPs per element
    **{op: ("elementwise", op, 3, counts.PER_OUTPUT[op]) for op in ("add", "mul", "div", "pow")},
    **{op: ("activation", op, 2, counts.PER_OUTPUT[op]) for op in ("relu", "gelu", "tanh")},
    "softmax": ("softmax", "softmax", 2, counts.PER_INPUT["_softmax"]),
    "ln": ("layer_norm", "layer_norm", 2, counts.PER_INPUT["native_layer_norm"])}


def _rowwise(table: pd.DataFrame, by: Benchmark, op: str) -> pd.DataFrame:
    """Turn operators on matrices of B rows and H columns into ``sweep`` rows."""
    rows, width = table["B"].to_numpy(np.int64), table["H"].to_numpy(np.int64)
    family, kind, matrices, flops = _ROWWISE[op]
    size, none = rows * width, 0 * rows
    values = {"kind": kind, "rows": rows, "columns": width}
    if family == "elementwise":
        values = {"kind": kind, "outer": rows, "inner": width, "broadcast": "none", "inplace": none}
    elif family == "activation":
        values = {"kind": kind, "elements": size, "inplace": none}
    moved = 4.0 * matrices * size
    if op == "ln":
        moved += 4.0 * (2 * width + 2 * rows)
    return sweep(family, values, float(flops) * size, moved, table["Latency"], by)


_NEUSIGHT_CONV = {
    "batch": "B", "in_channels": "Input_Channel", "out_channels": "Output_Channel",
    "kernel_h": "Kernel_Szie", "height": "Input_Size", "stride_h": "Stride", "padding_h": "Padding"}
NEUSIGHT = {  # its operators, and the columns that count something
    "conv": tuple(_NEUSIGHT_CONV.values()), "linear": ("B", "M", "N", "K"),
    "bmm": ("B", "M", "N", "K"), **dict.fromkeys(_ROWWISE, ("B", "H"))}


def neusight_table(path: Path, op: str, device: str) -> pd.DataFrame:
    """Read one ``<operator>/<GPU>.csv`` of NeuSight, in whose products N is the contraction."""
    table = read_csv(path, counted=NEUSIGHT[op], numbers=["Latency"])
    by = Benchmark(device, "neusight torch-2.1 fp32 tf32-off", "end_to_end")
    if op == "conv":
        return _convolutions(table, by, _NEUSIGHT_CONV)
    if op in ("linear", "bmm"):
        sizes = table.rename(columns={"B": "batch", "M": "gemm_m", "N": "gemm_k", "K": "gemm_n"})
        sizes = sizes[["batch", "gemm_m", "gemm_k", "gemm_n"]]
        if op == "linear":
            sizes["gemm_m"] *= sizes.pop("batch")
        return products(sizes, table["Latency"], by)
    return _rowwise(table, by, op)


def neusight(folder: Path) -> dict[str, pd.DataFrame]:
    """Read NeuSight (Lee et al., ASPLOS 2025): fp32, eager launches; a ``sweep`` table per device.

    Files are ``<operator>/<GPU>.csv``, or ``<operator>/p2.1.0/<GPU>.csv`` as in the original.
    Raises InputError where there are none, for an unknown GPU, and for a GPU that is there twice.
    """
    known = {device.name: device.id for device in definitions.load_devices().values()}
    parts, first = {}, {}
    for op in NEUSIGHT:
        found = [*folder.glob(f"{op}/*.csv"), *folder.glob(f"{op}/p2.1.0/*.csv")]
        for path in sorted(found, key=lambda path: path.stem):
            if (other := first.setdefault((op, path.stem), path)) != path:
                raise InputError(f"{other} and {path} are of one GPU; leave one of them out")
            device = entry(known, path.stem, "device", "in params/devices.yaml, add it there")
            parts.setdefault(device, []).append(neusight_table(path, op, device))
    if not parts:
        raise InputError(f"{folder} has no <operator>/<GPU>.csv of {choices(NEUSIGHT)}; it is "
                         "NeuSight's folder scripts/asplos/data/dataset/train/collect")
    return {device: pd.concat(tables, ignore_index=True) for device, tables in parts.items()}


def pytorch_scheduler(path: Path) -> dict[str, pd.DataFrame]:
    """Read ``results_convolution*.csv`` of the convolution study of 2023: V100, fp32, ms.

    Raises InputError for missing columns, and for FLOPs that are not those of the shapes.
    """
    device, there = "v100-pcie-32gb", csv_files.frame(path).columns
    names = {"in_channels": "In Channels", "out_channels": "Out Channels",
             "kernel_h": "Kernel Size", "stride_h": "Stride", "height": "Height", "width": "Width"}
    if "Input Size" in there:
        names |= {"height": "Input Size", "width": "Input Size"}
    if "Batch size" in there:
        names["batch"] = "Batch size"
    table = read_csv(path, counted=set(names.values()), numbers=["Flops", "Latency"])
    kinds = table.get("Latency Type", pd.Series("external", table.index))
    unknown = ~kinds.isin(_LATENCY_TYPES)
    if unknown.any():
        raise InputError(f"{path}: {row_name(unknown.idxmax())} has a Latency Type that is none of "
                         f"{choices(_LATENCY_TYPES)}")
    parts = []
    for kind, rows in table.groupby(kinds):
        by = Benchmark(device, "pytorch-scheduler 2023", _LATENCY_TYPES[kind])
        parts.append(_convolutions(rows, by, names))
        wrong = parts[-1]["flops"].to_numpy() != rows["Flops"].to_numpy(float)
        if wrong.any():
            line = int(rows.index[wrong][0]) + 2
            raise InputError(f"{path}: {wrong.sum()} rows state FLOPs that their shapes do not have,"
                             f" the first in line {line}")
    return {device: pd.concat(parts, ignore_index=True)}
