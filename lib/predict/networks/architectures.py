"""What kind a network is of, by what it computes, convolutions that overlap, attention, both or neither."""

import pandas as pd

CNN, TRANSFORMER, HYBRID, OTHER = "CNN", "transformer", "hybrid", "other"
_ATTENDS = ("attention", "bmm")  # products of two activations; weights are multiplied by linear and matmul


def _kind(convolves: bool, attends: bool) -> str:
    return (OTHER, TRANSFORMER, CNN, HYBRID)[2 * convolves + attends]


def of_work(table: pd.DataFrame) -> str:
    """Return the kind of a network from its operators (``Work.table``).

    A convolution counts only if its window is wider than its stride: patch embeddings and 1x1 convolutions do not count.
    """
    wider = sum((table[f"kernel_{axis}"].astype(float) > table[f"stride_{axis}"].astype(float)).astype(int)
                for axis in "dhw" if f"kernel_{axis}" in table)
    overlaps = table["op"].str.startswith("conv") & (wider > 0)
    attends = table["op"].isin(_ATTENDS) & table["covered"].astype(bool)  # products stand in for what no family covers
    return _kind(bool(overlaps.any()), bool(attends.any()))


def of_rows(rows: pd.DataFrame) -> str:
    """Return the kind of a network from its rows of work (``gpu.rows``), which ``of_work`` would give of the same one."""
    wider = rows["window"].astype(float) > rows["stride"].astype(float)**2  # of two axes
    return _kind(bool((wider & rows["kind"].str.contains("conv|stem")).any()), bool(rows["kind"].isin(_ATTENDS).any()))
