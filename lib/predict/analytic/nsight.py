"""Import of Nsight Compute's raw page as CSV: FLOPs, bytes and time that the hardware counted, summed over kernels."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib import csv_files
from lib.config.definitions import Metric, load_metrics
from lib.errors import InputError, choices

_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_TENSOR = "counters of tensor cores (GEMMs and convolutions of bf16, fp16 and tf32)"  # a GPU has some of them
_COLLECT = "collect it with params/collect_nsight.sh"
_MESSAGES = {
    "ERR_NVGPUCTRPERM": "the driver lets only administrators read the counters (ERR_NVGPUCTRPERM): run as root, or load the "
                        "driver with NVreg_RestrictProfilingToAdminUsers=0",
    "Failed to find metric": "the profiler did not know a metric: compare params/nsight_metrics.yaml with ncu --query-metrics",
    "No kernels were profiled": "no kernels were profiled: the program launched none, or a filter left them all out"}


@dataclass(frozen=True)
class Counted:
    """What one file counted: a row a kernel (kernel, seconds, bytes, flops and flops_<dtype>), and the file's name.

    ``missing``: the counters of FLOPs that the file lacks.
    """

    kernels: pd.DataFrame
    name: str
    missing: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """Return what the counts lack, in one line; empty where they are complete."""
        return f"{self.name} lacks {choices(self.missing)}: that work is not among its FLOPs, and kernels that do it lie too " \
            "low; see params/nsight_metrics.yaml." if self.missing else ""

    @property
    def dtype(self) -> str:
        """Return the element type that most FLOPs were of."""
        of = self.kernels.filter(regex="^flops_").sum()
        return str(of.idxmax()).removeprefix("flops_")

    def work(self, hardware_id: str, batch_size: int = 0, label: str = "", least: float = 0.05) -> pd.DataFrame:
        """Return all kernels as one row of work for ``roofline.points``, and each kernel that took ``least`` of the time.

        Time, FLOPs and bytes are of these kernels alone, never of another run. ``batch_size`` is what the program processed.
        """
        by_kernel = self.kernels.groupby("kernel", sort=False).agg(
            elapsed_sec=("seconds", "sum"), bytes=("bytes", "sum"), flops=("flops", "sum"), calls=("kernel", "size"))
        heavy = by_kernel[by_kernel["elapsed_sec"] >= least * by_kernel["elapsed_sec"].sum()]
        everything = by_kernel.sum().to_frame("all kernels").T
        frame = pd.concat([everything, heavy.sort_values("elapsed_sec", ascending=False)]).astype({"calls": int})
        names = [label or self.name, *(_short(name) for name in frame.index[1:])]
        dtypes = [self.dtype, *(self._dtype_of(name) for name in frame.index[1:])]
        return frame.reset_index(drop=True).assign(
            label=names, env=label or self.name, arch=self.name, backend="cuda",
            batch_size=[batch_size] + [0] * (len(names) - 1),
            precision=dtypes, roof_dtype=dtypes, bytes_source="counted", kind="counted",
            family=["all kernels"] + ["kernel"] * (len(names) - 1), occurrences=1, level="device", verdict="stable",
            hardware_id=hardware_id, software_id="counted")

    def _dtype_of(self, kernel: str) -> str:
        rows = self.kernels[self.kernels["kernel"] == kernel]
        return Counted(rows, self.name).dtype


def _short(kernel: str) -> str:
    """Return a kernel's name without its template and arguments, at most 40 letters."""
    return re.sub(r"<.*|\(.*", "", kernel.removeprefix("void ")).rpartition("::")[2][:40] or kernel[:40]


def _factor(unit: str, role: str, where: str) -> float:
    """Return what one unit is in bytes, seconds or counts; InputError for one that does not fit the role."""
    if role == "time":
        if unit in _SECONDS:
            return _SECONDS[unit]
    else:
        match = re.fullmatch(r"([KMGT]?)(byte|B)" if role == "bytes" else r"([KMGT]?)(inst|op|ops|)", unit)
        if match:
            return _PREFIX[match.group(1)]
    raise InputError(f"{where}: the unit {unit!r} is none of {role}; collect again with --print-units base")


