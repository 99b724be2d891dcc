"""How wrong answers are on machines of others: labels that no model was trained on, predicted as a user would be answered."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure.published import labels
from lib.measure.published.labels import DEFAULT, READERS
from lib.predict import boards, held_out, registry, steps
from lib.predict.advice import advise_operator, questions
from lib.predict.boards import Boards
from lib.predict.cards import card_model
from lib.predict.cards.whole_networks import CASTS
from lib.predict.evaluation import labelled_rates
from lib.predict.networks.composition import ZEROING
from lib.predict.networks.sums import Parts
from lib.predict.operators import features
from lib.predict.operators.cost_model import CostModel
from lib.predict.trust import scoreboard
from lib.predict.trust.scoreboard import KERNELS, LAUNCHES, NETWORKS, SMALL, SMALL_MS, condition_of
from lib.progress import track
from lib.work import networks
from lib.work.graph import families

_WINOGRAD, _BOOST = 4.0, 1.1  # times the peak rate of counted products: by fewer products, by a clock above the stated one
_COPIES = 10  # this many equal times make one device a copy of another
_TYPES = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of an element of the input
_PASSES = {"infer": "forward", "train": "backward"}
_ANSWERED = ("device", "what", "kind", "mode", "condition", "group", "case", "batch_size", "left_out", "measured", "predicted",
             "low", "high", "out_of_range", "source", "licence")


def read(folder: Path) -> pd.DataFrame:
    """Return all labels below a folder or in a file, with ``source``, ``licence`` and, of those left out, the ``error``.

    A file that cannot be read is a row with its error. Raises InputError where nothing is a label.
    """
    if not folder.exists():
        raise InputError(f"{folder} is missing")
    parts = []
    for path in [folder] if folder.is_file() else sorted(filter(Path.is_file, folder.rglob("*"))):
        if source := labels.source_of(path):
            try:
                part = source.read(path).assign(error="")
            except InputError as error:
                part = pd.DataFrame([{"error": str(error)}])
            parts.append(part.assign(source=source.of(path), licence=source.licence))
    if not parts:
        raise InputError(f"{folder} has no labels: no file of {choices(source.name for source in READERS)}, and no CSV with "
                         f"the columns model, device and measured_ms; its columns may be: {choices(labels.COLUMNS)}")
    table = pd.concat(parts, ignore_index=True).reindex(columns=[*labels.COLUMNS, "source", "licence", "error"])
    ids, unknown = _devices(table["device"].dropna().unique())
    table["device"] = table["device"].map(ids).fillna(table["device"])
    in_default = table["dtype"] == DEFAULT
    table.loc[in_default, "dtype"] = table.loc[in_default, "device"].map(_default_type)
    for wrong in (table["device"].map(unknown).fillna(""), _errors(table), _copies(table)):
        table["error"] = table["error"].where(table["error"] != "", wrong)
    return table


def _devices(names) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ids of devices by their names, and what is wrong with those that nobody knows."""
    ids, unknown = {}, {}
    for name in names:
        try:
            ids[name] = name if name in load_devices() or name.startswith("cpu") else registry.vendor_of(name)
        except InputError as error:
            unknown[name] = str(error)
    return ids, unknown


def _default_type(device: str) -> str:
    vendor = load_devices().get(device)
    return "tf32" if vendor and "tf32" in vendor.peak_gflops else "fp32"


def _learned() -> set[tuple[str, str]]:
    """Return the sources and devices that models which ship learned from."""
    of_kernels = {path: device for (device, _), path in registry.model_files(shipped=True).items()}
    return {("timm", device) for device in card_model.files_of_cards()} | {
        ("NeuSight", device) for path, device in of_kernels.items() if registry.load(path).facts.get("source") == "neusight"}


