"""Throughputs of whole networks of timm (its folder ``results``) as ``whole_networks``."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.predict.published.reading import read_csv, with_numbers
from lib.tables import columns

DEVICES = {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090", "4090": "rtx-4090",
           "pro6000maxq": "rtx-pro-6000-max-q"}
_PRECISIONS = {"fp32": "fp32", "amp": "amp_fp16", "amp_bf16": "amp_bf16", "bf16": "bf16"}
_NAME = re.compile(
    rf"benchmark-(?P<mode>infer|train)-(?P<precision>{'|'.join(_PRECISIONS)})-(?P<layout>nchw|nhwc)"
    r"-pt(?P<torch>\d{3})(-cu\d{3})?-(?P<device>[a-z0-9_-]+?)(?P<compiled>-dynamo)?\.csv")
_STATED = {"parameters_m": "param_count", "gmacs": "gmacs", "mactivations": "macts"}
_TOLERANCE = 0.1  # between the stated step time and batch size over throughput: both are means


def read(path: Path) -> pd.DataFrame:
    """Read ``benchmark-<mode>-<precision>-<layout>-pt<torch>[-cu<CUDA>]-<device>[-dynamo].csv``.

    Networks that failed (throughput 0 or empty) are left out. Raises InputError for another name,
    for a cell that is no number, and for a step time that contradicts the throughput.
    """
    named = _NAME.fullmatch(path.name)
    if not named:
        raise InputError(f"{path} is not named as timm's results are: benchmark-<infer or train>-"
                         f"<{' or '.join(_PRECISIONS)}>-<nchw or nhwc>-pt<torch>-cu<CUDA>-<device>"
                         "[-dynamo].csv")
    mode = named["mode"]
    names = {"batch_size": f"{mode}_batch_size", "image_size": f"{mode}_img_size",
             "images_per_sec": f"{mode}_samples_per_sec", "step_ms": f"{mode}_step_time",
             "network": "model", "module": "module"}
    rate = names["images_per_sec"]
    table = read_csv(path, numbers=[rate, "param_count"], texts=["model", "module"])
    table = table[table[rate].fillna(0) != 0]
    counted = [names["batch_size"], names["image_size"]]
    table = with_numbers(table, path, counted, [names["step_ms"]]).reset_index(drop=True)
    values = pd.DataFrame({name: table[column] for name, column in names.items()})
    if values.empty or values.isna().any(axis=None):
        raise InputError(f"{path} has no row, or rows without a model, a module, a throughput or a "
                         "step time")
    values["latency_ms"] = values["batch_size"] / values["images_per_sec"] * 1e3
    apart = np.abs(values["step_ms"] / values["latency_ms"] - 1) > _TOLERANCE
    per_image = mode == "infer" and (values["batch_size"] == 1).all()
    if apart.any() and not per_image:
        raise InputError(f"{path}: {values['network'][apart.idxmax()]} has a step time that is not "
                         "its batch size over its throughput")
    for name, column in _STATED.items():
        stated = table.get(column, table.get(f"{mode}_{column}", pd.Series(np.nan, table.index)))
        values[name] = pd.to_numeric(stated, errors="coerce")
    return _with_conditions(values, named)


def _with_conditions(values: pd.DataFrame, named: re.Match) -> pd.DataFrame:
    """Complete a ``whole_networks`` table with what the file's name says."""
    digits = named["torch"]
    torch = f"1.{digits[1:]}" if digits[0] == "1" else ".".join(digits)  # 113: 1.13, 240: 2.4.0
    values = values.assign(
        mode=named["mode"], precision=_PRECISIONS[named["precision"]], layout=named["layout"],
        compiled=bool(named["compiled"]), torch=torch,
        device=DEVICES.get(named["device"], named["device"].replace("_", "-")))
    return values[columns("whole_networks")]


def by_device(path: Path) -> dict[str, pd.DataFrame]:
    """Read a file of timm's results, or all in a folder; InputError where there is none."""
    files = [path] if path.is_file() else sorted(path.glob("benchmark-*.csv"))
    if not files:
        raise InputError(f"{path} has no benchmark-*.csv; it is the folder results of "
                         "huggingface/pytorch-image-models")
    table = pd.concat(map(read, files), ignore_index=True)
    return {device: rows.reset_index(drop=True) for device, rows in table.groupby("device")}
