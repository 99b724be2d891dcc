"""Throughputs of whole networks as timm publishes them (its folder ``results``), turned into tables, one a device."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files
from lib.errors import InputError
from lib.measure import importers
from lib.tables import columns

DEVICES = {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090", "4090": "rtx-4090", "pro6000maxq": "rtx-pro-6000-max-q"}
_PRECISIONS = {"fp32": "fp32", "amp": "amp_fp16", "amp_bf16": "amp_bf16", "bf16": "bf16"}
_NAME = re.compile(r"benchmark-(?P<mode>infer|train)-(?P<precision>[a-z0-9_]+)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d{3})"
                   r"(-cu\d{3})?-(?P<device>[a-z0-9_-]+?)(?P<compiled>-dynamo)?\.csv")
_COUNTS = {"image_size": "img_size", "batch_size": "batch_size"}
_STATED = {"parameters_m": "param_count", "gmacs": "gmacs", "mactivations": "macts"}
_TOLERANCE = 0.1  # between the stated time of a step and batch size over images/s, which are means of their own


def read(path: Path) -> pd.DataFrame:
    """Return ``benchmark-<mode>-<precision>-<layout>-pt<torch>-[cu<CUDA>-]<device>[-dynamo].csv`` as ``whole_networks``.

    A throughput that is 0 or empty (it failed) is left out. Raises InputError for another name or layout, for a cell that is
    no number, and for a step time that contradicts the throughput.
    """
    named = _NAME.fullmatch(path.name)
    if not named or named["precision"] not in _PRECISIONS:
        raise InputError(f"{path} is not named as timm's results are, benchmark-<infer or train>-<{' or '.join(_PRECISIONS)}>-"
                         "<nchw or nhwc>-pt<torch>-cu<CUDA>-<device>[-dynamo].csv")
    mode = named["mode"]
    given = {**{name: f"{mode}_{old}" for name, old in _COUNTS.items()}, "images_per_sec": f"{mode}_samples_per_sec",
             "step_ms": f"{mode}_step_time"}
    frame = importers.require(csv_files.frame(path, dtype={"model": str, "module": str}), path,
                              {"model", "module", "param_count", *given.values()})
    rate = frame[given["images_per_sec"]]
    failed = rate.isna() | (pd.to_numeric(rate, errors="coerce") == 0)
    counted = [given[name] for name in _COUNTS]
    frame = importers.checked(frame[~failed].reset_index(drop=True), path, counted, (given["images_per_sec"], given["step_ms"]))
    if not len(frame) or frame[["model", "module", *given.values()]].isna().any(axis=None):
        raise InputError(f"{path} has no row, or rows without a model, a module, a throughput or a step time")
    values = {name: frame[old] for name, old in given.items()}
    values["latency_ms"] = values["batch_size"] / values["images_per_sec"] * 1e3
    per_image = mode == "infer" and (values["batch_size"] == 1).all()
    apart = np.abs(values.pop("step_ms") / values["latency_ms"] - 1) > _TOLERANCE
    if apart.any() and not per_image:
        raise InputError(f"{path}: {importers.row_name(apart.idxmax())}, {frame['model'][apart.idxmax()]}, has a step time "
                         "that is not its batch size over its throughput")
    missing, digits = pd.Series(np.nan, frame.index), named["torch"]
    stated = {name: pd.to_numeric(frame.get(old, frame.get(f"{mode}_{old}", missing)), errors="coerce")
              for name, old in _STATED.items()}
    version = f"1.{digits[1:]}" if digits.startswith("1") else ".".join(digits)  # 113 is 1.13, 240 is 2.4.0
    table = pd.DataFrame({**values, **stated, "network": frame["model"], "module": frame["module"], "mode": mode,
                          "precision": _PRECISIONS[named["precision"]], "layout": named["layout"],
                          "compiled": bool(named["compiled"]), "torch": version,
                          "device": DEVICES.get(named["device"], named["device"].replace("_", "-"))})
    return table[columns("whole_networks")]


def bring_in(path: Path | None) -> importers.Written:
    """Turn a file of timm's results, or all in a folder, into ``data/imported/<device>/whole_networks/timm``.

    Returns file and table by device. Raises InputError where there is no such file.
    """
    if path is None:
        raise InputError("import timm needs the path of a file or folder of huggingface/pytorch-image-models, results/")
    if not path.exists():
        raise InputError(f"{path} is missing")
    files = [path] if path.is_file() else sorted(path.glob("benchmark-*.csv"))
    if not files:
        raise InputError(f"{path} has no benchmark-*.csv; it is the folder results of huggingface/pytorch-image-models")
    table = pd.concat(map(read, files), ignore_index=True)
    tables = {device: rows.reset_index(drop=True) for device, rows in table.groupby("device")}
    return importers.write(tables, "whole_networks", "timm", path, ("whole_networks", "timm"),
                           licence="Apache-2.0, huggingface/pytorch-image-models")
