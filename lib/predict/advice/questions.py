"""Many questions at once: read from a file or a table, answered with few captures of each network.

A network is captured once per device type, or twice if it is asked at many batch sizes; models are read once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from lib import csv_files
from lib.errors import InputError, choices, one_line
from lib.predict import registry
from lib.predict.advice import advise
from lib.predict.advice.query import CapturedQuery, Query
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.progress import track

FIELDS = ("model", "batch_size", "device", "mode", "dtype", "input", "layout", "compile")
COLUMNS = ("question", *FIELDS, *(name for name in advise.COLUMNS if name not in FIELDS), "error")
_FEW = 2  # batch sizes of a network, beside single samples, up to which each is captured
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LARGEST_DIGITS = 9


@dataclass(frozen=True)
class Question:
    """One row of a table of questions; an empty ``device`` asks all devices, ``error`` says what is wrong with the row."""

    number: int
    query: Query
    device: str = ""
    error: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Return the question as columns of the answer."""
        query = self.query
        return {"question": self.number, "model": query.model, "batch_size": query.batch_size or None, "device": self.device,
                "mode": query.mode, "dtype": query.dtype, "input": query.input_shape, "layout": query.layout,
                "compile": query.compiled}


def read(path: Path, usual: Query | None = None, devices: Iterable[str] = ()) -> list[Question]:
    """Read questions from a CSV with a column ``model`` and any others of FIELDS.

    Empty cells and missing columns are filled from ``usual`` and from each of ``devices``. Raises InputError for a file that is
    no such table; a wrong row becomes a Question with its error.
    """
    header, *rows = csv_files.rows(csv_files.text(path), path, skipinitialspace=True)
    return _questions([dict(zip(header, row, strict=True)) for row in rows], header, str(path), usual, devices)


def from_table(table: pd.DataFrame, usual: Query | None = None, devices: Iterable[str] = ()) -> list[Question]:
    """Take questions from a table as ``read`` does from a file."""
    texts = table.astype(object).where(table.notna(), "").to_dict("records")
    return _questions(texts, list(table), "the questions", usual, devices)


def _questions(rows: list[Mapping[str, Any]], header: list[str], where: str, usual: Query | None,
               devices: Iterable[str]) -> list[Question]:
    unknown = sorted(set(header) - set(FIELDS))
    if unknown or "model" not in header:
        missing = "" if "model" in header else "missing the column model; "
        raise InputError(f"{where}: {missing}unknown columns [{choices(unknown)}]; it takes: {choices(FIELDS)}")
    if not rows:
        raise InputError(f"{where} has no row")
    questions = [_question(number, row, usual or Query("")) for number, row in enumerate(rows, start=1)]
    return [replace(question, device=device) for question in questions
            for device in ([question.device] if question.device else list(devices) or [""])]


def _question(number: int, row: Mapping[str, Any], usual: Query) -> Question:
    texts = {name: str(row.get(name, "")).strip() for name in FIELDS}
    batch, error = texts["batch_size"].removesuffix(".0"), ""  # a whole number in a column with empty cells
    if batch and not (batch.isascii() and batch.isdigit() and 0 < int(batch[:_LARGEST_DIGITS + 1]) < 10**_LARGEST_DIGITS):
        error, batch = f"batch_size {texts['batch_size']!r} is no whole number of 1 or more", ""
    if not texts["model"]:
        error = "it names no model"
    if texts["compile"] and texts["compile"].lower() not in _TRUTH:
        error = f"compile {texts['compile']!r} is none of: {choices(_TRUTH)}"
    query = Query(texts["model"], int(batch or usual.batch_size), texts["input"] or usual.input_shape,
                  texts["mode"] or usual.mode, texts["dtype"] or usual.dtype, texts["layout"] or usual.layout,
                  _TRUTH.get(texts["compile"].lower(), usual.compiled))
    return Question(number, query, texts["device"], error)


