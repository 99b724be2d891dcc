"""The door of others' published measurements (``importers.READERS``, ``gavel``): their layouts, changed."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from lib import paths
from lib.measure import importers
from lib.schedule import gavel
from tests.doors import ANY, SAME, WRONG, Door, csv_texts, pass_through
from tests.doors.definitions import VALUES, changed, places

LINEAR = [["B", "M", "N", "K", "Latency"], ["1", "64", "32", "128", "0.5"], ["2", "8", "16", "4", "0.25"]]
CONVOLUTION = [
    [
        "Batch size",
        "In Channels",
        "Out Channels",
        "Kernel Size",
        "Stride",
        "Width",
        "Height",
        "Flops",
        "Latency",
        "Latency Type",
    ],
    ["1", "3", "8", "3", "1", "16", "16", str(2 * 16 * 16 * 8 * 3 * 9), "0.5", "external"],
    ["2", "4", "8", "1", "1", "8", "8", str(2 * 2 * 8 * 8 * 8 * 4), "0.1", "internal"],
]
THROUGHPUTS = {
    "v100": {"('ResNet-18 (batch size 32)', 1)": {"null": 5.0}, "('LM (batch size 5)', 2)": {"null": 1.5}},
    "p100": {"('ResNet-18 (batch size 32)', 1)": {"null": 2.0}},
}
NO_COUNTS = ["", "x", "nan", "inf", "-1", "0", "1.5", "1e30", "NA"]


def _neusight(folder: Path, content: bytes) -> Any:
    (folder / "linear").mkdir(exist_ok=True)
    (folder / "linear" / "Tesla T4.csv").write_bytes(content)
    return importers.neusight(folder)["t4"]


def _convolutions(folder: Path, content: bytes) -> Any:
    (folder / "results_convolution.csv").write_bytes(content)
    return importers.pytorch_scheduler(folder / "results_convolution.csv")["v100-pcie-32gb"]


READERS: dict[str, tuple[csv_texts.Rows, Callable[[Path, bytes], Any], list[int]]] = {
    "neusight": (LINEAR, _neusight, [0, 1, 2, 3]),
    "pytorch-scheduler": (CONVOLUTION, _convolutions, [0, 1, 2, 3, 4, 5, 6]),
}


def _rows(rows: csv_texts.Rows) -> csv_texts.Rows:
    return list(csv.reader(io.StringIO(csv_texts.written(rows).decode())))


def _table(data: st.DataObject, folder: Path) -> str:
    name = data.draw(st.sampled_from(sorted(READERS)), label="reader")
    original, read, counts = READERS[name]
    rows, expected = _rows(original), read(folder, csv_texts.written(original))
    how = data.draw(st.sampled_from([*csv_texts.SHAPES, *["no count"] * 4, "a column less", "no row"]), label="how")
    kind = WRONG
    if how in csv_texts.SHAPES:
        kind, change = csv_texts.SHAPES[how]
        content = change(rows, data)
    elif how == "no count":
        rows[data.draw(st.integers(1, 2))][data.draw(st.sampled_from(counts), label="column")] = data.draw(
            st.sampled_from(NO_COUNTS)
        )
        content = csv_texts.written(rows)
    elif how == "a column less":
        column = data.draw(st.sampled_from(counts[1:] if name == "pytorch-scheduler" else counts))
        content = csv_texts.written([row[:column] + row[column + 1 :] for row in rows])
    else:
        content = csv_texts.written(rows[:1])
    return pass_through(lambda: read(folder, content), kind, f"{name}: {how}", expected)


def _throughputs(data: st.DataObject, folder: Path) -> str:
    path = folder / "throughputs.json"
    how = data.draw(st.sampled_from(["as it is", "another value", "another text"]), label="how")
    kind, text = SAME, json.dumps(THROUGHPUTS)
    if how == "another value":
        place = data.draw(st.sampled_from(places(THROUGHPUTS)), label="place")
        kind, text = ANY, json.dumps(changed(THROUGHPUTS, place, data.draw(st.sampled_from(VALUES), label="value")))
    elif how == "another text":
        kind, text = (
            WRONG,
            data.draw(
                st.sampled_from(
                    [
                        "",
                        "[]",
                        "{",
                        "null",
                        "1",
                        '{"a": 1}',
                        '{"a": {"b": 1}}',
                        '{"v100": {"(1": {}}}',
                        '{"v100": {"(1, 2)": {"null": NaN}}}',
                        "{}",
                        "[" * 50_000,
                        '{"v100": {"__import__(\'os\')": {"null": 1}}}',
                    ]
                )
            ),
        )
    path.write_text(text)
    with mock.patch.object(paths, "IMPORTED", folder / "imported"):
        return pass_through(lambda: gavel.bring_in(path)[1], kind, f"gavel: {how}", 3)


def _attempt(data: st.DataObject, folder: Path) -> str:
    return data.draw(st.sampled_from([_table, _table, _throughputs]), label="kind")(data, folder)


DOOR = Door("published measurements", _attempt)