def _errors(table: pd.DataFrame) -> pd.Series:
    """Return what is wrong with a row by itself, the last reason first."""
    ms = pd.to_numeric(table["measured_ms"], errors="coerce")
    learned = pd.Series(list(zip(table["source"], table["device"], strict=True)), table.index).isin(_learned())
    gpus = pd.to_numeric(table["gpus"], errors="coerce")
    wrong = pd.Series("", table.index)
    for holds, reason in (
            (table["dtype"].isin(_TYPES), "no model answers in " + table["dtype"].astype(str)),
            (gpus == 1, "gpus is not 1: several at once are not predicted"),
            (table["runtime"] == "pytorch", "only PyTorch is predicted"),
            (table["mode"].isin(_PASSES), "mode is none of: " + choices(_PASSES)),
            ((ms > 0) & (ms < np.inf), "no time in ms above 0"),
            (~learned, "models were trained on these rows, see models --errors")):
        wrong = wrong.mask(~holds, reason)
    return wrong


def _copies(table: pd.DataFrame) -> pd.Series:
    """Return what is wrong with a device most of whose times are those of one before it, of the same source."""
    wrong, case = pd.Series("", table.index), [name for name in labels.COLUMNS if name not in ("device", "measured_ms")]
    good = table[table["error"] == ""]
    texts = pd.Series(list(good[[*case, "source", "measured_ms"]].astype(str).itertuples(index=False)), good.index, dtype=str)
    first = good["device"].groupby(texts).transform("first")
    for (source, device), rows in good.groupby(["source", "device"]):
        others = first[rows.index][first[rows.index] != device].value_counts()
        if len(others) and others.iloc[0] >= max(_COPIES, len(rows) / 2):
            wrong[rows.index] = f"a copy of {others.index[0]}'s times, which {source} has, too"
    return wrong


def predicted(folder: Path, alone: bool = False) -> pd.DataFrame:
    """Return rows ``held_out`` of all labels below a folder that can be predicted; ``attrs["left_out"]`` counts the others.

    Ranges are those of a card that was left out: they rest on labels of other cards, of the folder and (but ``alone``) of the
    scoreboard that ships. Rates that labels teach saw neither the device nor the family; they are what ships or, ``alone``,
    learned from the folder (``attrs["boards"]``).
    """
    table = read(folder)
    good = table[table["error"] == ""]
    is_kernel = good["model"].map(lambda model: str(model).partition(" ")[0] in families.families()).astype(bool)
    learned = Boards() if alone else boards.shipped()
    with boards.scoring(learned):
        kernels = _kernels(good[is_kernel])
    learned = labelled_rates.with_gradients(learned, kernels) if alone else learned
    with boards.scoring(learned):
        answers = _networks(good[~is_kernel])
    learned = labelled_rates.with_networks(learned, answers) if alone else learned
    parts = [_by_labels(part, learned) for part in (kernels, answers) if len(part)]
    answered = pd.concat([table[table["error"] != ""], *parts], ignore_index=True)
    failed, rows = (answered[(answered["error"] == "") == holds].reset_index(drop=True) for holds in (False, True))
    result = pd.DataFrame()
    if len(rows):
        rows = rows.assign(case=rows["model"], measured=rows["measured_ms"].astype(float),
                           left_out="all of " + rows["source"] + "; of the range, the device")
        result = held_out.frame(**{name: rows[name] for name in _ANSWERED})
        others = pd.DataFrame() if alone else scoreboard.shipped()
        result = _conformed(result, others, rows["widened"].astype(bool))
    left_out = Counter(", ".join([row.source, *[row.device] * (isinstance(row.device, str) and row.device != "")])
                       + f": {row.error}" for row in failed.itertuples())
    result.attrs |= {"left_out": dict(left_out.most_common()), "boards": learned}
    return result


