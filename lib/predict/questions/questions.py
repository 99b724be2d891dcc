"""Questions as a table: a network, its batch, input, mode and element type, and the device that it is asked of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib import csv_files
from lib.errors import InputError, choices
from lib.predict.advice.query import Query

COLUMNS = ("model", "batch_size", "device", "mode", "dtype", "input", "layout", "compile")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LARGEST_DIGITS = 9


@dataclass(frozen=True)
class Question:
    """One row: ``device`` empty are all that have a model; a row that is none has the reason in ``error``."""

    number: int
    query: Query
    device: str = ""
    error: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Return what was asked as columns of the answer."""
        query = self.query
        return {"question": self.number, "model": query.model, "batch_size": query.batch_size or None, "device": self.device,
                "mode": query.mode, "dtype": query.dtype, "input": query.input_shape, "layout": query.layout,
                "compile": query.compiled}


def read(path: Path, usual: Query | None = None, devices: Iterable[str] = ()) -> list[Question]:
    """Read questions from a CSV with a column ``model`` and any others of COLUMNS.

    An empty cell, or a column that is not there, is that of ``usual``, and of each of ``devices``. Raises InputError for a file
    that is no such table; a row that is wrong is a Question with its error.
    """
    header, *rows = csv_files.rows(csv_files.text(path), path, skipinitialspace=True)
    return _of([dict(zip(header, row, strict=True)) for row in rows], header, str(path), usual, devices)


def of_table(table: pd.DataFrame, usual: Query | None = None, devices: Iterable[str] = ()) -> list[Question]:
    """Take questions from a table as ``read`` does from a file."""
    texts = table.astype(object).where(table.notna(), "").to_dict("records")
    return _of(texts, list(table), "the questions", usual, devices)


def _of(rows: list[Mapping[str, Any]], header: list[str], where: str, usual: Query | None,
        devices: Iterable[str]) -> list[Question]:
    unknown = sorted(set(header) - set(COLUMNS))
    if unknown or "model" not in header:
        missing = "" if "model" in header else "missing the column model; "
        raise InputError(f"{where}: {missing}unknown columns [{choices(unknown)}]; it takes: {choices(COLUMNS)}")
    if not rows:
        raise InputError(f"{where} has no row")
    several = list(devices) or [""]
    return [replace(question, device=question.device or device) for number, row in enumerate(rows, start=1)
            for question in [_one(number, row, usual or Query(""))] for device in (several if not question.device else [""])]


def _one(number: int, row: Mapping[str, Any], usual: Query) -> Question:
    texts = {name: str(row.get(name, "")).strip() for name in COLUMNS}
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
