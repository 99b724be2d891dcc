"""How wrong answers are on machines of others: labels that no model was trained on, predicted as a user would be answered."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import boards, held_out, parallel, registry, steps
from lib.predict.advice import advise_operator, questions
from lib.predict.gpu import model as gpu_model
from lib.predict.operators import cost_model, features
from lib.predict.published import labels
from lib.predict.trust.scoreboard import KERNELS, LAUNCHES, NETWORKS, SMALL, SMALL_MS, condition_of
from lib.progress import track
from lib.tables import columns
from lib.work import networks
from lib.work.graph import families
from lib.work.run_config import RunConfig
from lib.work.runtimes import RUNTIMES

_WINOGRAD, _BOOST = 4.0, 1.1  # times the peak rate of counted products: by fewer products, by a clock above the stated one
_ENDS = ("predicted", "low", "high")
_TOO_FAST = "above the peak rate of the device"
_ALL_REDUCE = "all_reduce mb="
_COPIES = 10  # this many equal times make one device a copy of another
_TYPES = ("fp32", "tf32", "bf16", "fp16")
_GRADIENTS = ("input", "weights")
_OF_GRADIENTS, _NOISE = 0.33, 0.1  # spreads of logs: of what gradients take about the usual, and of labels
_PASSES = {"infer": "forward", "train": "backward"}


def read(*folders: Path, with_learned: bool = False) -> pd.DataFrame:
    """Return all labels below folders or in files, with ``source``, ``licence`` and, of those left out, the ``error``.

    ``with_learned``: labels that models learned from have no error. A file that cannot be read is a row
    with its error. Raises InputError where nothing is a label.
    """
    if missing := [str(folder) for folder in folders if not folder.exists()]:
        raise InputError(f"{choices(missing)} is missing")
    parts = []
    for path in dict.fromkeys(path.resolve() for folder in folders
                              for path in ([folder] if folder.is_file() else sorted(folder.rglob("*"))) if path.is_file()):
        if source := labels.source_of(path):
            try:
                part = source.read(path).assign(error="")
            except InputError as error:
                part = pd.DataFrame([{"error": str(error)}])
            parts.append(part.assign(source=source.of(path), licence=source.licence))
    if not parts:
        sources = choices(source.name for source in labels.READERS)
        raise InputError(f"{choices(map(str, folders))} has no labels: no file of {sources}, and no CSV with the columns "
                         f"model, device and measured_ms; its columns may be: {choices(labels.COLUMNS)}")
    table = pd.concat(parts, ignore_index=True).reindex(columns=[*labels.COLUMNS, "source", "licence", "error"])
    ids, unknown = _devices(table["device"].dropna().unique())
    table["device"] = table["device"].replace(ids)
    with_tf32 = table["device"].isin([device for device, vendor in load_devices().items() if "tf32" in vendor.peak_gflops])
    table["dtype"] = table["dtype"].mask(table["dtype"] == labels.DEFAULT, np.where(with_tf32, "tf32", "fp32"))
    for wrong in (table["device"].map(unknown).fillna(""), _errors(table, with_learned), _copies(table)):
        table["error"] = table["error"].where(table["error"] != "", wrong)
    return table


def _devices(names) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ids of devices by their names, and an error for each unknown name."""
    ids, unknown = {}, {}
    for name in names:
        try:
            ids[name] = name if name in load_devices() or name.startswith("cpu") else registry.vendor_of(name)
        except InputError as error:
            unknown[name] = str(error)
    return ids, unknown


def _learned(table: pd.DataFrame) -> pd.Series:
    """Return which rows the models that ship learned from: by source and device for kernels, by source for networks."""
    kernels = {("NeuSight", device) for (device, _), path in registry.model_files(shipped=True).items()
               if registry.load(path).facts.get("source") == "neusight"}
    pairs = pd.Series(list(zip(table["source"], table["device"], strict=True)), table.index)
    is_network = ~table["model"].astype(str).str.split().str[0].isin(families.families())
    return pairs.isin(kernels) | (is_network & table["source"].isin(gpu_sources()))


def gpu_sources() -> set[str]:
    """Return the sources that the model of GPUs which ships learned from; empty without the model."""
    return set(gpu_model.shipped().sources) if gpu_model.PATH.is_file() else set()


