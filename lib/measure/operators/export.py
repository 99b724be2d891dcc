"""The convolutions of a sweep in the columns of the study of 2023: what these can say, and beside it what they cannot."""

from pathlib import Path

import pandas as pd

from lib import files
from lib.measure.statistics import UNUSABLE
from lib.work import dtypes

STEM = "results_convolution"
_NAMES = {"batch": "Batch size", "in_channels": "In Channels", "out_channels": "Out Channels", "kernel_h": "Kernel Size",
          "stride_h": "Stride", "width": "Width", "height": "Height", "flops": "Flops", "latency_ms": "Latency",
          "latency_type": "Latency Type"}
ORIGINAL = list(_NAMES.values())
_WHERE = {"device": "Device", "dtype": "Datatype"}
_OTHERS = {"pass": "Pass", "cache": "Cache", "kernel_w": "Kernel Width", "stride_w": "Stride Width", "padding_h": "Padding",
            "padding_w": "Padding Width", "dilation_h": "Dilation", "dilation_w": "Dilation Width", "groups": "Groups",
            "bias": "Bias", "layout": "Layout", "input_grad": "Input Gradient", "verdict": "Verdict"}
_TYPES = {"kernel": "external", "end_to_end": "internal"}


def representable(rows: pd.DataFrame) -> pd.Series:
    """Return which convolutions the original's columns describe in full: what they leave out is what the original always did.

    That is a forward pass on warm caches, one kernel size and stride, a padding of half the kernel, neither dilation, groups
    nor bias, contiguous images; and a time that counts.
    """
    half = rows["kernel_h"] // 2
    same = {"pass": "forward", "cache": "warm", "kernel_w": rows["kernel_h"], "stride_w": rows["stride_h"], "padding_h": half,
            "padding_w": half, "dilation_h": 1, "dilation_w": 1, "groups": 1, "bias": 0, "layout": "contiguous"}
    as_always = rows[[*same]].eq(pd.DataFrame(same, index=rows.index)).all(axis=1)
    return as_always & (rows["verdict"] != UNUSABLE)


def write(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the convolutions of a ``sweep`` table with a time; latency in ms, external = kernel, internal = end to end.

    ``results_convolution_<device>_<dtype>.csv`` have ORIGINAL as columns, and so has ``results_convolution.csv``, the merge of
    all devices in one element type (fp32 before others), which its columns do not say; ``..._merged.csv`` holds all element
    types too, with Device and Datatype before. All other rows are in ``..._others.csv``, with the columns that the original
    lacks at the end. Returns the files; none without convolutions.
    """
    rows = table[(table["op"] == "conv2d") & (table["status"] == "ok")]
    if rows.empty:
        return []
    torch_names = {name: str(dtypes.torch_dtype(name)).removeprefix("torch.") for name in set(rows["dtype"])}
    renamed = rows[[*_WHERE, *_NAMES, *_OTHERS]].replace({"dtype": torch_names, "latency_type": _TYPES}).astype({
        "flops": "int64"}).rename(columns=_WHERE | _NAMES | _OTHERS)
    fits = representable(rows)
    merged = renamed[fits]
    first = next(iter(rows.loc[fits, "dtype"].sort_values(key=lambda dtype: dtype != "fp32", kind="stable")), "")
    parts = {f"_{device.replace(':', '-')}_{dtype}": merged.loc[part, ORIGINAL]
             for (device, dtype), part in rows[fits].groupby(["device", "dtype"], sort=False).groups.items()}
    contents = {"": merged.loc[rows["dtype"] == first, ORIGINAL], "_merged": merged[[*_WHERE.values(), *ORIGINAL]],
                "_others": renamed.loc[~fits, [*_WHERE.values(), *ORIGINAL, *_OTHERS.values()]]}
    return [files.replace(folder / f"{STEM}{suffix}.csv", content.to_csv(index=False).encode())
            for suffix, content in (contents | parts).items()]


def emptiness(table: pd.DataFrame) -> str:
    """Say why ``results_convolution.csv`` has no rows; empty where it has some, or no convolution was measured."""
    rows = table[(table["op"] == "conv2d") & (table["status"] == "ok")]
    if rows.empty or representable(rows).any():
        return ""
    return (f" {STEM}.csv has no rows: {(rows['verdict'] == UNUSABLE).sum()} of {len(rows)} convolutions are "
            f"{UNUSABLE}, its columns cannot describe the others; all are in {STEM}_others.csv.")
