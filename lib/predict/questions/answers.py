"""Many questions answered: a network is captured once for several devices, two batches of it for all, models are read once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from lib.errors import InputError, one_line
from lib.predict import registry
from lib.predict.advice import advise
from lib.predict.advice.query import CapturedQuery, Query
from lib.predict.networks.work import Work
from lib.predict.questions.questions import Question
from lib.predict.registry import Predictor
from lib.progress import track

_FEW = 2  # batches of a network, beside single samples, that are captured each on its own
_QUESTION = ("question", "model", "batch_size", "device", "mode", "dtype", "input", "layout", "compile")
COLUMNS = (*_QUESTION, *(name for name in advise.COLUMNS if name not in _QUESTION), "error")


def answers(questions: Sequence[Question]) -> pd.DataFrame:
    """Answer questions in a table of COLUMNS: a row a question, in their order; several where it is asked of all devices.

    What cannot be answered has its reason in ``error``, and nothing else.
    """
    models, rows = _Models(), {}
    for query, same in track(list(_groups(questions)), "networks"):
        network = _Captured(query, {question.query.batch_size for question in same})
        network.look_ahead({question.query.batch_size for question in same if question.device.partition("@")[0] in ("", "cpu")})
        for question in same:
            rows[id(question)] = list(_answered(question, network, models))
    table = pd.DataFrame([row for question in questions for row in rows[id(question)]], columns=COLUMNS)
    return table.astype({"batch_size": "Int64"})


def summary(table: pd.DataFrame) -> str:
    """Say how many questions were answered, and which were not."""
    failed = table[table["error"] != ""]
    text = f"{len(table) - len(failed)} answers to {table['question'].nunique()} questions"
    if failed.empty:
        return text
    first = failed.iloc[0]
    return f"{text}; {len(failed)} without one (column error), such as question {first['question']}: {first['error']}"


def _groups(questions: Iterable[Question]) -> Iterator[tuple[Query, list[Question]]]:
    """Yield the questions about one network in one mode and element type together, with the query that they share."""
    several: dict[Query, list[Question]] = {}
    for question in questions:
        several.setdefault(replace(question.query, batch_size=0, layout=Query.layout, compiled=False), []).append(question)
    yield from several.items()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else one_line(error)


class _Models:
    """The devices that predict, each read once; a device that cannot has the same reason whenever it is asked for."""

    def __init__(self):
        self._reader, self._several = cache(registry.load), cache(self._look_up)

    def of(self, device: str, dtype: str) -> list[Predictor]:
        """Return one device, or all where none is named; InputError where it has no model."""
        several = self._several(device, dtype)
        if isinstance(several, Exception):
            raise several
        return several

    def _look_up(self, device: str, dtype: str) -> list[Predictor] | Exception:
        try:
            return advise.for_networks([device] if device else [], dtype, reader=self._reader)
        except InputError as error:
            return error


class _Captured:
    """One network in one mode and element type: its work at the batches that are asked for, captured when it is needed."""

    def __init__(self, query: Query, batches: set[int]):
        self._query, self._several = query, sorted(batch for batch in batches if batch > 1)
        self._first, self._works = cache(self._capture), {}
        self._network = cache(lambda: CapturedQuery(query))

    def query(self, batch_size: int) -> CapturedQuery:
        """Return the query at a batch; of many the one that they are scaled from (one sample has kernels of its own)."""
        scaled = batch_size > 1 and len(self._several) > _FEW
        return self._first(self._several[0] if scaled else batch_size)

    def _capture(self, batch_size: int) -> CapturedQuery:
        return self._network().under(batch_size=batch_size)

    def look_ahead(self, batches: set[int]) -> None:
        """Get the work of a CPU at its batches: their allocations are repeated beside what is done with the first."""
        for batch in sorted(batches):
            self.work(batch, "cpu")

    def work(self, batch_size: int, device_type: str) -> Work | Exception:
        """Return the work at a batch on a device type, or why there is none."""
        key = (batch_size, device_type)
        if key not in self._works:
            try:
                self._works[key] = self._scaled(batch_size, device_type)
            except Exception as error:
                self._works[key] = error
        return self._works[key]

    def _scaled(self, batch_size: int, device_type: str) -> Work:
        """Return the work at a batch, from that of the first batch or, where that has none, captured itself."""
        first = self.query(batch_size)
        try:
            return first.scaled(batch_size or first.batch_size, device_type)
        except InputError:
            if first.query.batch_size == batch_size:
                raise
            return self._capture(batch_size).work(device_type=device_type)


def _answered(question: Question, network: _Captured, models: _Models) -> Iterator[dict[str, Any]]:
    """Yield the answers to a question: a row a device, or the reason why there is none."""
    try:
        if question.error:
            raise InputError(question.error)
        query = question.query
        captured = network.query(query.batch_size).under(layout=query.layout, compiled=query.compiled)
        for predictor in advise.with_condition(captured, models.of(question.device, query.dtype), bool(question.device)):
            yield question.columns | _row(question, captured, predictor, network) | {"error": ""}
    except Exception as error:
        yield question.columns | {"error": _reason(error)}


def _row(question: Question, captured: CapturedQuery, predictor: Predictor, network: _Captured) -> dict[str, Any]:
    work = network.work(question.query.batch_size, predictor.device_type)
    if isinstance(work, Exception):
        raise work
    return advise.row(predictor, captured, work) | {"batch_size": work.batch_size}
