"""The full evaluation of a reference machine's models, written beside its data: what the notebook and the report show."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from lib import files, store
from lib.errors import InputError
from lib.measure import archive
from lib.measure.statistics import is_usable
from lib.predict import held_out, network_training, registry, training
from lib.predict.evaluation import baselines, gpu_kernels
from lib.predict.networks.composition import TERMS, TIME_TERMS
from lib.predict.networks.resident import PREDICTED
from lib.predict.operators import cost_model, features, lines, validation
from lib.predict.scores import score_by
from lib.predict.trust import errors
from lib.progress import track
from lib.tables import columns

_NETWORKS = [*"network family kind mode batch_size memory tuning latency_ms latency_iqr_ms verdict status predicted_ms low_ms "
              "high_ms shipped_ms".split(), *dict.fromkeys((*TERMS, *TIME_TERMS)),
             *"outside looked_up first_use rss_mb tensors_mb peak_mb memory_mb blocks_mb".split(), *PREDICTED, "lines_ms",
             "flops", "bytes", "calls"]  # published


def with_memory(memory: str) -> str:
    """Return how the ``family`` of a network's scores ends for an allocator, as the column ``memory`` has it."""
    return f"{memory} memory"


def network_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return scores of networks by mode, batch size and way with memory, those that validate alone; and of memory."""
    networks = errors.unseen(table).sort_values("memory", ascending=False)
    rows = errors.network_rows("", networks)
    rows = rows[rows["usable"] & ~((rows["what"] == errors.RESIDENT) & (rows["condition"] != errors.LEARNED))]
    timed = (rows["what"] == errors.NETWORKS).to_numpy()
    condition = rows["condition"].replace(errors.LEARNED, "resident")
    case = ("batch " + rows["batch_size"].astype(str) + ", " + condition.map(with_memory)).where(timed, condition)
    rows = rows.assign(kind=np.where(timed, "network", "memory"), family=rows["mode"] + ", " + case)
    memory = rows[~timed].sort_values("mode", kind="stable")
    return score_by(pd.concat([rows[timed], memory]), ["kind", "family"]).assign(learner="this model").reindex(
        columns=columns("scores"))


def evaluate(folder: Path | None = None, target: training.Target = training.CPU,
             publish: bool = True) -> pd.DataFrame:
    """Train the model of a reference machine's device, save it, and return its scores; ``publish`` them beside its data, too.

    ``folder`` defaults to the first machine with networks. Published with the scores are the predictions that they are of.
    """
    folder = folder or training.reference_machine()
    model = training.own_model(folder, target)
    table, _ = training.reference_sweeps(folder, target)
    scores, predictions = baselines.compare(table, training.roof_of(folder, target), model)
    networks = network_training.fit_networks(model, folder, target, lines.Lines.fit(table, model))
    path = model.save(registry.path_of(model.device, target.dtype, registry.trained_folder(folder, model.device)))
    if not publish:
        return scores
    scores = pd.concat([scores.assign(kind="operator"), network_scores(networks)],
                       ignore_index=True).reindex(columns=columns("scores"))
    facts = {name: model.facts[name] for name in ("sweeps", "hardware_id", "software_id")}
    facts |= {"model": path.name, "tuning_networks": list(network_training.TUNING), "target": asdict(target)}
    published = folder / "predictions"
    store.write_meta(store.write(scores, published / "scores.parquet", "scores", derived=True), "scores", **facts)
    every = pd.concat([predictions.assign(usable=True), _unusable(model, training.swept(folder, target)[0], table)])
    store.write(_operators(every, folder.name, target.dtype), published / "operators.parquet", "held_out", derived=True)
    files.replace(published / "networks.csv", networks[_NETWORKS].to_csv(index=False).encode())
    return scores


def own_machine(name: str) -> tuple[pd.DataFrame, list[str]]:
    """Train and evaluate a model of each device and element type that a reference machine swept; return their scores.

    The evaluation of the first, its CPU where that was swept, is written beside the data, for 06_cost_model. Second come the
    reasons why others have none, such as a GPU that params/devices.yaml does not know. Raises InputError for a machine that is
    not there, or of which nothing can be trained.
    """
    folder, scores, reasons = archive.machine_folder(name), [], []
    for target in training.targets(folder):
        device, dtype = target.name or "cpu", target.dtype
        try:
            scores.append(evaluate(folder, target, publish=not scores).assign(device=device, dtype=dtype))
        except InputError as error:
            reasons.append(f"{device} {dtype}: {error}")
    if not scores:
        raise InputError(f"no model of {name} could be trained: {'; '.join(reasons)}")
    return pd.concat(scores, ignore_index=True), reasons


def _unusable(model: cost_model.CostModel, every: pd.DataFrame, trained: pd.DataFrame) -> pd.DataFrame:
    """Return predictions of operators that repeated too badly to train, those of a trained shape left out."""
    rows = every[(every["status"] == "ok") & ~is_usable(every)]
    rows = rows[~validation.shapes_of(rows).isin(set(validation.shapes_of(trained)))].drop(columns=["low_ms", "high_ms"])
    families = {(op, passes): family for family, (ops, passes) in baselines.FAMILIES.items() for op in ops}
    named = rows.assign(family=list(map(families.get, zip(rows["op"], rows["pass"], strict=True))), usable=False)
    return named.join(model.predict(rows)).dropna(subset="family")


def _operators(predictions: pd.DataFrame, device: str, dtype: str) -> pd.DataFrame:
    """Return the predictions of ``baselines.compare`` as rows ``held_out``."""
    ends = {end: predictions[f"{end}_ms"] for end in ("predicted", "low", "high")}
    kinds = [family.removesuffix(f" {passes}") for family, passes in predictions[["family", "pass"]].to_numpy()]
    return held_out.frame(**ends, device=device, what=held_out.OPERATORS, kind=kinds, mode=predictions["pass"], condition=dtype,
                          group=predictions["family"], case=predictions["config"], measured=predictions["latency_ms"],
                          out_of_range=predictions["out_of_range"], usable=predictions["usable"], left_out="shapes, in folds",
                          source=held_out.PROJECT)


def published(kind: str, dtype: str) -> None:
    """Train and ship the models of every device of an imported kind, and that of any GPU, with their scores by operator."""
    tables = {device: table for device, table in training.published_tables(kind).items()
              if ((table["dtype"] == dtype) & (table["status"] == "ok")).any()}
    shared = training.any_gpu(tables, kind, dtype)  # refuses too few GPUs; nothing is replaced before all are trained
    models = [training.gpu_model(device, table, kind, dtype) for device, table in track(tables.items(), kind)]
    described = {device: table.drop(columns=features.UNASKED, errors="ignore") for device, table in tables.items()}
    scores = [gpu_kernels.scores(gpu_kernels.left_out(shared, described)),
              *(gpu_kernels.scores(gpu_kernels.own(model, training.balanced(described[model.device], dtype)))
                for model in models)]
    for model in (shared, *models):
        model.save(registry.path_of(model.device, dtype, registry.SHIPPED))
    table = pd.concat(scores, ignore_index=True).to_csv(index=False, float_format="%.5g")
    files.replace(gpu_kernels.path(dtype), table.encode())