def _errors(table: pd.DataFrame, with_learned: bool) -> pd.Series:
    """Return what is wrong with a row by itself, the last reason first."""
    ms = pd.to_numeric(table["measured_ms"], errors="coerce")
    is_single = (pd.to_numeric(table["gpus"], errors="coerce") == 1) | table["model"].astype(str).str.startswith(_ALL_REDUCE)
    wrong = pd.Series("", table.index)
    for holds, reason in (
            (table["dtype"].isin(_TYPES), "no model answers in " + table["dtype"].astype(str)),
            (is_single, "networks on several devices are not scored"),
            (table["runtime"].isin(RUNTIMES), "runtime is none of: " + choices(RUNTIMES)),
            (table["mode"].isin(_PASSES), "mode is none of: " + choices(_PASSES)),
            ((ms > 0) & (ms < np.inf), "no time in ms above 0"),
            (~_learned(table) | with_learned, "models were trained on these rows, see models --errors")):
        wrong = wrong.mask(~holds, reason)
    return wrong


def _copies(table: pd.DataFrame) -> pd.Series:
    """Return an error for the rows of a device most of whose times are an earlier device's, in the same source."""
    wrong, good = pd.Series("", table.index), table[table["error"] == ""].astype(str)
    label = [name for name in (*labels.COLUMNS, "source") if name != "device"]
    first = good.groupby(label, dropna=False, sort=False)["device"].transform("first")
    for (source, device), rows in good.groupby(["source", "device"]):
        originals = first[rows.index][first[rows.index] != device].value_counts()
        if len(originals) and originals.iloc[0] >= max(_COPIES, len(rows) / 2):
            wrong[rows.index] = f"a copy of {originals.index[0]}'s times, which {source} has, too"
    return wrong


def predicted(*folders: Path) -> pd.DataFrame:
    """Return rows ``held_out`` of all labels below folders, with the answers that ``advise`` and ``advise-op`` give.

    ``attrs["left_out"]`` counts the labels without an answer, by reason.
    """
    table = read(*folders)
    good = _good(table)
    is_kernel = good["model"].str.split().str[0].isin(families.families())
    kernels = _widened(_kernels(good[is_kernel]), boards.shipped())
    answered = [part for part in (kernels, _networks(good[~is_kernel & good["mb"].isna()])) if len(part)]
    return _held_out(pd.concat([table[table["error"] != ""], *answered], ignore_index=True))


def _good(table: pd.DataFrame) -> pd.DataFrame:
    """Return the labels without an error, with the ``mb`` of all-reduces and the ``gbps`` of the link between GPUs."""
    good = table[table["error"] == ""].astype({"gpus": float, "measured_ms": float}).astype({"gpus": int, "model": str})
    return good.assign(gbps=good["device"].map({device: vendor.link_gbps for device, vendor in load_devices().items()}),
                       mb=good["model"].str.extract(f"^{_ALL_REDUCE}(.*)")[0].astype(float))


def _held_out(answered: pd.DataFrame) -> pd.DataFrame:
    """Return rows ``held_out`` of the labels that were answered."""
    failed, rows = (answered[(answered["error"] == "") == holds].reset_index(drop=True) for holds in (False, True))
    reasons = Counter(", ".join([row.source, *[row.device] * (isinstance(row.device, str) and row.device != "")])
                      + f": {row.error}" for row in failed.itertuples())
    if len(rows):
        rows = rows.assign(case=rows["model"], measured=rows["measured_ms"].astype(float), left_out="all of " + rows["source"])
        rows = held_out.frame(**{name: rows[name] for name in columns("held_out") if name in rows})
    rows.attrs["left_out"] = dict(reasons.most_common())
    return rows


