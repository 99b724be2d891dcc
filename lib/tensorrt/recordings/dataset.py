"""From raw recordings to training data: ``raw_data/<model>/`` -> ``preprocessed_data/<model>/`` -> ``training_data/<model>/``.

Raw: ``trt_engine_info.json``, ``trt_layer_latency.json`` (or trtexec's ``X.graph.json``, ``X.profile.json``), in the model's
folder or in its ``trt_profiling``; where power was recorded, ``power_log.log`` or ``<model>_power_log.log`` in one of these,
and ``idling_power.json`` there or beside the folders of models.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files, files, paths
from lib.config.base import json_mapping
from lib.errors import InputError, choices
from lib.measure.energy import power_log
from lib.tensorrt import engine
from lib.tensorrt.engine import KINDS, Engine, Layer
from lib.tensorrt.recordings import mapping

ENGINE, LATENCY, LAYERWISE = "trt_engine_info.json", "trt_layer_latency.json", "power_runtime_mapping_layerwise.csv"
POWER, IDLE, RECORDING = "power_log.log", "idling_power.json", "recording.json"
_GRAPH, _PROFILE = ".graph.json", ".profile.json"  # of trtexec, as --exportLayerInfo and --exportProfile are usually named
MEASURED, REPLAYED, SYNTHETIC, NOT_MEASURED = SOURCES = ("measured", "replayed", "synthetic", "not measured")
LEAST_SAMPLES = 10
_EXCLUDING = mapping.COLUMNS[4]
_PLAIN_BYTES = 2  # of a number in tables without bytes: the original study's engines were of FP16
_WORK, _MOST = ("flops", "bytes", "weight_bytes"), 1e15
_TEXTS = ("layer_name", "dtype", "weights_dtype")
_SPATIAL = (*(f"{side}_size_{axis}" for side in ("input", "output") for axis in range(3)), "kernel_0", "kernel_1")
FEATURES = {  # of the original study
    "convolutional": ("batch_size", *_SPATIAL, "padding_0", "padding_1", "stride_0", "stride_1"),
    "pooling": ("batch_size", *_SPATIAL, "stride_0", "stride_1"),
    "dense": ("batch_size", "input_size", "output_size")}
ORIGINAL = {kind: (*names, "power", "runtime", "layer_name") for kind, names in FEATURES.items()}
OURS = ("groups", "dilation_0", "dilation_1", "dtype", "weights_dtype", "flops", "bytes", "weight_bytes", "power_n",
        "runtime_n")


@dataclass(frozen=True)
class Recording:
    """What one step of the way left of a model: the file that it wrote, and notes on what is missing or was left out."""

    model: str
    written: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The files of a raw recording; ``power`` is None where no log, or no idle power, was found."""

    name: str
    engine: Path
    latency: Path
    power: Path | None
    idle: Path | None

    @classmethod
    def beside(cls, path: Path) -> "Source":
        """Return the recording that an engine's file belongs to."""
        folder = _model_folder(path)
        latency = path.with_name(LATENCY if path.name == ENGINE else path.name.replace(_GRAPH, _PROFILE))
        powers = [place / name for place in (path.parent, folder) for name in (POWER, f"{folder.resolve().name}_{POWER}")]
        idles = [place / IDLE for place in (path.parent, folder, folder.parent)]
        power, idle = (next(filter(Path.is_file, places), None) for places in (powers, idles))
        return cls(folder.resolve().name, path, latency, idle and power, idle)


def _model_folder(path: Path) -> Path:
    return path.parent.parent if path.parent.name == "trt_profiling" else path.parent


def models(raw: Path) -> dict[str, Source]:
    """Return the recordings under ``raw`` by their models; InputError where there is none, or a power log that none uses."""
    sources = {}
    for path in _visible(raw, ENGINE, f"*{_GRAPH}"):
        folder = path.parent if path.parent == raw else _model_folder(path)
        suffix = [path.name.removesuffix(_GRAPH)] if len([*path.parent.glob(f"*{_GRAPH}")]) > 1 else []
        name = "-".join([*folder.relative_to(raw).parts, *suffix]) or raw.resolve().name
        if name in sources:
            raise InputError(f"{raw}: {sources[name].engine.parent} and {path.parent} would both be called {name!r}; give one "
                             "another name")
        sources[name] = Source.beside(path)
    if not sources:
        raise InputError(f"{raw} holds no recording: no folder with {ENGINE}, and {LATENCY} beside it; nor trtexec's X{_GRAPH} "
                         f"and X{_PROFILE}")
    used = {source.power for source in sources.values()}
    for path in _visible(raw, "*power_log*.log"):  # older ones end in a time stamp
        if path not in used and "idling" not in path.name:
            raise InputError(f"{path} is used by no recording; it would be as <model>/{POWER} or <model>/<model>_{POWER}, with "
                             f"an engine in <model> and {IDLE} there or one level up: rename it, or move it away")
    return sources