def log_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what ``boards.learn`` takes of rows."""
    kinds = [boards.kernel_kind(kind.removesuffix(SMALL), mode) if what == KERNELS else boards.network_kind(mode, condition)
             for what, kind, mode, condition in rows[["what", "kind", "mode", "condition"]].itertuples(index=False)]
    known = {device: registry.is_of_measured_architecture(device) for device in rows["device"].unique()}
    return pd.DataFrame({"kind": kinds, "board": rows["source"] + ", " + rows["device"], "family": rows["group"],
                         "is_known": rows["device"].map(known).astype(bool), "device": rows["device"],
                         "mostly_launches": rows["kind"].str.endswith(SMALL) | (rows["kind"] == LAUNCHES),
                         "error": np.log(rows["measured"] / rows["predicted"])}, index=rows.index)


def _conformed(rows: pd.DataFrame, more: pd.DataFrame, widened: pd.Series) -> pd.DataFrame:
    """Return rows with each device's range learned from the other devices, where an answer's range is ``widened``."""
    own, conformed = log_errors(rows), rows.copy()
    every = pd.concat([own, log_errors(more)] if len(more) else [own])
    for device in rows["device"].unique():
        spreads = boards.learn(every[every["device"] != device])
        for kind, same in own[(own["device"] == device) & widened].groupby("kind"):
            part = rows.loc[same.index]
            low, high = spreads.widened(part["predicted"], part["low"], part["high"], kind, same["is_known"].iloc[0])
            conformed.loc[same.index, "low"], conformed.loc[same.index, "high"] = low, high
    return conformed


def ship(rows: pd.DataFrame) -> None:
    """Save predictions, the rates that labels taught, and the spread of boards, beside the models that ship."""
    learned = replace(rows.attrs.pop("boards"), spreads=boards.learn(log_errors(rows)).spreads)
    held_out.save(rows, learned.save(boards.PATH))


def _kernels(table: pd.DataFrame) -> pd.DataFrame:
    """Predict operators as ``advise-op`` does."""
    parts, described = [], cache(_described)
    for (device, dtype), rows in track(list(table.groupby(["device", "dtype"])), "devices"):
        answers = [described(row.model, row.dtype, _PASSES[row.mode], device.partition("@")[0] == "cpu")
                   for row in rows.itertuples()]
        wrong = pd.Series([answer if isinstance(answer, str) else "" for answer in answers], rows.index)
        shapes = pd.DataFrame([answer for answer in answers if not isinstance(answer, str)], index=rows.index[wrong == ""])
        try:
            predictor = registry.for_devices([device], dtype)[0]
            answer = predictor.model.predict(shapes) if len(shapes) else shapes
        except InputError as error:
            parts.append(rows.assign(error=str(error)))
            continue
        if shapes.empty:
            parts.append(rows.assign(error=wrong))
            continue
        ms, op = rows["measured_ms"].astype(float).reindex(shapes.index), shapes["op"]
        fastest = np.where(rows["model"].reindex(shapes.index).map(_is_winograd), _WINOGRAD, _BOOST)
        allowed = shapes["flops"] / predictor.roof.peak_gflops / 1e6 / fastest
        wrong = wrong.where(~(ms < allowed).reindex(rows.index, fill_value=False), "above the peak rate of the device")
        ends = {end: answer[f"{end}_ms"] for end in ("predicted", "low", "high")}
        group = op.combine(rows["model"].reindex(op.index), _shape_group)
        parts.append(rows.assign(
            **ends, error=wrong, what=KERNELS, kind=op, mode=rows["mode"].map(_PASSES), group=group, batch_size=None,
            condition=dtype, out_of_range=answer["out_of_range"] | (answer["origin"] != ""),
            widened=predictor.model.is_of_strangers, parts=_gradients(shapes, predictor.model)))
    return pd.concat(parts) if parts else table


def _gradients(shapes: pd.DataFrame, model: CostModel) -> pd.Series:
    """Return what each backward pass of a convolution on a GPU consists of: ms and features of kernels, by gradient."""
    backward = shapes[(shapes["pass"] == "backward") & shapes["op"].isin(features.CONVOLUTIONS)]
    parts = [{} for _ in backward.index]
    if model.chip and len(backward):
        for name, places, ms, values, *_ in model.gradients(features.columns(backward)):
            for place, *part in zip(places, ms, values, strict=True):
                parts[place][name] = part
    return pd.Series(parts, backward.index, dtype=object).reindex(shapes.index)


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
    """Predict networks as ``advise --questions`` does: their passes, and what the label includes ``beside``."""
    if not len(table):
        return table
    asked = questions.from_table(table[list(questions.FIELDS)].astype(object))
    answers = questions.answer(asked, more=("parts",)).set_axis(table.index)
    included = {name: table["includes"].str.split().map(lambda parts, name=name: name in parts) for name in labels.INCLUDED}
    is_training, is_answered, is_pure = table["mode"] == "train", answers["error"] == "", table["autocast"] == "false"
    answers["h2d_ms"] *= (table["dtype"].map(_TYPES) / _TYPES["fp32"]).where(is_pure, 1.0)  # of autocast the input is in fp32
    beside = sum(answers[f"{name}_ms"].where(included[name] & is_training, 0.0) for name in labels.STEP)
    for index in table.index[included["h2d"] & ~is_training & is_answered]:
        beside[index] = _copy_ms(table.loc[index])
    out = {CASTS: is_pure, ZEROING: ~included[ZEROING]}
    parts = [part.without(*(name for name in out if out[name][index])) if isinstance(part, Parts) else None
             for index, part in answers["parts"].items()]
    passes = (answers["forward_ms"] + answers["backward_ms"]).where(is_training, answers["predicted_ms"])
    ratio = passes / answers["predicted_ms"]
    too_fast = table["measured_ms"].astype(float) * _WINOGRAD < answers["predicted_ms"] / answers["below_roof"]
    return table.assign(
        predicted=passes, low=answers["low_ms"] * ratio, high=answers["high_ms"] * ratio, what=NETWORKS,
        error=answers["error"].mask(is_answered & too_fast, "above the peak rate of the device"), beside=beside, parts=parts,
        out_of_range=answers["out_of_range"].fillna(False).astype(bool),
        kind=np.where(answers["bound"] == "launch", LAUNCHES, held_out.ALL), group=table["model"].map(networks.family),
        condition=[condition_of(row.dtype, row.layout, bool(row.compile)) for row in answers.itertuples()],
        widened=answers["widened"].fillna(False).astype(bool),
        batch_size=pd.to_numeric(table["batch_size"], errors="coerce"))


def _by_labels(table: pd.DataFrame, learned: Boards) -> pd.DataFrame:
    """Return predictions by the rates that saw neither the device nor the family, with all that labels include."""
    ends = ["predicted", "low", "high"]
    table = table.assign(**{name: table[name].astype(float) for name in ends})
    for row in table[(table["error"] == "") & table["parts"].notna()].itertuples():
        if isinstance(row.parts, Parts):
            rates = learned.without(row.device, row.group, row.source)
            table.loc[row.Index, ends] = row.parts.predict(*rates.of_passes)
        elif row.parts:
            rates = learned.without(row.device, source=row.source)
            ms = sum(rates.gradient_ms(name, *part) for name, part in row.parts.items())
            table.loc[row.Index, ends] = np.array([row.predicted, row.low, row.high]) * ms / row.predicted
    if "beside" in table:
        table[ends] = table[ends].mul(1 + table["beside"] / table["predicted"], axis=0)
    is_small = (table["what"] == KERNELS) & (np.sqrt(table["measured_ms"].astype(float) * table["predicted"]) < SMALL_MS)
    return table.assign(kind=table["kind"].where(~is_small, table["kind"] + SMALL))


def _copy_ms(row: pd.Series) -> float:
    """Return the ms that the batch of an answered question takes to a device over the assumed link."""
    shape = networks.network(row["model"], int(float(row["batch_size"] or 1)), row["input"]).shape
    return math.prod(shape) * _TYPES[row["dtype"]] / 1e6 / steps.LINK_GBPS
