"""Many questions at once: read from a file or a table, answered with few captures of each network.

A network is captured once per device type, or twice if it is asked at many batch sizes; models are read once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib import csv_files
from lib.errors import InputError, choices, one_line
from lib.names import known
from lib.predict.advice import advise
from lib.predict.advice.query import CapturedQuery, cached_with_errors, check, is_by_runtime
from lib.progress import track
from lib.work.run_config import USUAL_CONDITION, DeviceCondition, RunConfig

FIELDS = ["model", "batch_size", "device", "mode", "dtype", "input", "layout", "compile", "gpus", "runtime", "threads",
          "instances", "autocast", "clock_mhz"]
_NAMES = {"model": "network", "input": "input_shape", "compile": "compiled"}  # of fields of a run that are called otherwise
_FLAGS = ("compile", "autocast")
_APART_OF_RUN = ("device", "clock_mhz")  # fields that are no part of a RunConfig
_NUMBERS = ("batch_size", "gpus", "threads", "instances", "clock_mhz")
COLUMNS = ("question", *FIELDS, *(name for name in advise.COLUMNS if name not in FIELDS), "error")
_APART = ["layout", "compiled", "gpus", "runtime", "threads", "instances"]  # captures do not depend on them
_FEW = 2  # batch sizes of a network, beside single samples, up to which each is captured
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LARGEST_DIGITS = 9


@dataclass(frozen=True)
class Question:
    """One row of a table of questions; an empty ``device`` asks all devices, ``error`` says what is wrong with the row.

    ``clock_mhz`` 0: that of the condition in which all are asked.
    """

    number: int
    config: RunConfig
    device: str = ""
    error: str = ""
    clock_mhz: int = 0

    @property
    def columns(self) -> dict[str, Any]:
        """Return the question as columns of the answer."""
        config = {name: getattr(self.config, _NAMES.get(name, name)) for name in FIELDS if name not in _APART_OF_RUN}
        return {"question": self.number, "device": self.device, **config, "batch_size": config["batch_size"] or None,
                "threads": config["threads"] or None, "clock_mhz": self.clock_mhz or None}

    @property
    def shared(self) -> RunConfig:
        """Return what the questions have in common that the same captures answer."""
        return replace(self.config, batch_size=0, **{name: getattr(RunConfig, name) for name in _APART})


def read(path: Path, usual: RunConfig | None = None, devices: Iterable[str] = ()) -> list[Question]:
    """Read questions from a CSV with a column ``model`` and any others of FIELDS.

    Empty cells and missing columns are filled from ``usual`` and from each of ``devices``. Raises InputError for a file that is
    no such table; a wrong row becomes a Question with its error.
    """
    return _questions(csv_files.cells(path), str(path), usual or RunConfig(), devices)


def from_table(table: pd.DataFrame) -> list[Question]:
    """Take questions from a table as ``read`` does from a file."""
    return _questions(table.astype(object).where(table.notna(), "").astype(str), "the questions", RunConfig(), ())


def _questions(texts: pd.DataFrame, where: str, usual: RunConfig, devices: Iterable[str]) -> list[Question]:
    unknown = sorted(set(texts) - set(FIELDS))
    if unknown or "model" not in texts:
        missing = "" if "model" in texts else "missing the column model; "
        raise InputError(f"{where}: {missing}unknown columns [{choices(unknown)}]; it takes: {choices(FIELDS)}")
    if texts.empty:
        raise InputError(f"{where} has no row")
    questions = [_question(number, row, usual) for number, row in enumerate(texts.to_dict("records"), start=1)]
    return [replace(question, device=device) for question in questions
            for device in ([question.device] if question.device else list(devices) or [""])]


def _question(number: int, row: Mapping[str, str], usual: RunConfig) -> Question:
    texts, error = {name: row.get(name, "").strip() for name in FIELDS}, ""
    values = {**texts, **{name: _TRUTH.get(texts[name].lower()) for name in _FLAGS}}
    for name in _NUMBERS:
        text = texts[name].removesuffix(".0")  # 8.0: beside empty cells
        if text and not (text.isascii() and text.isdigit() and 0 < int(text[:_LARGEST_DIGITS + 1]) < 10**_LARGEST_DIGITS):
            error, text = f"{name} {texts[name]!r} is no whole number of 1 or more", ""
        values[name] = int(text or 0)
    if not texts["model"]:
        error = "it names no model"
    for name in _FLAGS:
        if texts[name] and values[name] is None:
            error = f"{name} {texts[name]!r} is none of: {choices(_TRUTH)}"
    device, clock_mhz = known(values.pop("device"), ("cpu",)), values.pop("clock_mhz")
    stated = {_NAMES.get(name, name): value for name, value in values.items() if value or value is False}
    return Question(number, replace(usual, **stated), device, error, clock_mhz)


def answer(questions: Sequence[Question], more: Sequence[str] = (),
           condition: DeviceCondition = USUAL_CONDITION) -> pd.DataFrame:
    """Answer questions in their order, of devices in a condition: one row (COLUMNS) per question and device.

    A question without an answer has the reason in ``error``, and no numbers. ``more``: fields of the passes' ``Estimate``.
    """
    rows, groups = {}, {}
    models = cached_with_errors(lambda device, *how: advise.for_networks([device] if device else [], *how))
    for question in questions:
        groups.setdefault(question.shared, []).append(question)
    for config, same in track(groups.items(), "networks"):
        at = _captures(config, {question.config.batch_per_gpu for question in same})
        for question in same:
            rows[id(question)] = list(_answered(question, at, models, more, condition))
    table = pd.DataFrame([row for question in questions for row in rows[id(question)]], columns=[*COLUMNS, *more])
    return table.astype({"batch_size": "Int64"})


def _captures(config: RunConfig, batch_sizes: set[int]):
    """Return what gives the run at a batch size; of many sizes, the smallest, from which the others are interpolated."""
    batches = sorted(size for size in batch_sizes if size > 1)
    network = cached_with_errors(lambda: CapturedQuery(config))
    at = cached_with_errors(lambda batch_size: network().with_changes(batch_size=batch_size))
    return lambda batch_size: at(batches[0] if batch_size > 1 and len(batches) > _FEW else batch_size)


def _answered(question: Question, at, models, more: Sequence[str], condition: DeviceCondition) -> Iterator[dict[str, Any]]:
    """Yield the answers to a question: one row per device, or the reason why there is none."""
    try:
        if question.error:
            raise InputError(question.error)
        config = question.config
        check(config)
        condition = replace(condition, clock_mhz=question.clock_mhz or condition.clock_mhz)
        captured = at(config.batch_per_gpu)
        captured = captured.with_changes(**{name: getattr(config, name) for name in _APART},
                                         batch_size=captured.config.batch_size * config.gpus)
        predictors = models(question.device, config.dtype, is_by_runtime(config))
        for result in advise.answers(captured, predictors, bool(question.device), config.batch_per_gpu, condition):
            yield question.columns | result.columns | {"batch_size": result.work.batch_size * config.gpus, "error": ""} | {
                name: getattr(result.passes, name) for name in more}
    except Exception as error:
        yield question.columns | {"error": str(error) if isinstance(error, InputError) else one_line(error)}


def summary(table: pd.DataFrame) -> str:
    """Return in words how many questions were answered, and why the first failure has no answer."""
    failed = table[table["error"] != ""]
    text = f"{len(table) - len(failed)} answers to {table['question'].nunique()} questions"
    if failed.empty:
        return text
    first = failed.iloc[0]
    return f"{text}; {len(failed)} without one (column error), such as question {first['question']}: {first['error']}"