def _visible(raw: Path, *patterns: str) -> list[Path]:
    """Return the files of some names under ``raw``, without those of a recording that was cut short (a hidden folder)."""
    return sorted(path for pattern in patterns for path in raw.rglob(pattern)
                  if not any(part.startswith(".") for part in path.relative_to(raw).parts))


def preprocess(raw: Path, target: Path, profile: int | None = None) -> list[Recording]:
    """Bring power to layers for each recording under ``raw``; write ``target/<model>/`` with a row a cycle and layer.

    ``profile``: the optimisation profile whose layers were recorded (default: each engine's first). Power stays empty where
    none was recorded. Raises InputError where nothing is there to read, or for a damaged file.
    """
    recordings = []
    for model, source in models(raw).items():
        read, folder, place = engine.read(source.engine, profile), source.engine.parent, target / model
        power = (power_log.read(source.power), power_log.read_idle_w(source.idle)) if source.power else ()
        table, notes = mapping.layerwise(read, mapping.read_times(source.latency, read), *power)
        power_source(folder)  # a recording that says nothing that is known of its power is refused
        with files.writing(place):
            for name in (LAYERWISE, RECORDING):  # of an earlier recording; what says where the power is from comes before it
                (place / name).unlink(missing_ok=True)
        copied = [files.replace(place / name, path.read_bytes())
                  for name, path in ((RECORDING, folder / RECORDING), (ENGINE, source.engine)) if path.is_file()]
        written = files.replace(place / LAYERWISE, table.to_csv(index=False).encode())
        missing = [] if power else [f"no power: {POWER} missing"]
        recordings.append(Recording(model, (written, *copied), (*notes, *read.notes, *missing)))
    return recordings


def power_source(folder: Path) -> str:
    """Return where the power of a recording, raw or preprocessed, is from: measured, replayed, synthetic, or not measured.

    One without ``recording.json``, as boards give them, is measured. Raises InputError for another word.
    """
    path = folder / RECORDING
    if not path.exists():
        return MEASURED
    source = json_mapping(path).get("power")
    if source not in SOURCES:
        raise InputError(f"{path}: power is {str(source)[:60]!r}; it is one of {choices(SOURCES)}")
    return source


def convert(preprocessed: Path, target: Path, least_samples: int = LEAST_SAMPLES) -> list[Recording]:
    """Turn each model's layers into ``target/<model>/{convolutional,pooling,dense}.csv``: features, mean watts, mean ms.

    ``power`` excludes idle power, and is empty where a layer has fewer than ``least_samples`` windows with samples.
    """
    folders = [path.parent for path in sorted(preprocessed.glob(f"*/{LAYERWISE}"))]
    if not folders:
        raise InputError(f"{preprocessed} holds no <model>/{LAYERWISE}; make them with: python -m lib layer-power preprocess")
    recordings = []
    for folder in folders:
        layerwise, source, place, why = csv_files.frame(folder / LAYERWISE), power_source(folder), target / folder.name, ""
        if tuple(layerwise) != mapping.COLUMNS:
            raise InputError(f"{folder / LAYERWISE} has other columns than {', '.join(mapping.COLUMNS)}")
        profiles = {engine.profile_number(str(name)) for name in layerwise["layer_name"]}
        read = engine.read(folder / ENGINE, min(profiles, default=None))
        if source != MEASURED:  # no model is ever trained on it
            layerwise[_EXCLUDING], why = np.nan, f": it is {source}"
        table = layer_table(read, layerwise, least_samples)
        written = [files.replace(place / f"{kind}.csv", rows[[*ORIGINAL[kind], *OURS]].to_csv(index=False).encode())
                   for kind, rows in table.groupby("kind", sort=False)]
        lacking = table["power"].isna().sum()
        powerless = [f"{lacking} of {len(table)} layers without power{why}"] if lacking else []
        recordings.append(Recording(folder.name, tuple(written), (*powerless, *read.notes)))
    return recordings


def build(raw: Path) -> Path:
    """Preprocess and convert the recordings below ``raw``; return the folder of their training data, below data/layer_power."""
    folder = paths.DATA / "layer_power" / files.safe_name(raw.resolve().name)
    preprocess(raw, folder / "preprocessed_data")
    convert(folder / "preprocessed_data", folder / "training_data")
    return folder / "training_data"


