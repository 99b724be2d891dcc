"""How wrong answers are on machines of others: labels that no model was trained on, predicted as a user would be answered."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices, one_line
from lib.measure.published import outsiders
from lib.measure.published.outsiders import READERS, Source
from lib.predict import boards, held_out, registry, steps
from lib.predict.advice import advise_operator, questions
from lib.predict.cards import card_model
from lib.predict.trust.scoreboard import KERNELS, LAUNCHES, NETWORKS, PATH, SMALL, SMALL_MS, is_small
from lib.progress import track
from lib.work import networks
from lib.work.graph import families, spaces

_PLAIN = Source("plain CSV", "not stated", r".*\.csv", outsiders.plain)
_FASTEST = {"conv2d": 4.0}  # times the peak rate: Winograd's convolutions need fewer products than are counted
_ROUNDING = 1.1  # what a kernel may exceed its peak rate by: a boost clock above the stated one
_COPIES = 10  # equal times of two devices, from which on one is taken for a copy of the other
_ANSWERED = ("device", "what", "kind", "mode", "condition", "group", "case", "batch_size", "left_out", "measured", "predicted",
             "low", "high", "out_of_range", "source", "licence")
_TYPES = ("fp32", "bf16", "fp16")
_PASSES = {"infer": "forward", "train": "backward"}


def labels(folder: Path) -> pd.DataFrame:
    """Return all labels below a folder or in a file, with ``source``, ``licence`` and, of those left out, the ``error``.

    A file that cannot be read is a row with its error. Raises InputError where nothing is a label.
    """
    if not folder.exists():
        raise InputError(f"{folder} is missing")
    parts = []
    for path in [folder] if folder.is_file() else sorted(filter(Path.is_file, folder.rglob("*"))):
        if source := next((one for one in READERS if re.fullmatch(one.files, path.resolve().as_posix())), _plain(path)):
            try:
                part = source.read(path).assign(error="")
            except InputError as error:
                part = pd.DataFrame([{"error": str(error)}])
            parts.append(part.assign(source=source.of(path), licence=source.licence))
    if not parts:
        raise InputError(f"{folder} has no labels: no file of {choices(source.name for source in READERS)}, and no CSV with "
                         f"the columns model and measured_ms; its columns may be: {choices(outsiders.COLUMNS)}")
    table = pd.concat(parts, ignore_index=True)
    for check in (_device_errors, _value_errors, _copies):
        table["error"] = table["error"].where(table["error"] != "", check(table))
    return table


def _plain(path: Path) -> Source | None:
    if path.suffix != ".csv":
        return None
    with path.open(errors="replace") as file:
        return _PLAIN if {"model", "measured_ms"} <= set(file.readline().strip().split(",")) else None


def _device_errors(table: pd.DataFrame) -> pd.Series:
    """Turn devices into ids, in place; return what is wrong with unknown ones and with those that models learned from."""
    ids, errors = {}, {}
    for name in table["device"].dropna().unique():
        known = outsiders.SPELLED.get(name, name)
        try:
            ids[name] = known if known in load_devices() or known.startswith("cpu") else registry.vendor_of(known)
        except InputError as error:
            errors[name] = str(error)
    found = table["device"].map(ids).fillna(table["device"])
    trained = pd.Series(list(zip(table["source"], found, strict=True)), table.index).isin(_learned())
    wrong = table["device"].map(errors).fillna("").mask(trained, "models were trained on these rows, see models --errors")
    table["device"] = found
    return wrong


def _learned() -> set[tuple[str, str]]:
    """Return the sources and devices that models which ship learned from."""
    of_kernels = {path: device for (device, _), path in registry.model_files(shipped=True).items()}
    return {("timm", device) for device in card_model.files_of_cards()} | {
        ("NeuSight", device) for path, device in of_kernels.items() if registry.load(path).facts.get("source") == "neusight"}


def _value_errors(table: pd.DataFrame) -> pd.Series:
    """Return what is wrong with a row by itself."""
    ms = pd.to_numeric(table["measured_ms"], errors="coerce")
    wrong = pd.Series("", table.index)
    wrong = wrong.mask(~table["dtype"].isin(_TYPES), "no model answers in " + table["dtype"].astype(str))
    wrong = wrong.mask(table["gpus"].astype(float) > 1, "several GPUs at once are not predicted")
    wrong = wrong.mask(table["runtime"] != "pytorch", "only PyTorch is predicted")
    return wrong.mask(~((ms > 0) & (ms < np.inf)), "no time in ms above 0")


def _copies(table: pd.DataFrame) -> pd.Series:
    """Return what is wrong with a device whose times are those of another one before it, of the same source."""
    wrong, case = pd.Series("", table.index), [name for name in outsiders.COLUMNS if name not in ("device", "measured_ms")]
    good = table[table["error"] == ""]
    texts = pd.Series(list(good[[*case, "source", "measured_ms"]].astype(str).itertuples(index=False)), good.index, dtype=str)
    first = good["device"].groupby(texts).transform("first")
    for (device, other), rows in good[first != good["device"]].groupby([good["device"], first]):
        if len(rows) >= _COPIES and len(rows) > len(good[good["device"] == device]) / 2:
            wrong[good.index[good["device"] == device]] = f"a copy of {other}'s times"
    return wrong


def predicted(folder: Path) -> pd.DataFrame:
    """Return rows ``held_out`` of all labels below a folder that can be predicted; ``attrs["left_out"]`` counts the others."""
    table = labels(folder)
    with boards.ignored():
        return _conformed(_answered(table))


def _answered(table: pd.DataFrame) -> pd.DataFrame:
    good = table[table["error"] == ""]
    is_kernel = good["model"].str.partition(" ")[0].isin(families.families())
    parts = [part for part in (_kernels(good[is_kernel]), _networks(good[~is_kernel])) if len(part)]
    answered = pd.concat(parts, ignore_index=True) if parts else good.assign(predicted=np.nan)
    failed = pd.concat([table[table["error"] != ""], answered[answered["error"] != ""]])
    rows = answered[answered["error"] == ""]
    texts = failed["source"] + failed["device"].map(lambda device: f", {device}" if isinstance(device, str) else "") + \
        ": " + failed["error"]
    rows = rows.assign(case=rows["model"], left_out="all of " + rows["source"], measured=rows["measured_ms"].astype(float))
    result = held_out.frame(**{name: rows[name].reset_index(drop=True) for name in _ANSWERED})
    result.attrs["left_out"] = texts.value_counts().to_dict()
    return result


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what ``boards.learn`` takes of the rows: those ``is_large``, of which not launches alone are compared."""
    kinds = [boards.kernel_kind(kind, mode) if what == KERNELS else boards.network_kind(mode, condition.partition(",")[0])
             for what, kind, mode, condition in rows[["what", "kind", "mode", "condition"]].itertuples(index=False)]
    known = {device: registry.is_of_measured_architecture(device) for device in rows["device"].unique()}
    return pd.DataFrame({"kind": kinds, "board": rows["source"] + ", " + rows["device"], "family": rows["group"],
                         "is_known": rows["device"].map(known), "device": rows["device"],
                         "is_large": ~is_small(rows),
                         "error": np.log(rows["measured"] / rows["predicted"])}, index=rows.index)