def _table(text: str, name: str) -> tuple[list[str], list[str], list[list[str]]]:
    """Return header, units and kernels of a raw page; log lines around it are skipped."""
    start = re.search(r'^"?ID"?,', text, re.M)
    reason = next((words for key, words in _MESSAGES.items() if key in text), "")
    if not start:
        raise InputError(f"{name}: {reason or 'this is no CSV of Nsight Compute: no header that starts with ID'}")
    log = re.sub(r"[^\n]", "", text[:start.start()])  # so that lines keep their numbers
    header, *rows = csv_files.rows(log + re.sub(r"(?m)^==.*$", "", text[start.start():]), Path(name))
    if "Metric Name" in header:
        raise InputError(f"{name} is the details page, a row a metric; export the raw page: ncu --import FILE --csv --page raw")
    if rows and not rows[0][0].strip():
        units, *rows = rows
    else:
        raise InputError(f"{name}: the row of units after the header is missing; {_COLLECT}")
    if not rows:
        raise InputError(f"{name}: {reason or _MESSAGES['No kernels were profiled']}")
    return header, units, rows


def _check(header: list[str], metrics: Mapping[str, Metric], name: str) -> None:
    """Refuse a file without the counters that are needed, naming those that are missing and those that are there."""
    missing = [metric.name for metric in metrics.values() if not metric.optional and metric.name not in header]
    if missing:
        there = [column for column in header if "__" in column]
        raise InputError(f"{name} lacks {choices(missing)}; it has: {choices(there) or 'no metric'}; {_COLLECT}")


def _value(text: str, metric: str, row: list[str], name: str) -> float:
    if not re.fullmatch(r"[\d,]+(\.\d+)?([eE][+-]?\d{1,2})?", text.strip()):
        raise InputError(f"{name}: kernel {row[0]} has {text!r} for {metric}; it was not counted there")
    return float(text.replace(",", ""))


def read(path: Path, metrics: Mapping[str, Metric] | None = None) -> Counted:
    """Read a CSV of ``ncu --csv --page raw`` (metrics as columns, units below the header, a row a kernel).

    ``metrics`` default to params/nsight_metrics.yaml. Raises InputError, in one line, for a file that is missing or no such
    CSV, without kernels, without a needed metric, or with a unit or value that cannot be read.
    """
    metrics = metrics or load_metrics()
    try:
        text = csv_files.text(path)
    except InputError as error:
        raise InputError(f"the counters cannot be read: {error}") from None
    header, units, rows = _table(text, path.name)
    _check(header, metrics, path.name)
    here = {metric.name: (metric, header.index(metric.name)) for metric in metrics.values() if metric.name in header}
    factors = {name: _factor(units[place].strip(), metric.role, f"{path.name}: {name}")
               for name, (metric, place) in here.items()}
    kernel = header.index("Kernel Name") if "Kernel Name" in header else 0
    kernels = []
    for row in rows:
        sums = {"kernel": row[kernel], "seconds": 0.0, "bytes": 0.0, "flops": 0.0,
                **{f"flops_{metric.dtype}": 0.0 for metric, _ in here.values() if metric.dtype}}
        for name, (metric, place) in here.items():
            value = _value(row[place], name, row, path.name) * factors[name] * metric.weight
            sums["seconds" if metric.role == "time" else metric.role] += value
            if metric.dtype:
                sums[f"flops_{metric.dtype}"] += value
        kernels.append(sums)
    flops = [name for name, metric in metrics.items() if metric.role == "flops"]
    tensor = [] if any("tensor" in name for name in here) else [_TENSOR]
    return Counted(pd.DataFrame(kernels), path.stem,
                   (*tensor, *(name for name in flops if name not in here and "tensor" not in name)))