def layer_table(read: Engine, layerwise: pd.DataFrame, least_samples: int) -> pd.DataFrame:
    """Return a row for each convolutional, pooling and dense layer: the columns of its kind, ``OURS``, and ``kind``."""
    measured = layerwise.groupby("layer_name").agg(
        power=(_EXCLUDING, "mean"), power_n=(_EXCLUDING, "count"), runtime=("layer_run_time", "mean"),
        runtime_n=("layer_run_time", "count"))
    rows = [features(layer) for layer in read.layers if layer.kind in KINDS.values()]
    table = pd.DataFrame(rows, columns=None if rows else ["layer_name", "kind"]).join(measured, on="layer_name")
    counts = table[["power_n", "runtime_n"]].fillna(0).astype(int)
    return table.assign(power=(table["power"] / 1e6).where(counts["power_n"] >= least_samples), **counts)


def read_training(folder: Path) -> pd.DataFrame:
    """Read ``<model>/<kind>.csv`` below a folder as one table with ``kind`` and ``network``, the model without its route.

    A network that was exported by two routes (``torch_trt-resnet18``, ``torch_onnx_trt-resnet18``) is one network. Raises
    InputError where there is none, and for a table without the columns of its kind.
    """
    tables = [_training_table(path) for path in sorted(folder.glob("*/*.csv")) if path.stem in ORIGINAL]
    if not tables:
        raise InputError(f"{folder} holds no <model>/<kind>.csv; make them with: python -m lib layer-power dataset RAW")
    return pd.concat(tables, ignore_index=True)


def _check_numbers(table: pd.DataFrame, path: Path) -> None:
    """Refuse text, a size below 1, and work that is negative or endless; what is not known may be empty."""
    names = table.columns.intersection([*ORIGINAL[path.stem], *OURS]).difference(_TEXTS, sort=False)
    if wrong := [*table[names].select_dtypes(exclude="number")]:
        raise InputError(f"{path}: {choices(wrong)} hold what is no number")
    for name in names.intersection([*_SPATIAL, "batch_size", "input_size", "output_size", "groups", *_WORK]):
        least = 0 if name in _WORK else 1
        wrong = ~table[name].between(least, _MOST) & ~(table[name].isna() & (name in _WORK))
        if wrong.any():
            raise InputError(f"{path}: row {wrong.idxmax() + 1} below the header has {table[name][wrong].iloc[0]} as {name}: "
                             f"it is a number from {least} to {_MOST:g}")


def _training_table(path: Path) -> pd.DataFrame:
    table, kind = csv_files.frame(path, dtype=dict.fromkeys(_TEXTS, str)), path.stem
    if lacking := [name for name in ORIGINAL[kind] if name not in table]:
        raise InputError(f"{path} lacks the columns {choices(lacking)}")
    _check_numbers(table, path)
    if kind != "dense":
        for side in ("input", "output"):
            table[f"{side}_size"] = table["batch_size"] * table[[f"{side}_size_{axis}" for axis in range(3)]].prod(axis=1)
    table = table.assign(**{name: value for name, value in _assumed(table, kind).items() if name not in table})
    return table.assign(kind=kind, network=path.parent.name.rpartition("-")[2])


def _assumed(table: pd.DataFrame, kind: str) -> dict:
    """Return OURS for a table of the original study: plain convolutions in FP16, work from their shapes; the rest is empty."""
    into, out, batch, pooled = table["input_size"], table["output_size"], table["batch_size"], kind == "pooling"
    if kind == "dense":
        reads, channels = into / batch, out / batch
    else:
        reads, channels = table["kernel_0"] * table["kernel_1"], table["output_size_0"]
    if kind == "convolutional":
        reads = reads * table["input_size_0"]
    weights = 0 if pooled else reads * channels
    return {"groups": 1, "dilation_0": 1, "dilation_1": 1, "dtype": "", "weights_dtype": "", "power_n": np.nan,
            "runtime_n": np.nan, "flops": (1 if pooled else 2) * out * reads, "weight_bytes": weights * _PLAIN_BYTES,
            "bytes": (into + out + weights) * _PLAIN_BYTES}


def features(layer: Layer) -> dict:
    """Return a layer's features by the original's names (NCHW; sizes of a dense layer are products) and ours."""
    into, out = layer.inputs[0].dimensions, layer.outputs[0].dimensions
    padding = [before + after for before, after in zip(layer.pre_padding, layer.post_padding, strict=False)] or [0, 0]
    sizes = {"input_size": into[1:4], "output_size": out[1:4], "kernel": layer.window[:2], "padding": padding[:2],
             "stride": layer.stride[:2], "dilation": layer.dilation[:2] or (1, 1)}
    return {"layer_name": layer.name, "kind": layer.kind, "batch_size": into[0],
            **{f"{name}_{axis}": size for name, values in sizes.items() for axis, size in enumerate(values)},
            "input_size": int(np.prod(into)), "output_size": int(np.prod(out)), "groups": layer.groups, "dtype": layer.dtype,
            "weights_dtype": layer.weights.format, "flops": layer.flops, "bytes": layer.bytes,
            "weight_bytes": layer.weights.bytes + layer.bias.bytes}
