"""Steps learned from collected profiles: what loader, copy and optimizer cost on a device, and learners of whole steps.

Every score is of a workload, or of an architecture, that was left out; forward and backward are the device's own model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.measure.training.summary import steady
from lib.predict import registry, steps
from lib.predict.networks import step, step_learners, work
from lib.predict.networks.step_file import StepModel
from lib.predict.networks.work import Work
from lib.predict.operators.regressors import nonnegative_rates
from lib.predict.registry import Predictor
from lib.predict.scores import score_by
from lib.progress import track
from lib.tables import columns
from lib.work import networks

MEDIANS = {"loader_wait": "loader_wait_ms", "h2d": "h2d_ms", "forward": "forward_time_ms", "backward": "backward_time_ms",
           "optimizer": "optimizer_ms", "step": "step_time_ms"}
SPLITS = {"workload": "a workload left out", "arch": "an architecture left out"}
OURS = step.SUM_OF_PARTS
_RUN = ["hardware_id", "run_id"]
_LEAST = 3  # architectures: where one is left out, an interval takes two


@dataclass(frozen=True)
class Profiles:
    """Profiled steps of one device: ``table`` has a row a run and pass (train, eval), ``works`` what each of them runs.

    Columns: ``run_id, workload, arch, mode, batch_size``, the median of each part (MEDIANS), and the terms of the parts.
    """

    predictor: Predictor
    table: pd.DataFrame
    works: list[Work]

    def rows(self, mode: str) -> tuple[pd.DataFrame, list[Work]]:
        """Return the rows of training steps or of evaluated batches, with their work."""
        chosen = np.flatnonzero(self.table["mode"] == mode)
        return self.table.iloc[chosen].reset_index(drop=True), [self.works[row] for row in chosen]


def collected(source: str) -> dict[tuple[str, str, str], tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the plain runs (``steps.plain``) and the rows of their steady part, by hardware id, backend and device.

    ``source``: measure (this machine's and imported ones) or replay (the reference's).
    """
    return {key: (part, steady(archive.rows(part, source)))
            for key, part in steps.plain(archive.runs(source)).groupby(["hardware_id", "backend", "device_name"])}


def device_of(runs: pd.DataFrame, source: str) -> str:
    """Return the device of ``runs`` as ``registry.for_devices`` takes it: a GPU's id, cpu (this machine's), or cpu@NAME."""
    first = runs.iloc[0]
    if first["backend"] != "cpu":
        return registry.vendor_of(first["device_name"])
    if source == "measure" and first["hardware_id"] == machine.ids()["hardware_id"]:
        return "cpu"
    return f"cpu@{archive.folder_of(first, source).name}"


def gather(runs: pd.DataFrame, rows: pd.DataFrame, predictor: Predictor) -> Profiles:
    """Return the profiled steps of one device with what they run; InputError for fewer than three architectures."""
    if runs["arch"].nunique() < _LEAST:
        there = choices(sorted(set(runs["arch"])))
        raise InputError(f"steps are learned from profiles of three architectures or more, there are: {there}; profile others: "
                         "papermill notebooks/02_profile.ipynb out.ipynb -p workload W1 (and W3, W6)")
    medians = rows.replace({"task_type": {"eval": "infer", "test": "infer"}})
    medians = medians.groupby([*_RUN, "task_type"])[list(MEDIANS.values())].median()
    table = runs[[*_RUN, "workload_id", "arch", "batch_size"]].merge(medians.reset_index(), on=_RUN)
    table = table.rename(columns={"workload_id": "workload", "task_type": "mode"} | {old: new for new, old in MEDIANS.items()})
    keys = list(zip(table["workload"], table["mode"], table["batch_size"].astype(int), strict=True))
    captured = {(name, mode, batch): work.captured(networks.network(name, batch), mode, device=predictor.device_type)
                for name, mode, batch in track(list(dict.fromkeys(keys)), "steps")}
    terms = pd.DataFrame([_terms(captured[key], key[0], predictor) for key in keys])
    return Profiles(predictor, pd.concat([table, terms], axis=1), [captured[key] for key in keys])


def _terms(item: Work, workload: str, predictor: Predictor) -> dict[str, float]:
    optimizer = steps.optimizer_terms(predictor, item)[0] if item.mode == "train" else {"operators_ms": 0.0, "calls": 0.0}
    return steps.loading(workload, item) | optimizer


def learn(profiles: Profiles, device: str, hardware_id: str) -> StepModel:
    """Learn costs of the parts and whole steps of one device; a loader is left out by workload, all else by architecture."""
    table, _ = profiles.rows("train")
    costs = {name: step.fit(name, table, table[name].to_numpy(), table[_group(name)], f"profiles of {device}")
             for name in step.TERMS}
    measured = profiles.table["step"].to_numpy()
    learners = step_learners.fit(profiles.works, measured, profiles.table["arch"])
    runs = tuple(sorted(set(table["hardware_id"] + " " + table["run_id"])))
    return StepModel(device, hardware_id, runs, costs, learners)


def _group(name: str) -> str:
    return "arch" if name == "optimizer" else "workload"


