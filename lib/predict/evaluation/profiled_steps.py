"""Steps learned from collected profiles: what loader, copy and optimizer cost on a device.

Every score is of a workload, or of an architecture, that was left out; forward and backward are the device's own model's.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.measure.training.summary import steady
from lib.predict import registry, steps
from lib.predict.networks import step, sums, work
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


def device_of(runs: pd.DataFrame, source: str) -> str:
    """Return the device of ``runs`` as ``registry.for_devices`` takes it: a GPU's id, cpu (this machine's), or cpu@NAME."""
    first = runs.iloc[0]
    if first["backend"] != "cpu":
        return registry.vendor_of(first["device_name"])
    if source == "measure" and first["hardware_id"] == machine.ids()["hardware_id"]:
        return "cpu"
    return f"cpu@{archive.folder_of(first, source).name}"


def _medians(runs: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return the medians (MEDIANS) of the steady part of runs, by run and mode (train, infer)."""
    steady_rows = [steady(archive.rows(part, source)) for _, part in runs.groupby("hardware_id")]
    rows = pd.concat(steady_rows or [archive.rows(runs, source)]).replace({"task_type": {"eval": "infer", "test": "infer"}})
    return rows.groupby([*_RUN, "task_type"])[list(MEDIANS.values())].median()


def gather(runs: pd.DataFrame, source: str, predictor: Predictor) -> pd.DataFrame:
    """Return the profiled steps of one device, a row a run and ``mode`` (train, infer), with the ``work`` that each runs.

    Columns: ``run_id, workload, arch, mode, batch_size``, the median of each part (MEDIANS), and the terms of the parts.
    ``source``: measure (this machine's and imported ones) or replay (the reference's). InputError for fewer than three
    architectures.
    """
    if runs["arch"].nunique() < _LEAST:
        there = choices(sorted(set(runs["arch"])))
        raise InputError(f"steps are learned from profiles of three architectures or more, there are: {there}; profile others: "
                         "papermill notebooks/02_profile.ipynb out.ipynb -p workload W1 (and W3, W6)")
    table = runs[[*_RUN, "workload_id", "arch", "batch_size"]].merge(_medians(runs, source).reset_index(), on=_RUN)
    table = table.rename(columns={"workload_id": "workload", "task_type": "mode"} | {old: new for new, old in MEDIANS.items()})
    capture = cache(lambda name, mode, batch: work.captured(networks.network(name, batch), mode, device=predictor.device_type))
    cases = track(list(table.itertuples()), "steps")
    table["work"] = [capture(case.workload, case.mode, int(case.batch_size)) for case in cases]
    terms = [{"operators_ms": 0.0, "calls": 0.0} | steps.loading(case.workload, case.work)
             | (steps.optimizer_terms(predictor, case.work)[0] if case.mode == "train" else {}) for case in table.itertuples()]
    return table.join(pd.DataFrame(terms))


def _costs(table: pd.DataFrame, source: str) -> dict[str, step.Costs]:
    """Return costs of the parts of training steps; a loader is left out by workload, all else by architecture."""
    return {name: step.fit(name, table, table[name].to_numpy(), table["arch" if name == "optimizer" else "workload"], source)
            for name in step.TERMS}


def learn(table: pd.DataFrame, device: str) -> step.StepModel:
    """Learn costs of the parts of steps on one device from its profiles (``gather``)."""
    train = table[table["mode"] == "train"]
    return step.StepModel(device, " ".join(sorted(set(train["hardware_id"]))),
                          tuple(sorted(set(train["hardware_id"] + " " + train["run_id"]))),
                          _costs(train, f"profiles of {device}"))


def left_out(table: pd.DataFrame, predictor: Predictor) -> pd.DataFrame:
    """Return measured and predicted training steps by SPLITS, by the sum of parts (OURS) and by a line (``step.LINE``).

    A table ``steps``; intervals and parts are those of OURS. Neither has seen the group; the composition of forward and
    backward has seen no workload at all.
    """
    train, parts = table["mode"] == "train", []
    cases = table[train].assign(measured_ms=table["step"])
    for column in SPLITS:
        parts.append(cases.assign(split=column, learner=OURS).join(_sums_of_parts(table[train], column, predictor)))
        parts.append(cases.assign(split=column, learner=step.LINE, predicted_ms=_line(table, column)[train]))
    return pd.concat(parts, ignore_index=True).reindex(columns=columns("steps"))


def _sums_of_parts(train: pd.DataFrame, column: str, predictor: Predictor) -> pd.DataFrame:
    """Return the sum of parts of each training step, its costs fitted without the step's group."""
    rows = {}
    for _, test in train.groupby(column):
        costs = _costs(train.drop(test.index), "")
        for case in test.itertuples():
            total = steps.predict(predictor, case.work, steps.loading(case.workload, case.work), costs=costs)
            rows[case.Index] = total.times | total.columns
    return pd.DataFrame.from_dict(rows, orient="index")


def _line(table: pd.DataFrame, column: str) -> np.ndarray:
    """Return each step by its FLOPs, bytes and a constant, at non-negative rates fitted to the other groups."""
    sizes = np.array([(item.flops, item.bytes, 1.0) for item in table["work"]])
    measured = table["step"].to_numpy()
    return sums.cross_predicted(sums.each(table[column]), lambda test: sizes[test] @ nonnegative_rates(
        pd.DataFrame(sizes[~test]), measured[~test]))


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
    saved, reasons, shipped, devices = [], [], source == "replay", {}
    for (hardware_id, backend, _), runs in steps.plain(archive.runs(source)).groupby(["hardware_id", "backend", "device_name"]):
        try:
            devices.setdefault(device_of(runs, source), []).append(runs)
        except InputError as error:
            reasons.append(f"{backend} of {hardware_id}: {error}")
    for device, of_machines in devices.items():
        try:
            predictor = registry.for_devices([device], "fp32", shipped)[0]
            path = steps.own_files(predictor)[0]
            table = gather(pd.concat(of_machines, ignore_index=True), source, predictor)
            model = learn(table, path.stem)
        except InputError as error:
            reasons.append(f"{device}: {error}")
            continue
        store.write(left_out(table, predictor), model.save(path).with_suffix(".csv"), "steps", derived=True)
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
    medians = _medians(wanted, source).query("task_type == 'train'").droplevel("task_type")["step_time_ms"]
    measured = medians.reindex(pd.MultiIndex.from_frame(table[_RUN]))
    if lacking := sorted({run_id for _, run_id in measured.index[measured.isna()]}):
        raise InputError(f"{path.with_suffix('.csv')} predicts steps of {choices(lacking)}, of which there are no profiles; "
                         "run: python -m lib models --train profiles")
    return table.assign(measured_ms=measured.to_numpy())