def _conformed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the intervals that other cards' labels give: those of a card that was left out."""
    learned, conformed = errors(rows), rows.copy()
    for device in rows["device"].unique():
        others = learned[(learned["device"] != device) & learned["is_large"]]
        if others["board"].nunique() < 2:
            continue
        spreads = boards.learn(others)
        for kind, same in learned[learned["device"] == device].groupby("kind"):
            own, spread = rows.loc[same.index], spreads.of(kind)
            for end in ("low", "high"):
                half = spread.widened(np.abs(np.log(own[end] / own["predicted"])), same["is_known"])
                conformed.loc[same.index, end] = own["predicted"] * np.exp(half if end == "high" else -half)
    return conformed


def _kernels(table: pd.DataFrame) -> pd.DataFrame:
    """Predict operators as ``advise-op`` does."""
    parts, described = [], cache(_described)
    for (device, dtype), rows in track(list(table.groupby(["device", "dtype"])), "devices"):
        answers = [described(row.model, row.dtype, _PASSES[row.mode], device.partition("@")[0] == "cpu")
                   for row in rows.itertuples()]
        errors = pd.Series([answer if isinstance(answer, str) else "" for answer in answers], rows.index)
        shapes = pd.DataFrame([answer for answer in answers if not isinstance(answer, str)], index=rows.index[errors == ""])
        try:
            predictor = registry.for_devices([device], dtype)[0]
            answer = predictor.model.predict(shapes)
        except InputError as error:
            parts.append(rows.assign(error=str(error)))
            continue
        ms, op = rows["measured_ms"].astype(float).reindex(shapes.index), shapes["op"]
        allowed = shapes["flops"] / predictor.roof.peak_gflops / 1e6 / op.map(_FASTEST).fillna(_ROUNDING)
        errors = errors.where(~(ms < allowed).reindex(rows.index, fill_value=False), "above the peak rate of the device")
        ends = {end: answer[f"{end}_ms"] for end in ("predicted", "low", "high")}
        small = np.where(ms < SMALL_MS, SMALL, "")
        group = op.combine(rows["model"].reindex(op.index), _shape_group)
        parts.append(rows.assign(
            **ends, error=errors, what=KERNELS, kind=op + small, mode=rows["mode"].map(_PASSES), group=group, batch_size=None,
            condition=dtype, out_of_range=answer["out_of_range"] | (answer["origin"] != "")))
    return pd.concat(parts) if parts else table


