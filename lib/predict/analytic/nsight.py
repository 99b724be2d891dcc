"""Import of Nsight Compute's raw page as CSV: FLOPs, bytes and time that the hardware counted, summed over kernels."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files
from lib.config.definitions import load_metrics
from lib.errors import InputError, choices

_LEAST = 0.05  # of the time: kernels that took less have no row of work
_PREFIX = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS = {"time": "([num]?)(second|s)", "bytes": "([KMGT]?)(byte|B)", "flops": "([KMGT]?)(inst|op|ops|)"}  # by role
_TENSOR = "counters of tensor cores (GEMMs and convolutions of bf16, fp16 and tf32)"  # a GPU has some of them
_SUMS = {"time": "seconds", "bytes": "bytes", "flops": "flops"}  # columns of what was counted, by role
_COLLECT = "collect it with params/collect_nsight.sh"
_LOCALE = "ncu writes numbers as the locale does: collect again with LC_ALL=C ncu --print-units base, or " \
    "params/collect_nsight.sh"
_BASE_UNITS = re.compile("ns|nsecond|byte|B|inst|ops?|")  # counts in these are whole numbers
_WHOLE = re.compile(r"(\d+|\d{1,3}(,\d{3})+)(\.0{1,2})?|\d(\.\d+)?[eE]\+?\d{1,2}")
_ENGLISH = re.compile(r"(\d+|\d{1,3}(,\d{3})+)(\.\d+)?([eE][+-]?\d{1,2})?")
_AMBIGUOUS = re.compile(r"\d{1,3}[.,]\d{3}")  # of a scaled unit: thousands in one locale, a fraction in another
_ANY_LOCALE = re.compile(r"\d[\d.,'\s\u2019]*([eE][+-]?\d{1,2})?")
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

    def work(self, hardware_id: str) -> pd.DataFrame:
        """Return all kernels as one row of work for ``roofline.points``, and each kernel that took _LEAST of the time.

        Time, FLOPs and bytes are of these kernels alone, never of another run. The element type of a row is the one that most
        of its FLOPs are of. How many samples the program processed is not known: its batch size is 0.
        """
        by_kernel = self.kernels.assign(calls=1).groupby("kernel", sort=False).sum()
        heavy = by_kernel[by_kernel["seconds"] >= _LEAST * by_kernel["seconds"].sum()].sort_values("seconds", ascending=False)
        rows = pd.concat([by_kernel.sum().to_frame("all kernels").T, heavy]).astype({"calls": int}).reset_index(names="kernel")
        dtypes, whole = rows.filter(regex="^flops_").idxmax(axis=1).str.removeprefix("flops_"), rows.index == 0
        return rows[["bytes", "flops", "calls"]].assign(
            elapsed_sec=rows["seconds"], label=rows["kernel"].map(_short).where(~whole, self.name), env=self.name,
            arch=self.name, backend="cuda", batch_size=0, precision=dtypes, roof_dtype=dtypes,
            bytes_source="counted", kind="counted", family=np.where(whole, "all kernels", "kernel"), occurrences=1,
            level="device", verdict="stable", hardware_id=hardware_id, software_id="counted")


def _short(kernel: str) -> str:
    """Return a kernel's name without its template and arguments, at most 40 letters."""
    return re.sub(r"<.*|\(.*", "", kernel.removeprefix("void ")).rpartition("::")[2][:40] or kernel[:40]


def _not_counted(values: pd.Series) -> bool:
    return values.str.lower().isin(["n/a", "nan", ""]).all()


def _factor(unit: str, role: str, values: pd.Series, name: str) -> float:
    """Return what one unit is in bytes, seconds or counts; InputError for one of another role, or if nothing was counted."""
    if _not_counted(values) or (role != "flops" and not unit):
        raise InputError(f"{name}: {values.name} was not counted: it has the unit {unit!r} and values such as "
                         f"{values.iloc[0]!r}; see params/nsight_metrics.yaml, and {_COLLECT}")
    match = re.fullmatch(_UNITS[role], unit)
    if not match:
        raise InputError(f"{name}: {values.name}: the unit {unit!r} is none of {role}; collect again with --print-units base")
    return _PREFIX[match[1]]


