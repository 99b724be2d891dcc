"""The door of others' published measurements (``lib.predict.published.kernels``): their layouts, changed."""

from lib import files
from lib.predict.published import kernels
from tests.doors import Door, csv_texts, pass_through, pick

LINEAR = b"B,M,N,K,Latency\n1,64,32,128,0.5\n2,8,16,4,0.25\n"
CONVOLUTION = b"""Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type
1,3,8,3,1,16,16,110592,0.5,external
2,4,8,1,1,8,8,8192,0.1,internal
"""
NO_COUNTS = ["", "x", "nan", "inf", "-1", "0", "1.5", "1e30", "NA"]


def _neusight(folder, content):
    (files.folder(folder / "linear") / "Tesla T4.csv").write_bytes(content)
    return kernels.neusight(folder)["t4"]


def _convolutions(folder, content):
    path = folder / "results_convolution.csv"
    path.write_bytes(content)
    return kernels.pytorch_scheduler(path)["v100-pcie-32gb"]


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


DOOR = Door("published measurements", _table)
