"""Training data: one row per layer with its features, mean power (W above idle) and runtime (ms).

``training_data/<model>/{convolutional,pooling,dense}.csv`` have the original study's columns first,
then ours. Published tables with the original columns alone are read too.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files, files
from lib.errors import InputError, choices
from lib.tensorrt.engine import OTHER, Engine, Layer, read_engine
from lib.tensorrt.power_mapping import ABOVE_IDLE, COLUMNS
from lib.tensorrt.recordings import ENGINE, LAYERWISE, MEASURED, power_source

_FP16_BYTES = 2  # of a value in published tables: the original study's engines were of FP16
_WORK, _MOST = ("flops", "bytes", "weight_bytes"), 1e15
_SIZES = tuple(f"{side}_size_{axis}" for side in ("input", "output") for axis in range(3))
FEATURES = {  # of the original study
    "convolutional": ("batch_size", *_SIZES, "kernel_0", "kernel_1", "padding_0", "padding_1",
                      "stride_0", "stride_1"),
    "pooling": ("batch_size", *_SIZES, "kernel_0", "kernel_1", "stride_0", "stride_1"),
    "dense": ("batch_size", "input_size", "output_size")}
ORIGINAL = {kind: (*names, "power", "runtime", "layer_name") for kind, names in FEATURES.items()}
OURS = ("groups", "dilation_0", "dilation_1", "dtype", "weights_dtype", "flops", "bytes",
        "weight_bytes", "power_n", "runtime_n")


def layer_features(layer: Layer) -> dict:
    """Return a layer's features (NCHW; the sizes of a dense layer are products)."""
    into, out = layer.inputs[0].dimensions, layer.outputs[0].dimensions
    padding = [before + after for before, after in
               zip(layer.pre_padding, layer.post_padding, strict=False)] or [0, 0]
    sizes = {"input_size": into[1:4], "output_size": out[1:4], "kernel": layer.window[:2],
             "padding": padding[:2], "stride": layer.stride[:2],
             "dilation": layer.dilation[:2] or (1, 1)}
    by_axis = {f"{name}_{axis}": size for name, values in sizes.items()
               for axis, size in enumerate(values)}
    return {"layer_name": layer.name, "kind": layer.kind, "batch_size": into[0], **by_axis,
            "input_size": int(np.prod(into)), "output_size": int(np.prod(out)),
            "groups": layer.groups, "dtype": layer.inputs[0].dtype,
            "weights_dtype": layer.weights.format, "flops": layer.flops, "bytes": layer.bytes,
            "weight_bytes": layer.weights.bytes + layer.bias.bytes}


def layer_table(engine: Engine, layerwise: pd.DataFrame, least_samples: int) -> pd.DataFrame:
    """Return one row per layer of a kind; power is empty with fewer than ``least_samples``."""
    measured = layerwise.groupby("layer_name").agg(
        power=(ABOVE_IDLE, "mean"), power_n=(ABOVE_IDLE, "count"),
        runtime=("layer_run_time", "mean"), runtime_n=("layer_run_time", "count"))
    rows = [layer_features(layer) for layer in engine.layers if layer.kind != OTHER]
    table = pd.DataFrame(rows, columns=None if rows else ["layer_name", "kind", "bytes"])
    table = table.join(measured, on="layer_name")
    counts = table[["power_n", "runtime_n"]].fillna(0).astype(int)
    power_w = (table["power"] / 1e6).where(counts["power_n"] >= least_samples)
    return table.assign(power=power_w, **counts)


