"""The full evaluation of a reference machine's models, written beside its data: what the notebook and the report show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import store
from lib.measure import archive
from lib.predict import registry, training
from lib.predict.evaluation import baselines, gpu_networks, training_steps
from lib.predict.networks import composition
from lib.predict.operators import cost_model
from lib.predict.operators.cost_model import CostModel
from lib.tables import columns

_SPLIT_SHAPES = "unseen shapes, 5 folds"
_SPLIT_NETWORKS = "networks never swept nor tuned on, composition learned from other families"


def operators(folder: Path, model: CostModel) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return scores (every learner) and predictions (this model, just fitted) of a machine's operators on unseen shapes."""
    table, _ = training.reference_sweeps(folder)
    roof = training.roof_of(folder)
    return baselines.compare(table, roof.peak_gflops, roof.gbps(), model)


def _cover(rows: pd.DataFrame) -> float:
    return float(((rows["low_ms"] <= rows["latency_ms"]) & (rows["latency_ms"] <= rows["high_ms"])).mean() * 100)


def network_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return scores of whole networks by mode and batch size, those that judge alone; and of the peak of tensors."""
    judged, found = table[~table["tuning"] & (table["status"] == "ok") & (table["verdict"] != "unusable")], []
    judged = judged[~judged["network"].str.fullmatch(r"W\d+")]
    for (memory, mode, batch), rows in judged.sort_values("memory", ascending=False).groupby(
            ["memory", "mode", "batch_size"], sort=False):
        found.append({"kind": "network", "family": f"{mode}, batch {batch}, {memory} memory", "learner": "this model",
                      "cover": _cover(rows),
                      **cost_model.score(rows["latency_ms"].to_numpy(), rows["predicted_ms"].to_numpy())})
    for mode, rows in judged[judged["memory"] == "default"].groupby("mode"):
        weights = rows["memory_mb"] - rows["peak_mb"]
        found.append({"kind": "memory", "family": f"{mode}, weights and tensors", "learner": "this model", "cover": np.nan,
                      **cost_model.score((weights + rows["tensors_mb"]).to_numpy(), rows["memory_mb"].to_numpy())})
    return pd.DataFrame(found)


def evaluate(folder: Path | None = None, quick: bool = False,
             progress: archive.Progress = lambda items, _: items) -> dict[str, Any]:
    """Train the CPU model of a reference machine, ship it, and write ``predictions`` and ``scores`` beside its data.

    Returns the tables ``scores``, ``networks``, ``steps`` and the path of the model.
    """
    folder = folder or training.reference_machine()
    model = training.cpu_model(folder, quick)
    scores, predictions = operators(folder, model)
    networks = training.with_networks(model, folder, progress)
    path = model.save(registry.path_of(model.device, "fp32", registry.SHIPPED))
    items = training.works(networks[networks["network"].str.fullmatch(r"W\d+")], progress)
    found_steps, joined = _write(folder, model, path, scores, predictions, networks, items, quick)
    return {"scores": joined, "networks": networks, "steps": found_steps, "model": path, "predictions": predictions}


def _write(folder: Path, model: CostModel, path: Path, scores: pd.DataFrame, predictions: pd.DataFrame, networks: pd.DataFrame,
           items: Mapping, quick: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    workloads = networks[networks["network"].str.fullmatch(r"W\d+")]
    found_steps = training_steps.leave_one_out(workloads, items, model) if len(workloads) else pd.DataFrame()
    all_scores = [scores.assign(kind="operator"), network_scores(networks)]
    if len(found_steps):
        all_scores.append(training_steps.scores(found_steps).assign(kind="step", family="W1-W7, leave one workload out"))
    joined = pd.concat(all_scores, ignore_index=True).reindex(columns=columns("scores"))
    target = folder / "predictions"
    facts = {"model": path.name, "sweeps": model.facts["sweeps"], "tuning_networks": list(training.TUNING),
             "hardware_id": model.facts["hardware_id"], "software_id": model.facts["software_id"], "quick": quick}
    for name, table, schema in (("scores", joined, "scores"), ("predictions", _predictions(predictions, networks, found_steps),
                                                               "predictions")):
        written = store.write(table, target / f"{name}.parquet", schema, derived=True)
        store.write_meta(written, schema, **facts)
    _networks(networks).to_csv(target / "networks.csv", index=False)
    return found_steps, joined


def _networks(table: pd.DataFrame) -> pd.DataFrame:
    return table[["network", "family", "mode", "batch_size", "memory", "tuning", "latency_ms", "latency_iqr_ms",
                  "verdict", "status", "predicted_ms", "low_ms", "high_ms", "shipped_ms", *composition.TERMS, "outside",
                  "looked_up", "rss_mb", "tensors_mb", "peak_mb", "memory_mb"]]


def _predictions(operator_rows: pd.DataFrame, networks: pd.DataFrame, found_steps: pd.DataFrame) -> pd.DataFrame:
    own = operator_rows.assign(kind="operator", what=operator_rows["config"], measured_ms=operator_rows["latency_ms"],
                               model="this model", split=_SPLIT_SHAPES)
    good = networks[~networks["tuning"] & (networks["status"] == "ok")]
    case = good["mode"] + " " + good["batch_size"].astype(str) + " " + good["memory"]
    whole = good.assign(kind="network", family=good["network"], what=case, measured_ms=good["latency_ms"],
                        predicted_gbps=np.nan, model="this model", split=_SPLIT_NETWORKS,
                        relative_error=good["predicted_ms"] / good["latency_ms"] - 1, out_of_range=good["outside"] > 0.05)
    parts = [own, whole]
    if len(found_steps):
        case = "train " + found_steps["batch_size"].astype(str)
        parts.append(found_steps.assign(kind="step", family=found_steps["workload"], what=case, low_ms=np.nan, high_ms=np.nan,
                                        predicted_gbps=np.nan, model=found_steps["learner"], split="leave one workload out",
                                        out_of_range=False))
    return pd.concat([part[columns("predictions")] for part in parts], ignore_index=True)


def published(kind: str, dtype: str, quick: bool = False,
              progress: archive.Progress = lambda items, _: items) -> list[tuple[str, CostModel]]:
    """Train and ship the models of every device of an imported kind, and that of any GPU, with what all GPUs then predict."""
    tables, found = training.published_tables(kind), []
    for device, table in progress(list(tables.items()), kind):
        model = training.gpu_model(device, table, kind, dtype, quick)
        model.save(registry.path_of(device, dtype, registry.SHIPPED))
        found.append((device, model))
    model = training.any_gpu(tables, kind, dtype, quick)
    model.save(registry.path_of(registry.ANY_GPU, dtype, registry.SHIPPED))
    gpu_networks.table(progress=progress).to_csv(gpu_networks.path(), index=False)
    return [*found, (registry.ANY_GPU, model)]