def _table(text: str, name: str) -> pd.DataFrame:
    """Return a raw page as texts, the units first, then the kernels; log lines around it are skipped."""
    start = re.search(r'^"?ID"?,', text, re.M)
    reason = next((words for key, words in _MESSAGES.items() if key in text), "")
    if not start:
        raise InputError(f"{name}: {reason or 'this is no CSV of Nsight Compute: no header that starts with ID'}")
    log = re.sub(r"[^\n]", "", text[:start.start()])  # so that lines keep their numbers
    if len(re.findall(r'^"?ID"?,', text, re.M)) > 1:
        raise InputError(f"{name} holds two or more pages, each with a header: give each run of ncu its own file")
    header, *rows = csv_files.rows(log + re.sub(r"(?m)^==.*$", "", text[start.start():]), Path(name))
    if "Metric Name" in header:
        raise InputError(f"{name} is the details page, a row a metric; export the raw page: ncu --import FILE --csv --page raw")
    if not rows or rows[0][0].strip():
        raise InputError(f"{name}: the row of units after the header is missing; {_COLLECT}")
    if not rows[1:]:
        raise InputError(f"{name}: {reason or _MESSAGES['No kernels were profiled']}")
    return pd.DataFrame(rows, columns=header, dtype=str)


def _numbers(text: pd.DataFrame, units: pd.Series, kernels: pd.Series, name: str) -> pd.DataFrame:
    """Return texts as numbers; InputError for one that is no number, or that is, or may be, not written as in English."""
    shown, ambiguous = False, ""
    for metric, values in text.items():
        whole = bool(_BASE_UNITS.fullmatch(units[metric]))
        for row, value in values.drop_duplicates().items():
            where = f"{name}: kernel {kernels[row]} has {value!r} for {metric}"
            if not _ANY_LOCALE.fullmatch(value):
                raise InputError(f"{where}; it was not counted there")
            if not (_WHOLE if whole else _ENGLISH).fullmatch(value):
                english = "whole number (1,234,567)" if whole else "number (1,234.5)"
                raise InputError(f"{where}: in English this is no {english}; {_LOCALE}")
            if not whole and _AMBIGUOUS.fullmatch(value):
                ambiguous = where
            elif "," in value or "." in value:
                shown = True
    if ambiguous and not shown:
        raise InputError(f"{ambiguous}: this may be thousands or a fraction; {_LOCALE}")
    return text.apply(lambda column: column.str.replace(",", "").astype(float))


def read(path: Path) -> Counted:
    """Read a CSV of ``ncu --csv --page raw`` (metrics as columns, units below the header, a row a kernel).

    The metrics are those of params/nsight_metrics.yaml. Raises InputError, in one line, for a file that is missing or no such
    CSV, without kernels, without a needed metric, or with a unit or value that cannot be read.
    """
    metrics = load_metrics().values()
    try:
        text = csv_files.text(path)
    except InputError as error:
        raise InputError(f"the counters cannot be read: {error}") from None
    table = _table(text, path.name)
    units, table = table.iloc[0].str.strip(), table.iloc[1:].reset_index(drop=True).apply(lambda column: column.str.strip())
    absent = [metric for metric in metrics if metric.name not in table or metric.optional and _not_counted(table[metric.name])]
    if needed := [metric.name for metric in absent if not metric.optional]:
        there = [column for column in table if "__" in column]
        raise InputError(f"{path.name} lacks {choices(needed)}; it has: {choices(there) or 'no metric'}; {_COLLECT}")
    ids, here = table.iloc[:, 0], [metric for metric in metrics if metric not in absent]
    factors = {metric.name: _factor(units[metric.name], metric.role, table[metric.name], path.name) for metric in here}
    numbers = _numbers(table[[*factors]], units, ids, path.name)
    sums = pd.DataFrame({"kernel": table.get("Kernel Name", ids), **dict.fromkeys(_SUMS.values(), 0.0)})
    for metric in here:
        values = numbers[metric.name] * factors[metric.name] * metric.weight
        for column in (_SUMS[metric.role], *([f"flops_{metric.dtype}"] if metric.dtype else [])):
            sums[column] = sums.get(column, 0.0) + values
    tensor = [] if any("tensor" in metric.name for metric in here) else [_TENSOR]
    lacking = [metric.name for metric in absent if metric.role == "flops" and "tensor" not in metric.name]
    return Counted(sums, path.stem, (*tensor, *lacking))
