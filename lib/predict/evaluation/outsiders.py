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
from lib.predict.cards import card_model, whole_networks
from lib.predict.evaluation import labelled_rates
from lib.predict.networks.composition import ZEROING
from lib.predict.networks.sums import Parts
from lib.predict.operators import cost_model, features
from lib.predict.published import labels
from lib.predict.trust import scoreboard
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
_TYPES = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of an element of the input
_PASSES = {"infer": "forward", "train": "backward"}


def read(*folders: Path) -> pd.DataFrame:
    """Return all labels below folders or in files, with ``source``, ``licence`` and, of those left out, the ``error``.

    A file that cannot be read is a row with its error. Raises InputError where nothing is a label.
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
    for wrong in (table["device"].map(unknown).fillna(""), _errors(table), _copies(table)):
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


def _learned() -> set[tuple[str, str]]:
    """Return the sources and devices that models which ship learned from."""
    return {("timm", device) for device in card_model.files_of_cards()} | {
        ("NeuSight", device) for (device, _), path in registry.model_files(shipped=True).items()
        if registry.load(path).facts.get("source") == "neusight"}


def _errors(table: pd.DataFrame) -> pd.Series:
    """Return what is wrong with a row by itself, the last reason first."""
    ms = pd.to_numeric(table["measured_ms"], errors="coerce")
    learned = pd.Series(list(zip(table["source"], table["device"], strict=True)), table.index).isin(_learned())
    is_single = (pd.to_numeric(table["gpus"], errors="coerce") == 1) | table["model"].astype(str).str.startswith(_ALL_REDUCE)
    wrong = pd.Series("", table.index)
    for holds, reason in (
            (table["dtype"].isin(_TYPES), "no model answers in " + table["dtype"].astype(str)),
            (is_single, "networks on several devices are not scored"),
            (table["runtime"].isin(RUNTIMES), "runtime is none of: " + choices(RUNTIMES)),
            (table["mode"].isin(_PASSES), "mode is none of: " + choices(_PASSES)),
            ((ms > 0) & (ms < np.inf), "no time in ms above 0"),
            (~learned, "models were trained on these rows, see models --errors")):
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


def predicted(*folders: Path, alone: bool = False) -> pd.DataFrame:
    """Return rows ``held_out`` of all labels below folders that can be predicted; ``attrs["left_out"]`` counts the others.

    Each label has two rows: with a range learned from other devices, and the answer that ``advise`` gives (``left_out`` is
    ``nothing``: rates and ranges learned from all labels). The labels are those of the folders and, unless ``alone``, of the
    scoreboard that ships. In the first row, labelled rates were learned without the label's device and family. They are the
    rates that ship or, with ``alone``, those learned from the folders (``attrs["boards"]``).
    """
    table = read(*folders)
    good = table[table["error"] == ""].astype({"gpus": float, "measured_ms": float}).astype({"gpus": int, "model": str})
    good = good.assign(gbps=good["device"].map({device: vendor.link_gbps for device, vendor in load_devices().items()}),
                       mb=good["model"].str.extract(f"^{_ALL_REDUCE}(.*)")[0].astype(float))
    is_kernel = good["model"].str.split().str[0].isin(families.families())
    is_exchange = good["mb"].notna()
    learned = boards.Boards() if alone else boards.shipped()
    with boards.scoring(learned):
        kernels = _kernels(good[is_kernel])
    learned = labelled_rates.with_gradients(learned, kernels) if alone else learned
    with boards.scoring(learned):
        answers = _networks(good[~is_kernel & ~is_exchange])
    learned = labelled_rates.with_networks(learned, answers) if alone else learned
    held, is_wide, failed = _answered(table, kernels, answers, learned)
    result = pd.DataFrame()
    if len(held):
        more = pd.DataFrame() if alone else scoreboard.without(scoreboard.shipped())
        shipping = replace(learned, spreads=boards.learn(log_errors(held)).spreads) if alone else learned
        answers, *_ = _answered(table, kernels, answers, replace(learned, left_out={}))
        result = pd.concat([_conformed(held, more, is_wide), _as_shipped(answers, is_wide, shipping)], ignore_index=True)
    left_out = Counter(", ".join([row.source, *[row.device] * (isinstance(row.device, str) and row.device != "")])
                       + f": {row.error}" for row in failed.itertuples())
    result.attrs |= {"left_out": dict(left_out.most_common()), "boards": learned,
                     "costs": parallel.learn(good[is_exchange]) if alone and is_exchange.any() else None}
    return result


def _answered(table: pd.DataFrame, kernels: pd.DataFrame, answers: pd.DataFrame,
              learned: boards.Boards) -> tuple[pd.DataFrame, pd.Series, pd.DataFrame]:
    """Return rows ``held_out`` of labels, which of them are widened, and the labels without an answer."""
    parts = [part for part in (_by_labels(kernels, learned), _with_all_parts(_by_labels(answers, learned))) if len(part)]
    answered = pd.concat([table[table["error"] != ""], *parts], ignore_index=True)
    failed, rows = (answered[(answered["error"] == "") == holds].reset_index(drop=True) for holds in (False, True))
    if rows.empty:
        return rows, rows.get("widened"), failed
    rows = rows.assign(case=rows["model"], measured=rows["measured_ms"].astype(float), left_out="")
    held = held_out.frame(**{name: rows[name] for name in columns("held_out") if name in rows})
    return held, rows["widened"].astype(bool), failed


def log_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what ``boards.learn`` takes of rows."""
    kinds = [boards.kernel_kind(kind.removesuffix(SMALL), mode) if what == KERNELS else boards.network_kind(mode, condition)
             for what, kind, mode, condition in rows[["what", "kind", "mode", "condition"]].itertuples(index=False)]
    return pd.DataFrame({"kind": kinds, "board": rows["source"] + ", " + rows["device"], "family": rows["group"],
                         "is_known": rows["device"].map(cache(registry.is_of_measured_architecture)).astype(bool),
                         "device": rows["device"],
                         "mostly_launches": rows["kind"].str.endswith((SMALL, LAUNCHES)),
                         "error": np.log(rows["measured"] / rows["predicted"])}, index=rows.index)


