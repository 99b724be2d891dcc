"""The door of others' published measurements (``importers.READERS``, ``gavel``): their layouts, changed."""

import json
from unittest import mock

from lib import files, paths
from lib.measure import importers
from lib.schedule import gavel
from tests.doors import ANY, SAME, VALUES, Door, csv_texts, pass_through, pick
from tests.doors.definitions import changed, places

LINEAR = b"B,M,N,K,Latency\n1,64,32,128,0.5\n2,8,16,4,0.25\n"
CONVOLUTION = b"""Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type
1,3,8,3,1,16,16,110592,0.5,external
2,4,8,1,1,8,8,8192,0.1,internal
"""
THROUGHPUTS = {"v100": {"('ResNet-18 (batch size 32)', 1)": {"null": 5.0}, "('LM (batch size 5)', 2)": {"null": 1.5}},
               "p100": {"('ResNet-18 (batch size 32)', 1)": {"null": 2.0}}}
NO_COUNTS = ["", "x", "nan", "inf", "-1", "0", "1.5", "1e30", "NA"]


def _neusight(folder, content):
    (files.folder(folder / "linear") / "Tesla T4.csv").write_bytes(content)
    return importers.neusight(folder)["t4"]


def _convolutions(folder, content):
    path = folder / "results_convolution.csv"
    path.write_bytes(content)
    return importers.pytorch_scheduler(path)["v100-pcie-32gb"]


READERS = {  # content, reader, columns of counts, and which must be there
    "neusight": (LINEAR, _neusight, range(4), range(4)),
    "pytorch-scheduler": (CONVOLUTION, _convolutions, range(7), range(1, 7))}


def _table(data, folder):
    name = pick(data, sorted(READERS), "reader")
    original, read, counts, needed = READERS[name]
    rows, expected = csv_texts.parsed(original), read(folder, original)

    def no_count():
        pick(data, rows[1:])[pick(data, counts, "column")] = pick(data, NO_COUNTS)
        return rows

    how, kind, content = csv_texts.drawn(rows, data, {
        "no count": no_count, "a column less": lambda: csv_texts.without(rows, pick(data, needed)), "no row": lambda: rows[:1]})
    return pass_through(lambda: read(folder, content), kind, f"{name}: {how}", expected)


def _throughputs(data, folder):
    kind, place, text = SAME, pick(data, [None, *places(THROUGHPUTS)], "place"), json.dumps(THROUGHPUTS)
    if place is not None:
        kind, text = ANY, json.dumps(changed(THROUGHPUTS, place, pick(data, VALUES, "value")))
    path = folder / "throughputs.json"
    path.write_text(text)
    with mock.patch.object(paths, "IMPORTED", folder / "imported"):
        return pass_through(lambda: gavel.import_table(path)[1], kind, f"gavel: another value at {place}", 3)


def _attempt(data, folder):
    return pick(data, [_table, _table, _throughputs], "kind")(data, folder)


DOOR = Door("published measurements", _attempt)