def _described(text: str, dtype: str, passes: str, on_cpu: bool) -> dict[str, Any] | str:
    """Return an operator as a row of a ``sweep`` table, or what is wrong with it."""
    try:
        op, *parameters = text.split()
        wanted = advise_operator.config(op, parameters, dtype, passes)
        flops, moved = spaces.work(wanted.ops("cpu" if on_cpu else "cuda"))
        return {"op": op, "pass": passes, **dict(wanted.parameters), "flops": flops, "bytes": moved}
    except InputError as error:
        return str(error)


def _shape_group(op: str, text: str) -> str:
    """Return what kernels of one layer have in common: of a product its weights, of a convolution all but its image."""
    names = {"gemm_k", "gemm_n"} if "gemm" in text else {"in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h"}
    return " ".join([op, *(part for part in text.split() if part.partition("=")[0] in names)])


def _networks(table: pd.DataFrame) -> pd.DataFrame:
    """Predict networks as ``advise --questions`` does; of a training step the parts that the label includes."""
    if not len(table):
        return table
    asked = table[list(questions.FIELDS)].astype(object)
    answers = questions.answer(questions.from_table(asked)).set_axis(table.index)
    included = {name: table["includes"].str.contains(name) for name in outsiders.STEP.split()}
    beside = sum(answers[f"{name}_ms"].where(is_in, 0.0) for name, is_in in included.items())
    is_training = table["mode"] == "train"
    ms = (answers["forward_ms"] + answers["backward_ms"] + beside).where(is_training, answers["predicted_ms"])
    ms += (included["h2d"] & ~is_training & (answers["error"] == "")) * table.apply(_copy_ms, axis=1)
    ratio = ms / answers["predicted_ms"]
    how = table["dtype"] + np.where(table["layout"] == "contiguous", "", ", channels_last") + \
        np.where(answers["compile"].astype(bool), ", compiled", "")
    return table.assign(predicted=ms, low=answers["low_ms"] * ratio, high=answers["high_ms"] * ratio, error=answers["error"],
                        out_of_range=answers["out_of_range"].fillna(False).astype(bool), what=NETWORKS,
                        kind=np.where(answers["bound"] == "launch", LAUNCHES, held_out.ALL),
                        group=table["model"].map(networks.family), condition=how,
                        batch_size=pd.to_numeric(table["batch_size"], errors="coerce"))


def _copy_ms(row: pd.Series) -> float:
    """Return the ms that a batch takes to a device over the assumed link."""
    try:
        shape = networks.network(row["model"], int(float(row["batch_size"] or 1)), row["input"]).shape
    except Exception as error:  # its question tells the error
        return 0.0 * len(one_line(error))
    return math.prod(shape) * 4 / 1e6 / steps.LINK_GBPS


def ship(rows: pd.DataFrame) -> None:
    """Save predictions, and the spread of boards that is learned from them, beside the models that ship."""
    store.write(rows, PATH, "held_out", derived=True)
    learned = errors(rows)
    boards.learn(learned[learned["is_large"]]).save(boards.PATH)