def convert(preprocessed: Path, target: Path, least_samples: int = 10) -> dict[Path, list[str]]:
    """Write ``target/<model>/<kind>.csv`` for each preprocessed model; return notes by folder.

    Power that was not measured is left out: no model is trained on it.
    """
    folders = [path.parent for path in sorted(preprocessed.glob(f"*/{LAYERWISE}"))]
    if not folders:
        raise InputError(f"{preprocessed} holds no <model>/{LAYERWISE}; make them with: "
                         "python -m lib layer-power preprocess")
    all_notes = {}
    for folder in folders:
        layerwise, source = csv_files.frame(folder / LAYERWISE), power_source(folder)
        if tuple(layerwise) != COLUMNS:
            raise InputError(f"{folder / LAYERWISE} has other columns than {', '.join(COLUMNS)}")
        place = target / folder.name
        notes = all_notes[place] = []
        if source != MEASURED:
            layerwise[ABOVE_IDLE] = np.nan
            notes.append(f"power is left out: it is {source}")
        table = layer_table(read_engine(folder / ENGINE), layerwise, least_samples)
        for kind, rows in table.groupby("kind", sort=False):
            content = rows[[*ORIGINAL[kind], *OURS]].to_csv(index=False).encode()
            files.replace(place / f"{kind}.csv", content)
        for column in ("power", "bytes"):
            if missing := table[column].isna().sum():
                notes.append(f"{missing} of {len(table)} layers without {column}")
    return all_notes


def read_training(folder: Path) -> pd.DataFrame:
    """Read all ``<model>/<kind>.csv`` as a table with ``kind`` and ``network`` (after a dash)."""
    tables = []
    for path in sorted(folder.glob("*/*.csv")):
        if (kind := path.stem) not in ORIGINAL:
            continue
        table = csv_files.frame(path, dtype={"layer_name": str, "dtype": str, "weights_dtype": str})
        if missing := [name for name in ORIGINAL[kind] if name not in table]:
            raise InputError(f"{path} lacks the columns {choices(missing)}")
        _check_numbers(table, path)
        if kind != "dense":
            table["input_size"] = table[["batch_size", *_SIZES[:3]]].prod(axis=1)
            table["output_size"] = table[["batch_size", *_SIZES[3:]]].prod(axis=1)
        assumed = _assumed_columns(table, kind)
        table = table.assign(**{name: assumed[name] for name in assumed if name not in table})
        tables.append(table.assign(kind=kind, network=path.parent.name.rpartition("-")[2]))
    if not tables:
        raise InputError(f"{folder} holds no <model>/<kind>.csv; make them with: "
                         "python -m lib layer-power dataset RAW")
    return pd.concat(tables, ignore_index=True)


def _check_numbers(table: pd.DataFrame, path: Path) -> None:
    """Refuse text, sizes below 1, and negative work; what was not measured may be empty."""
    optional = [*_WORK, "power", "runtime"]
    for name in table.columns.intersection([*FEATURES[path.stem], "groups", *optional], sort=False):
        value = pd.to_numeric(table[name], errors="coerce")
        least = 0 if name in _WORK or "padding" in name else -_MOST if name in optional else 1
        good = value.between(least, _MOST) | (table[name].isna() & (name in optional))
        if not good.all():
            raise InputError(f"{path}: row {good.idxmin() + 1} below the header has "
                             f"{table[name][~good].iloc[0]} as {name}: it is a number from "
                             f"{least:g} to {_MOST:g}")


def _assumed_columns(table: pd.DataFrame, kind: str) -> dict:
    """Return ``OURS`` for a published table: plain convolutions in FP16, work from the shapes."""
    into, out = table["input_size"], table["output_size"]
    if kind == "dense":
        reads, channels = into / table["batch_size"], out / table["batch_size"]
    else:
        reads, channels = table["kernel_0"] * table["kernel_1"], table["output_size_0"]
    if kind == "convolutional":
        reads = reads * table["input_size_0"]
    weights = 0 if kind == "pooling" else reads * channels
    flops = out * reads if kind == "pooling" else 2 * out * reads
    return {"groups": 1, "dilation_0": 1, "dilation_1": 1, "dtype": "", "weights_dtype": "",
            "power_n": np.nan, "runtime_n": np.nan, "flops": flops,
            "weight_bytes": weights * _FP16_BYTES, "bytes": (into + out + weights) * _FP16_BYTES}
