"""The layer-power study: a recording with its power, layers of several networks, models of them, an engine's prediction."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import files, paths, store
from lib.config.notebooks import LayerPowerParams
from lib.errors import entry
from lib.measure import archive
from lib.measure.energy import power_log
from lib.tensorrt import engine
from lib.tensorrt.engine import KINDS, Engine
from lib.tensorrt.models import baselines, lasso, layer_model, predictions, training
from lib.tensorrt.recordings import dataset, mapping, recording, synthetic_power
from lib.work import networks

ORIGINAL, CORRECTED, OURS = "original pipeline", "original pipeline, terms corrected", "physics (ours)"
_TARGET = "runtime"
_LEAST_FOR_LASSO = 5  # rows, in as many folds as it makes of one network
_MEASURED_RUNS = 30


def _lasso(corrected: bool) -> Callable:
    return lambda train, test, target: lasso.predict(test, lasso.fit(train, target, corrected=corrected))


LEARNERS = {"mean": baselines.mean, "roofline": baselines.roofline, ORIGINAL: _lasso(False), CORRECTED: _lasso(True)}


@dataclass(frozen=True)
class Recorded:
    """One recording: the engine, its latencies, its power log with the idle power, and what it says of itself."""

    name: str
    engine: Engine
    times: pd.DataFrame
    log: power_log.PowerLog | None
    idle_w: float
    layerwise: pd.DataFrame
    power: str


@dataclass(frozen=True)
class Study:
    """What the notebook shows."""

    recorded: Recorded
    layers: pd.DataFrame
    device: str
    settings: training.Settings
    models: dict[tuple[str, str], layer_model.LayerModel]
    refused: tuple[str, ...]
    note: str


def study(p: LayerPowerParams) -> Study:
    """Gather what the parameters name: recordings given, made now, or of a reference machine; and train models of them."""
    raw, training_data, device, note = _sources(p)
    recorded = _read(raw)
    layers, settings = dataset.read_training(training_data), training.load_settings()
    models, refused = {}, []
    for target in layer_model.TARGETS:
        trained, reasons = training.train(layers, target, device, settings=settings)
        models |= {(target, model.kind): model for model in trained}
        refused += [f"{target}: {reason}" for reason in reasons]
    return Study(recorded, layers, device, settings, models, tuple(refused), note + _power_note(recorded))


def _sources(p: LayerPowerParams) -> tuple[dataset.Source, Path, str, str]:
    """Return one recording and the folder of training data, the device that they are of, and a note on both."""
    if p.recordings:
        recorded = _chosen(Path(p.recordings), p.network)
        built = paths.DATA / "layer_power" / files.safe_name(Path(p.recordings).resolve().name)
        dataset.preprocess(Path(p.recordings), built / "preprocessed_data")
        dataset.convert(built / "preprocessed_data", built / "training_data")
        return recorded, built / "training_data", p.device_name or "not stated", f"Recordings in {p.recordings}."
    machine, reference = archive.machine_with("layer_power", "recordings of layers", p.reference)
    if p.source == "replay":
        recorded, note = _chosen(reference / "raw_data", p.network), f"REPLAY of recordings made on {machine}."
        return recorded, reference / "training_data", machine, note
    recorded = dataset.Source.beside(_record(p) / dataset.ENGINE)
    return recorded, reference / "training_data", machine, f"Recorded now; layers of other networks are those of {machine}."


def _chosen(folder: Path, network: str) -> dataset.Source:
    recordings = dataset.models(folder)
    name = network or next(iter(recordings))
    return entry(recordings, name, "recording", f"in {folder}")


def _record(p: LayerPowerParams) -> Path:
    """Record a network now, beside earlier recordings, with synthetic power where this machine has no meter."""
    parent = paths.DATA / "layer_power" / "raw_data"
    target = parent / store.fresh_name(files.safe_name(p.network or "resnet18"), lambda name: (parent / name).exists())
    recording.record(networks.network(p.network or "resnet18"), target, _MEASURED_RUNS, finish=_with_power)
    return target


def _with_power(folder: Path) -> None:
    if not (folder / dataset.POWER).exists():
        synthetic_power.add(folder)


def _read(source: dataset.Source) -> Recorded:
    read = engine.read(source.engine)
    times = mapping.read_times(source.latency, read)
    if not source.power:
        return Recorded(source.name, read, times, None, np.nan, pd.DataFrame(columns=mapping.COLUMNS), "not measured")
    log, idle_w = power_log.read(source.power), power_log.read_idle_w(source.idle)
    table, _ = mapping.layerwise(read, times, log, idle_w)
    return Recorded(source.name, read, times, log, idle_w, table, dataset.power_source(source.engine.parent))


def _power_note(recorded: Recorded) -> str:
    return {"synthetic": " The power is synthetic: its log was made by a stated rule, and not by a meter.",
            "not measured": " No power was recorded."}.get(recorded.power, "")


def described(layers: pd.DataFrame) -> pd.DataFrame:
    """Return a row a kind of layer: how many, of how many networks, rows with power, spread of the runtime, largest work."""
    groups = layers.groupby("kind")
    return groups.agg(layers=("runtime", "size"), networks=("network", "nunique"), with_power=("power", "count"),
                      least_ms=("runtime", "min"), median_ms=("runtime", "median"), most_ms=("runtime", "max"),
                      most_gflop=("flops", lambda flops: flops.max() / 1e9)).reset_index()


def held_out_scores(results: Study) -> pd.DataFrame:
    """Return the scores of every learner on networks left out in turn, a row a kind and learner; beside ours the baselines."""
    rows, table = [], layer_model.measured(results.layers, _TARGET)
    for kind in KINDS.values():
        is_kind = table["kind"] == kind
        layers = table[is_kind]
        if layers["network"].nunique() < 2:
            continue
        enough = len(layers) - layers["network"].value_counts().max() >= _LEAST_FOR_LASSO
        predicted = {name: _left_out(layers, learner) for name, learner in LEARNERS.items()
                     if enough or name not in (ORIGINAL, CORRECTED)}
        predicted[OURS] = layer_model.held_out(table, kind, _TARGET, results.settings.of(_TARGET, kind))[is_kind.to_numpy()]
        rows += [{"kind": kind, "model": name, **layer_model.score(layers[_TARGET], values), "n": len(layers)}
                 for name, values in predicted.items()]
    return pd.DataFrame(rows)


def _left_out(table: pd.DataFrame, learner: Callable) -> np.ndarray:
    predicted = pd.Series(np.nan, table.index)
    for name in table["network"].unique():
        test = table["network"] == name
        predicted[test] = learner(table[~test], table[test], _TARGET)
    return predicted.to_numpy()


def totals(results: Study) -> pd.DataFrame:
    """Return measured and predicted time of each network's layers, each predicted by models that did not see it."""
    table = layer_model.measured(results.layers, _TARGET).assign(predicted_ms=np.nan, half=0.0)
    for kind in KINDS.values():
        is_kind, model = table["kind"] == kind, results.models.get((_TARGET, kind))
        if model:
            table.loc[is_kind, "predicted_ms"] = layer_model.held_out(table, kind, _TARGET, model.setting)[is_kind.to_numpy()]
            table.loc[is_kind, "half"] = model.half
    table = table.rename(columns={_TARGET: "measured_ms"}).eval(
        "low_ms = predicted_ms * exp(-half)\nhigh_ms = predicted_ms * exp(half)")
    groups = table.groupby("network")[["measured_ms", "predicted_ms", "low_ms", "high_ms"]]
    sums = groups.sum(skipna=False)
    sums.insert(0, "layers", groups.size())
    return sums.eval("error = predicted_ms / measured_ms - 1").reset_index()


def search(results: Study, trials: int, seed: int) -> pd.DataFrame:
    """Return the trials of the search for each kind's setting of runtime, ``trials`` more than before: kind, trial, value."""
    kinds = [kind for kind in KINDS.values() if (_TARGET, kind) in results.models] if trials else []
    rows = [(kind, trial.number, trial.value) for kind in kinds for trial in training.search(
        results.layers, kind, _TARGET, results.device, results.settings, trials, seed).trials if trial.value is not None]
    return pd.DataFrame(rows, columns=["kind", "trial", "value"])


def sample_prediction(p: LayerPowerParams, results: Study) -> pd.DataFrame:
    """Return what the shipped models say of an engine's layers: of the given one, or of the recorded network's."""
    read = engine.read(Path(p.engine)) if p.engine else results.recorded.engine
    models = training.load_models(training.SHIPPED_DEVICE, (training.SHIPPED,))
    return predictions.of_engine(read, models, p.device_name)