def left_out(profiles: Profiles) -> pd.DataFrame:
    """Return measured and predicted training steps by learner and SPLITS.

    A table ``steps``; intervals and parts are those of OURS. No learner, and no cost of a part, has seen the group; the
    composition of forward and backward has seen no workload at all.
    """
    table, items = profiles.rows("train")
    cases, parts = table.assign(measured_ms=table["step"]), []
    for column in SPLITS:
        sums = [{"predicted_ms": total.predicted_ms, "low_ms": total.low_ms, "high_ms": total.high_ms, **total.columns}
                for total in _sums_of_parts(profiles, table, items, column)]
        parts.append(cases.assign(split=column, learner=OURS, **pd.DataFrame(sums)))
        parts += [cases.assign(split=column, learner=name, predicted_ms=values)
                  for name, values in _from_descriptions(profiles, column).items()]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns("steps"))


def _sums_of_parts(profiles: Profiles, table: pd.DataFrame, items: list[Work], column: str) -> list[step.Step]:
    """Return the sum of parts of each training step, its costs fitted without the step's group."""
    predicted: dict[int, step.Step] = {}
    for group in sorted(set(table[column])):
        test = table[column] == group
        rest = table[~test]
        costs = {name: step.fit(name, rest, rest[name].to_numpy(), rest[_group(name)], "") for name in step.TERMS}
        for number in np.flatnonzero(test):
            item = items[number]
            predicted[number] = steps.predict(profiles.predictor, item, steps.loading(table["workload"][number], item),
                                              costs=costs)
    return [predicted[number] for number in range(len(table))]


def _from_descriptions(profiles: Profiles, column: str) -> Mapping[str, np.ndarray]:
    """Return the training steps as those predict them that know a step's description alone."""
    table, groups = profiles.table, profiles.table[column].to_numpy()
    measured, train = table["step"].to_numpy(), (table["mode"] == "train").to_numpy()
    described = step_learners.frames(profiles.works)[0]
    mean, line = np.full(len(table), np.nan), np.full(len(table), np.nan)
    plain = described[["flops", "bytes", "step"]]
    for group in sorted(set(groups)):
        test = groups == group
        mean[test] = np.exp(np.log(measured[~test & train]).mean())
        line[test] = plain[test].to_numpy() @ nonnegative_rates(plain[~test], measured[~test])
    answers = {"mean": mean, "linear in FLOPs and bytes": line} | {
        name: step_learners.left_out(name, profiles.works, measured, groups) for name in step_learners.NAMES}
    return {name: values[train] for name, values in answers.items()}


def scores(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a row a split and learner: MAPE with its interval, median, p90, within 10 %, n, and the intervals' cover."""
    family = "whole step, " + predictions["split"].map(SPLITS)
    return score_by(predictions.assign(family=family), ["family", "learner"], "measured_ms", "_ms")


def learn_all(source: str) -> list[Path]:
    """Learn from every device's profiles, and save: of another machine's CPU beside its models, else with this machine's.

    Those of the reference ship. Returns the files; beside each lies what was predicted of left-out steps (``published``). Equal
    GPUs of several machines are one device. One without a model, or with too few profiles, is left out; InputError where none
    is left.
    """
    devices: dict[str, list[tuple[pd.DataFrame, pd.DataFrame]]] = {}
    saved, reasons, shipped = [], [], source == "replay"
    for (hardware_id, backend, _), tables in collected(source).items():
        try:
            devices.setdefault(device_of(tables[0], source), []).append(tables)
        except InputError as error:
            reasons.append(f"{backend} of {hardware_id}: {error}")
    for device, of_machines in devices.items():
        runs, rows = (pd.concat(tables, ignore_index=True) for tables in zip(*of_machines, strict=True))
        try:
            predictor = registry.for_devices([device], "fp32", shipped)[0]
            path = steps.own_files(predictor, shipped)[0]
            profiles = gather(runs, rows, predictor)
            model = learn(profiles, path.stem, " ".join(sorted(set(runs["hardware_id"]))))
        except InputError as error:
            reasons.append(f"{device}: {error}")
            continue
        store.write(left_out(profiles), model.save(path).with_suffix(".csv"), "steps", derived=True)
        saved.append(path)
    if not saved:
        raise InputError(f"no profiles to learn steps from: {'; '.join(reasons) or 'none was collected'}")
    return saved


def published(path: Path, source: str) -> pd.DataFrame:
    """Return the predictions of left-out steps beside a file of ``learn_all``, measured times anew from the profiles.

    Raises InputError for a missing table, and for runs that are no longer there.
    """
    table, runs = store.read(path.with_suffix(".csv"), "steps"), archive.runs(source)
    wanted = runs[runs["hardware_id"].isin(table["hardware_id"]) & runs["run_id"].isin(table["run_id"])]
    steady_rows = [steady(archive.rows(part, source)) for _, part in wanted.groupby("hardware_id")]
    rows = pd.concat(steady_rows or [archive.rows(wanted, source)])
    medians = rows[rows["task_type"] == "train"].groupby(_RUN)["step_time_ms"].median()
    measured = medians.reindex(pd.MultiIndex.from_frame(table[_RUN]))
    if lacking := sorted({run_id for _, run_id in measured.index[measured.isna()]}):
        raise InputError(f"{path.with_suffix('.csv')} predicts steps of {choices(lacking)}, of which there are no profiles; "
                         "run: python -m lib models --train profiles")
    return table.assign(measured_ms=measured.to_numpy())