def _log_errors(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return what ``boards.learn`` takes of predicted kernels."""
    kinds = [boards.kernel_kind(kind.removesuffix(SMALL), mode) for kind, mode in zip(kernels["kind"], kernels["mode"],
                                                                                      strict=True)]
    return pd.DataFrame({"kind": kinds, "board": kernels["source"] + ", " + kernels["device"], "family": kernels["group"],
                         "is_known": kernels["device"].map(cache(registry.is_of_measured_architecture)).astype(bool),
                         "device": kernels["device"], "mostly_launches": kernels["kind"].str.endswith(SMALL),
                         "error": np.log(kernels["measured_ms"].astype(float) / kernels["predicted"])}, index=kernels.index)


def _widened(kernels: pd.DataFrame, learned: boards.Boards) -> pd.DataFrame:
    """Return predicted kernels with the ranges that hold on boards of others."""
    if not len(kernels):
        return kernels
    kernels = kernels.astype(dict.fromkeys(_ENDS, float))
    answered = kernels[kernels["error"] == ""]
    kinds = _log_errors(answered)[["kind", "is_known"]][answered["widened"].astype(bool)]
    for (kind, is_known), same in kinds.groupby(["kind", "is_known"]):
        part = kernels.loc[same.index]
        low, high = learned.widened(part["predicted"], part["low"], part["high"], kind, is_known)
        kernels.loc[same.index, "low"], kernels.loc[same.index, "high"] = low, high
    return kernels


def ship(*folders: Path) -> pd.DataFrame:
    """Learn from kernels and all-reduces of others what gradients, boards and exchanges take; save it beside the models.

    Returns the kernels as rows ``held_out``: gradients and ranges of each are learned from the other devices.
    """
    table = read(*folders)
    good = _good(table)
    kernels = _kernels(good[good["model"].str.split().str[0].isin(families.families())])
    kernels = kernels[kernels["error"] == ""].astype(dict.fromkeys(_ENDS, float))
    apart = [_with_gradients(part, gradient_rates(kernels[kernels["device"] != device]))
             for device, part in kernels.groupby("device")]
    kernels = pd.concat(apart)
    errors = _log_errors(kernels)
    held = _held_out(pd.concat([_widened(part, boards.learn(errors[errors["device"] != device]))
                                for device, part in kernels.groupby("device")]))
    learned = replace(boards.learn(errors), gradients=gradient_rates(kernels))
    held_out.save(held, learned.save(boards.PATH))
    if (exchanges := good[good["mb"].notna()]).size:
        parallel.learn(exchanges).save(parallel.PATH)
    return held


def gradient_rates(kernels: pd.DataFrame) -> dict[str, np.ndarray]:
    """Learn what gradients take from backward passes of convolutions that take longer than launches, see ``boards``."""
    from scipy import optimize  # learning alone waits for it to load

    has_parts = kernels["parts"].map(lambda parts: isinstance(parts, dict) and "weights" in parts)
    table = kernels[has_parts & (np.sqrt(kernels["measured_ms"].astype(float) * kernels["predicted"]) >= SMALL_MS)]
    absent = 0.0, np.zeros_like(next(iter(table["parts"].iloc[0].values()))[1])
    cells = [[parts.get(name, absent) for name in _GRADIENTS] for parts in table["parts"]]
    ms, values = (np.array([[cell[place] for cell in row] for row in cells]) for place in (0, 1))
    shape, measured = values.shape[1:], table["measured_ms"].to_numpy(float)

    def errors(logs):
        predicted = (ms * np.exp((values * logs.reshape(shape)).sum(axis=2))).sum(axis=1)
        return np.append(np.log(predicted / measured) / _NOISE, logs / _OF_GRADIENTS)

    logs = optimize.least_squares(errors, np.zeros(values[0].size), loss="soft_l1").x
    return dict(zip(_GRADIENTS, logs.reshape(shape), strict=True))


def _with_gradients(kernels: pd.DataFrame, rates: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return predicted kernels whose gradients take what ``rates`` say."""
    learned, kernels = boards.Boards(gradients=rates), kernels.copy()
    for row in kernels[kernels["parts"].map(lambda parts: isinstance(parts, dict) and bool(parts))].itertuples():
        ms = sum(learned.gradient_ms(name, *part) for name, part in row.parts.items())
        kernels.loc[row.Index, list(_ENDS)] = np.array([row.predicted, row.low, row.high]) * ms / row.predicted
    return kernels


def _kernels(table: pd.DataFrame) -> pd.DataFrame:
    """Predict operators as ``advise-op`` does."""
    parts, described = [], cache(_described)
    for (device, dtype), of_device in track(table.groupby(["device", "dtype"]), "devices"):
        operators = pd.Series([described(row.model, row.dtype, _PASSES[row.mode], device.partition("@")[0] == "cpu")
                               for row in of_device.itertuples()], of_device.index, dtype=object)
        is_wrong = operators.map(lambda operator: isinstance(operator, str)).astype(bool)
        if is_wrong.any():
            parts.append(of_device[is_wrong].assign(error=operators))
        if is_wrong.all():
            continue
        rows = of_device[~is_wrong]
        shapes = pd.DataFrame(operators[~is_wrong].tolist(), rows.index)
        try:
            predictor = registry.for_devices([device], dtype)[0]
            answer = predictor.model.predict(shapes)
        except InputError as error:
            parts.append(rows.assign(error=str(error)))
            continue
        fastest = np.where(rows["model"].map(_is_winograd), _WINOGRAD, _BOOST)
        too_fast = rows["measured_ms"] < shapes["flops"] / predictor.roof.peak_gflops / 1e6 / fastest
        parts.append(rows.assign(
            **{end: answer[f"{end}_ms"] for end in _ENDS}, error=np.where(too_fast, _TOO_FAST, ""), what=KERNELS,
            kind=_kind(shapes["op"], rows["measured_ms"], answer["predicted_ms"]),
            mode=rows["mode"].map(_PASSES), group=shapes["op"].combine(rows["model"], _shape_group),
            batch_size=None, condition=dtype, out_of_range=answer["out_of_range"] | (answer["origin"] != ""),
            widened=predictor.model.was_measured_elsewhere, parts=_gradients(shapes, predictor.model)))
    return pd.concat(parts) if parts else table


def _kind(ops: pd.Series, measured_ms: pd.Series, predicted_ms: pd.Series) -> pd.Series:
    """Return the kind of each kernel, which says of small ones that they are."""
    return ops.where(np.sqrt(measured_ms * predicted_ms) >= SMALL_MS, ops + SMALL)


def _gradients(shapes: pd.DataFrame, model: cost_model.CostModel) -> pd.Series:
    """Return what each backward pass of a convolution on a GPU consists of: ms and features of kernels, by gradient."""
    backward = shapes[(shapes["pass"] == "backward") & shapes["op"].isin(features.CONVOLUTIONS)]
    parts = [{} for _ in backward.index]
    if model.chip and len(backward):
        for name, places, ms, values, *_ in model.gradients(features.columns(backward)):
            for place, *part in zip(places, ms, values, strict=True):
                parts[place][name] = part
    return pd.Series(parts, backward.index, dtype=object)


def _described(text: str, dtype: str, passes: str, on_cpu: bool) -> dict[str, Any] | str:
    """Return an operator as a row of a ``sweep`` table, or what is wrong with it."""
    try:
        op, *parameters = text.split()
        wanted = advise_operator.config(op, parameters, dtype, passes)
        return advise_operator.described(wanted, "cpu" if on_cpu else "cuda")
    except InputError as error:
        return str(error)


def _is_winograd(text: str) -> bool:
    """Return whether a library may compute a convolution by fewer products than are counted."""
    return text.startswith("conv") and not {"kernel_h=1", "kernel=1"} & {*text.split()}


def _shape_group(op: str, text: str) -> str:
    """Return what kernels of one layer have in common: of a product its weights, of a convolution all but its image."""
    names = {"gemm_k", "gemm_n"} if "gemm" in text else {"in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h"}
    return " ".join([op, *(part for part in text.split() if part.partition("=")[0] in names)])


def _networks(table: pd.DataFrame) -> pd.DataFrame:
    """Predict networks as ``advise --questions`` does: the passes, and the parts of a step that the label includes."""
    if not len(table):
        return table
    answers = questions.answer(questions.from_table(table[list(questions.FIELDS)])).set_axis(table.index)
    included = {name: table["includes"].str.split().map(lambda parts, name=name: name in parts) for name in labels.STEP}
    is_training = table["mode"] == "train"
    answers["h2d_ms"] = answers["h2d_ms"].where(is_training, answers["input_mb"] / steps.LINK_GBPS)
    passes = (answers["forward_ms"] + answers["backward_ms"]).where(is_training, answers["predicted_ms"])
    whole = (passes + sum(answers[f"{name}_ms"].where(included[name], 0.0) for name in labels.STEP)) / answers["predicted_ms"]
    return table.assign(
        **{end: answers[f"{end}_ms"] * whole for end in _ENDS}, error=answers["error"], what=NETWORKS,
        batch_size=pd.to_numeric(table["batch_size"], errors="coerce"),
        out_of_range=answers["out_of_range"].fillna(False).astype(bool), group=table["model"].map(networks.family),
        kind=np.where(answers["bound"] == "launch", LAUNCHES, held_out.ALL),
        condition=[condition_of(RunConfig(dtype=row.dtype, layout=row.layout, compiled=bool(row.compile)))
                   for row in answers.itertuples()])
