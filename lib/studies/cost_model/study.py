"""What ``06_cost_model`` gathers: a machine's published evaluation, scored anew, and a part of it repeated."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lib import csv_files, store
from lib.errors import InputError, choices, entry
from lib.measure import archive
from lib.measure.statistics import is_usable
from lib.predict import network_training, registry, steps, training
from lib.predict.evaluation import baselines, evaluate, profiled_steps, training_diagnostics
from lib.predict.networks.composition import TIME_TERMS
from lib.predict.networks.fitting import WORKLOADS
from lib.predict.networks.resident import PREDICTED
from lib.predict.operators import fitting
from lib.predict.operators.cost_model import CostModel
from lib.predict.scores import score_by
from lib.predict.training import CPU, Target
from lib.predict.trust.errors import ALLOCATORS

OURS = "this model"
_CURVE = (60, 120, 250, 500, 1000, 2000, 4000)
_QUICK_ROWS = 1000
_CASE = ["network", "mode", "batch_size", "memory"]
_EXAMPLES = 4  # quickest networks, of which the shipped model is asked again
_SAME = 1e-3  # relative; the model file holds single precision


@dataclass(frozen=True)
class Evaluation:
    """A machine's models, evaluated in full: scores recomputed from predictions and labels, and both of these.

    ``scores`` is the table of that name, ``operators`` the predicted operators with ``latency_ms`` as measured, ``networks``
    the predicted networks with what was measured of them, ``whole_steps`` the predictions of profiled steps that were left out
    (``profiled_steps``), empty where none were learned from.
    """

    folder: Path
    scores: pd.DataFrame
    operators: pd.DataFrame
    networks: pd.DataFrame
    note: str
    target: Target = CPU
    whole_steps: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def model(self) -> Path:
        """Return the file of the evaluated model."""
        name = store.read_json(self.folder / "scores.meta.json")["model"]
        return registry.trained_folder(self.folder.parent, name) / name

    @property
    def learners(self) -> pd.DataFrame:
        """Return the scores of operators, every learner."""
        return self.scores.query("kind == 'operator'")

    @property
    def unseen(self) -> pd.DataFrame:
        """Return the usable networks that the model never learned from, with either allocator."""
        return pd.concat([self.with_allocator(memory) for memory in ALLOCATORS]).query("not tuning")

    def with_allocator(self, memory: str) -> pd.DataFrame:
        """Return the usable networks of torchvision, tuning ones too, with one allocator (``kept``, ``default``)."""
        rows = self.networks[is_usable(self.networks)].query("memory == @memory")
        return rows[~rows["network"].str.fullmatch(WORKLOADS)]


@dataclass(frozen=True)
class Relearned:
    """Some families learned again: scores, predictions, errors by size, a learning curve and the effect of features."""

    scores: pd.DataFrame
    predictions: pd.DataFrame
    sizes: pd.DataFrame
    curve: pd.DataFrame
    effects: pd.DataFrame
    family: str  # that the curve and the effects are of


def evaluation(reference: str = "") -> Evaluation:
    """Read the evaluation of a reference machine (empty: the first that has one) and score it against the measured tables.

    Raises InputError, which lists the machines, for one that has none.
    """
    _, path = archive.machine_with("predictions/operators.parquet", "an evaluation", reference,
                                   "; run: python -m lib models --train cpu")
    folder = path.parent
    machine, meta = folder.parent, store.read_json(folder / "scores.meta.json")
    target = _target(meta)
    operators = _operators(folder / "operators.parquet", machine, target)
    networks = _networks(csv_files.frame(folder / "networks.csv"), machine, target)
    others = store.read(folder / "scores.parquet", "scores").query("kind == 'operator' and learner != @OURS")
    ours = score_by(operators, ["family"], "latency_ms", "_ms").assign(kind="operator", learner=OURS)
    scores = pd.concat([others, ours, evaluate.network_scores(networks)], ignore_index=True)
    note = (f"REPLAY of the models of {machine.name}, trained {meta['written_utc'][:10]} from "
            f"{', '.join(name.rpartition('/')[2] for name in meta['sweeps'])}; their errors are computed anew from the "
            "published predictions and the measured times.")
    path = steps.path_of(f"cpu-{machine.name}", registry.SHIPPED)
    whole = profiled_steps.published(path, "replay") if path.is_file() else pd.DataFrame()
    return Evaluation(folder, scores, operators, networks, note, target, whole)


def _target(meta: dict[str, Any]) -> Target:
    """Return what the evaluated model answers for; older evaluations are of the CPU."""
    stated = meta.get("target", {})
    return Target(**{**stated, "devices": tuple(stated["devices"])}) if stated else CPU


def _operators(path: Path, machine: Path, target: Target) -> pd.DataFrame:
    """Return the published predictions of operators beside what the machine's sweeps measured of the same configurations."""
    rows = store.read(path, "held_out").query("usable").rename(
        columns={"group": "family", "predicted": "predicted_ms", "low": "low_ms", "high": "high_ms"})
    labels = training.reference_sweeps(machine, target)[0].set_index("config")["latency_ms"]
    rows = rows.assign(latency_ms=labels.reindex(rows["case"]).to_numpy())
    if missing := rows["latency_ms"].isna().sum():
        raise InputError(f"{machine}: {missing} predicted operators were not measured; run: python -m lib models --train cpu")
    return rows.eval("relative_error = predicted_ms / latency_ms - 1")