def _conformed(rows: pd.DataFrame, more: pd.DataFrame, widened: pd.Series) -> pd.DataFrame:
    """Return rows whose ranges, where ``widened``, are learned from other devices."""
    errors, conformed = log_errors(rows), rows.assign(left_out="all of " + rows["source"] + "; of the range, the device")
    every = pd.concat([errors, log_errors(more)] if len(more) else [errors])
    for (device, kind, is_known), same in errors[widened].groupby(["device", "kind", "is_known"]):
        part, spreads = rows.loc[same.index], boards.learn(every[every["device"] != device])
        low, high = spreads.widened(part["predicted"], part["low"], part["high"], kind, is_known)
        conformed.loc[same.index, "low"], conformed.loc[same.index, "high"] = low, high
    return conformed


def _as_shipped(rows: pd.DataFrame, widened: pd.Series, shipping: boards.Boards) -> pd.DataFrame:
    """Return rows with the ranges that ``advise`` gives."""
    kinds, answers = log_errors(rows)[["kind", "is_known"]], rows.assign(left_out=scoreboard.NOTHING)
    for (kind, is_known), same in kinds[widened].groupby(["kind", "is_known"]):
        part = rows.loc[same.index]
        low, high = shipping.widened(part["predicted"], part["low"], part["high"], kind, is_known)
        answers.loc[same.index, "low"], answers.loc[same.index, "high"] = low, high
    return answers