def answer(questions: Sequence[Question]) -> pd.DataFrame:
    """Answer questions in their order: one row (COLUMNS) per question and device.

    A question without an answer has the reason in ``error``, and no numbers.
    """
    models, rows = _Models(), {}
    for query, same in track(list(_groups(questions)), "networks"):
        network = _Captured(query, {question.query.batch_size for question in same})
        for batch in sorted({one.query.batch_size for one in same if one.device.partition("@")[0] in ("", "cpu")}):
            with suppress(Exception):  # each question tells its own error
                network.work(batch, "cpu")  # its allocations are replayed in the background meanwhile
        for question in same:
            rows[id(question)] = list(_answered(question, network, models))
    table = pd.DataFrame([row for question in questions for row in rows[id(question)]], columns=COLUMNS)
    return table.astype({"batch_size": "Int64"})


def summary(table: pd.DataFrame) -> str:
    """Return in words how many questions were answered, and why the first failure has no answer."""
    failed = table[table["error"] != ""]
    text = f"{len(table) - len(failed)} answers to {table['question'].nunique()} questions"
    if failed.empty:
        return text
    first = failed.iloc[0]
    return f"{text}; {len(failed)} without one (column error), such as question {first['question']}: {first['error']}"


def _groups(questions: Iterable[Question]) -> Iterator[tuple[Query, list[Question]]]:
    """Yield the questions about one network in one mode and element type together, with the query that they share."""
    groups: dict[Query, list[Question]] = {}
    for question in questions:
        groups.setdefault(replace(question.query, batch_size=0, layout=Query.layout, compiled=False), []).append(question)
    yield from groups.items()


class _Models:
    """Devices with their models, each read once; a device without a model keeps its error."""

    def __init__(self):
        self._reader, self._predictors = cache(registry.load), cache(self._read)

    def predictors(self, device: str, dtype: str) -> list[Predictor]:
        """Return one device, or all if none is named; InputError without a model."""
        predictors = self._predictors(device, dtype)
        if isinstance(predictors, Exception):
            raise predictors
        return predictors

    def _read(self, device: str, dtype: str) -> list[Predictor] | Exception:
        try:
            return advise.for_networks([device] if device else [], dtype, reader=self._reader)
        except InputError as error:
            return error


class _Captured:
    """One network in one mode and element type, with its work at the batch sizes of the questions."""

    def __init__(self, query: Query, batch_sizes: set[int]):
        self._batch_sizes = sorted(size for size in batch_sizes if size > 1)
        network = cache(lambda: CapturedQuery(query))
        self._at = cache(lambda batch_size: network().under(batch_size=batch_size))
        self._works: dict[tuple[int, str], Work | Exception] = {}

    def query(self, batch_size: int) -> CapturedQuery:
        """Return the query at a batch size; of many sizes, the smallest, from which the others are interpolated."""
        interpolated = batch_size > 1 and len(self._batch_sizes) > _FEW
        return self._at(self._batch_sizes[0] if interpolated else batch_size)

    def work(self, batch_size: int, device_type: str) -> Work:
        """Return the work at a batch size on a device type; raises the same error whenever there is none."""
        key = batch_size, device_type
        if key not in self._works:
            try:
                self._works[key] = self._captured(batch_size, device_type)
            except Exception as error:
                self._works[key] = error
        if isinstance(self._works[key], Exception):
            raise self._works[key]
        return self._works[key]

    def _captured(self, batch_size: int, device_type: str) -> Work:
        base = self.query(batch_size)
        try:
            return base.scaled(batch_size or base.batch_size, device_type)
        except InputError:
            if base.query.batch_size == batch_size:
                raise
            return self._at(batch_size).work(device_type=device_type)


def _answered(question: Question, network: _Captured, models: _Models) -> Iterator[dict[str, Any]]:
    """Yield the answers to a question: one row per device, or the reason why there is none."""
    try:
        if question.error:
            raise InputError(question.error)
        query = question.query
        captured = network.query(query.batch_size).under(layout=query.layout, compiled=query.compiled)
        predictors = models.predictors(question.device, query.dtype)
        for predictor in advise.with_condition(captured, predictors, bool(question.device)):
            work = network.work(query.batch_size, predictor.device_type)
            yield question.columns | advise.row(predictor, captured, work) | {"batch_size": work.batch_size, "error": ""}
    except Exception as error:
        yield question.columns | {"error": str(error) if isinstance(error, InputError) else one_line(error)}