def _networks(predicted: pd.DataFrame, machine: Path, target: Target) -> pd.DataFrame:
    """Return the published predictions of networks beside what was measured of the same cases."""
    labels = ["latency_ms", "latency_iqr_ms", "verdict", "status", "rss_mb", "tensors_mb"]
    measured = network_training.measured_networks(machine, target)[[*_CASE, "input_shape", *labels]]
    if predicted.empty:
        texts = dict.fromkeys("network family mode memory verdict status input_shape".split(), str)
        return predicted.assign(input_shape="").astype({**dict.fromkeys(predicted, float), **texts, "tuning": bool})
    if absent := sorted({*TIME_TERMS, *PREDICTED} - set(predicted)):
        raise InputError(f"{machine.name}: its predicted networks are of an earlier release, without {choices(absent[:3])}; "
                         f"run: python -m lib models --train {machine.name}")
    return predicted.drop(columns=labels).merge(measured, on=_CASE, how="left", validate="one_to_one")



def retained(networks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of processes that retain their heap; all rows where there is none: on a GPU heaps are no condition."""
    rows = networks.query("memory == 'kept'")
    return rows if len(rows) else networks


def reproduced(study: Evaluation) -> pd.DataFrame:
    """Ask the shipped model again about some unseen networks: their cases, ``published_ms, shipped_ms, same``.

    Only processes that retain their heap: elsewhere a prediction also rests on how this system's allocator behaves.
    """
    rows = retained(study.unseen)
    if rows.empty:
        return rows[_CASE].assign(published_ms=[], shipped_ms=[], same=[])
    rows = rows[rows["network"].isin(rows.nsmallest(_EXAMPLES, "latency_ms")["network"])]
    model = CostModel.load(study.model)
    shipped = []
    for row in network_training.terms(model, rows, network_training.works(rows, study.target)).to_dict("records"):
        shipped.append(model.compositions[f"{row['mode']} {row['memory']}"].predict(row)[0])
    table = rows[_CASE].assign(published_ms=rows["shipped_ms"], shipped_ms=shipped)
    return table.eval("same = abs(shipped_ms / published_ms - 1) < @_SAME")


def devices(reference: str, dtype: str) -> list[str]:
    """Return the devices that advice is asked for: those of a reference machine that is named, beside all others (empty)."""
    if not reference or all(kind != dtype for _, kind in registry.machine_files(archive.machine_folder(reference))):
        return []
    return [*(predictor.device for predictor in registry.for_devices([], dtype)), reference]


def relearned(study: Evaluation, families: list[str], quick: bool) -> Relearned:
    """Learn some families again from the machine's sweeps, those of them that it has; InputError lists the families."""
    for name in families or [""]:
        entry(baselines.FAMILIES, name, "family")
    table, _ = training.reference_sweeps(study.folder.parent, study.target)
    swept = [name for name in study.operators["family"].unique() if name in baselines.FAMILIES]
    wanted = {name: baselines.FAMILIES[name] for name in families if name in swept}
    if not wanted:
        raise InputError(f"{study.folder.parent.name} swept too little of {choices(families)}; it has: {choices(swept)}")
    parts = [_rows_of(table, *family, quick) for family in wanted.values()]
    rows, first = pd.concat(parts), parts[0].reset_index(drop=True)
    chip = CostModel.load(study.model).chip
    model = fitting.fit(rows, chip=chip, quick=quick)
    roof = training.roof_of(study.folder.parent, study.target)
    scores, predictions = baselines.compare(rows, roof, model, wanted, baselines=not quick)
    curve = training_diagnostics.learning_curve(first, _CURVE[1::2] if quick else _CURVE, quick)
    effects = training_diagnostics.effects(model, first.sample(min(len(first), 400), random_state=0))
    return Relearned(scores, predictions, training_diagnostics.by_size(predictions), curve, effects, next(iter(wanted)))


def _rows_of(table: pd.DataFrame, ops: tuple[str, ...], passes: str, quick: bool) -> pd.DataFrame:
    """Return the rows of a family or, where it is to be quick, no more of them than are learned from in a moment."""
    rows = table.query("op in @ops and `pass` == @passes")
    return rows.sample(min(len(rows), _QUICK_ROWS), random_state=0) if quick else rows