def ship(rows: pd.DataFrame) -> None:
    """Save predictions, what labels taught (rates, spread of boards, cost of all-reduces), beside the models that ship."""
    if costs := rows.attrs.pop("costs"):
        costs.save(parallel.PATH)
    learned = replace(rows.attrs.pop("boards"), spreads=boards.learn(log_errors(scoreboard.without(rows))).spreads)
    held_out.save(rows, learned.save(boards.PATH))


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
            kind=shapes["op"], mode=rows["mode"].map(_PASSES), group=shapes["op"].combine(rows["model"], _shape_group),
            batch_size=None, condition=dtype, out_of_range=answer["out_of_range"] | (answer["origin"] != ""),
            widened=predictor.model.was_measured_elsewhere, parts=_gradients(shapes, predictor.model)))
    return pd.concat(parts) if parts else table


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
    """Predict the passes of networks as ``advise --questions`` does, and what the label includes ``beside``.

    Inputs and weights of networks without autocast are of their element type.
    """
    if not len(table):
        return table
    answers = questions.answer(questions.from_table(table[list(questions.FIELDS)]), more=("parts",)).set_axis(table.index)
    included = {name: table["includes"].str.split().map(lambda parts, name=name: name in parts) for name in labels.INCLUDED}
    is_training, is_pure = table["mode"] == "train", table["autocast"] == "false"
    share = (table["dtype"].map(_TYPES) / _TYPES["fp32"]).where(is_pure, 1.0)
    answers[["input_mb", "h2d_ms"]] *= share.to_numpy()[:, None]
    answers["h2d_ms"] = answers["h2d_ms"].where(is_training, answers["input_mb"] / steps.LINK_GBPS)
    out = {whole_networks.CASTS: is_pure, ZEROING: ~included[ZEROING]}
    parts = [part.without(*(name for name in out if out[name][index])) if isinstance(part, Parts) else None
             for index, part in answers["parts"].items()]
    passes = (answers["forward_ms"] + answers["backward_ms"]).where(is_training, answers["predicted_ms"])
    too_fast = table["measured_ms"] * _WINOGRAD < answers["predicted_ms"] / answers["below_roof"]
    return table.assign(
        **{end: passes * answers[f"{end}_ms"] / answers["predicted_ms"] for end in _ENDS},
        error=answers["error"].mask(too_fast, _TOO_FAST), what=NETWORKS, parts=parts,
        beside=sum(answers[f"{name}_ms"].where(included[name], 0.0) for name in labels.STEP),
        batch_size=pd.to_numeric(table["batch_size"], errors="coerce"),
        **answers[["out_of_range", "widened"]].fillna(False).astype(bool), group=table["model"].map(networks.family),
        kind=np.where(answers["bound"] == "launch", LAUNCHES, held_out.ALL),
        condition=[condition_of(RunConfig(dtype=row.dtype, layout=row.layout, compiled=bool(row.compile)))
                   for row in answers.itertuples()])


def _by_labels(table: pd.DataFrame, learned: boards.Boards) -> pd.DataFrame:
    """Return predictions by the rates that were learned without the device and the family."""
    if not len(table):
        return table
    table, ends = table.astype(dict.fromkeys(_ENDS, float)), list(_ENDS)
    for row in table[(table["error"] == "") & table["parts"].notna()].itertuples():
        if isinstance(row.parts, Parts):
            rates = learned.without(row.device, row.group, row.source)
            table.loc[row.Index, ends] = row.parts.predict(*rates.of_passes)
        elif row.parts:
            rates = learned.without(row.device, source=row.source)
            ms = sum(rates.gradient_ms(name, *part) for name, part in row.parts.items())
            table.loc[row.Index, ends] = np.array([row.predicted, row.low, row.high]) * ms / row.predicted
    is_small = (table["what"] == KERNELS) & (np.sqrt(table["measured_ms"] * table["predicted"]) < SMALL_MS)
    return table.assign(kind=table["kind"].where(~is_small, table["kind"] + SMALL))


def _with_all_parts(answers: pd.DataFrame) -> pd.DataFrame:
    """Return predictions of networks with the parts of a training step that their labels include."""
    if not len(answers):
        return answers
    whole = 1 + answers["beside"] / answers["predicted"]
    return answers.assign(**{end: answers[end] * whole for end in _ENDS})
