"""What ``04_complexity`` shows: rows of networks at several batch sizes, by kind of work, layer and batch, and cross-checks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.config.definitions import workloads
from lib.config.notebooks import ComplexityParams
from lib.errors import InputError
from lib.missing import needs
from lib.predict.analytic import complexity
from lib.progress import track
from lib.report.plots import axes, interval_rows, label_rows, legend, panel
from lib.report.sentences import KeyNumbers, Numbers
from lib.report.style import SERIES, renamed
from lib.work.graph import families

GROUPS = {"conv2d": "convolution", "conv3d": "convolution", "linear": "matrix product", "matmul": "matrix product",
          "bmm": "matrix product", "attention": "attention", "batch_norm": "normalisation", "layer_norm": "normalisation",
          "activation": "activation function", "pool2d": "pooling", "pool3d": "pooling"}
OTHER = "copies, additions, other"
_PRODUCTS = ("convolution", "matrix product", "attention")
_COLOURS = {"convolution": SERIES[0], "matrix product": SERIES[3], "attention": SERIES[5], "normalisation": SERIES[2],
            "activation function": SERIES[4], "pooling": SERIES[1], OTHER: "#9a9a9a"}
_STATES = 4  # a weight, its gradient, and Adam's two moments
_OVERVIEW = {"network": "network", "batch_size": "batch", "input": "input", "params": "parameters, M",
             "macs_forward": "forward, GMAC", "flops_forward": "forward, GFLOP", "flops_backward": "backward, GFLOP",
             "backward_over_forward": "backward / forward", "bytes": "step, MB moved", "flops_per_byte": "step, FLOP/byte",
             "activation_mb": "saved, MB"}
_LAYER = {"layer": "layer", "params": "parameters, k", "flops_forward": "forward, MFLOP", "flops_backward": "backward, MFLOP",
          "share": "% of the step", "bytes_forward": "forward, MB", "flops_per_byte": "forward, FLOP/byte",
          "activation_bytes": "saved, MB"}
_UNITS = {"k": 1e3, "M": 1e6, "MB moved": 1e6, "MB": 1e6, "MFLOP": 1e6, "GMAC": 1e9, "GFLOP": 1e9}


@dataclass(frozen=True)
class Study:
    """Several networks at several batch sizes, as a notebook shows them; ``detail`` is the one shown layer by layer."""

    names: list[str]
    detail: str
    table: pd.DataFrame
    totals: pd.DataFrame
    files: list[Path]
    note: str

    def at(self, name: str, batch_size: int) -> pd.DataFrame:
        """Return the ``complexity`` table of one network at one batch size, with the ``group`` of each row."""
        return grouped(self.table.query("network == @name and batch_size == @batch_size"))


def study(p: ComplexityParams) -> Study:
    """Count every model of ``p`` at every batch size and save the results; a replay counts the same anew.

    Raises InputError for an unknown model, for none, and when ``detail`` is not among them.
    """
    names = p.names
    detail = p.detail or next((name for name in names if name not in workloads()), names[0])
    if detail not in names:
        raise InputError(f"detail = {detail!r} is not among the models {p.models}")
    work = [(name, batch, complexity.shape_for(name, p.input_shape)) for name in names for batch in p.sizes]
    steps = [complexity.analyse(*item) for item in track(work, "counting")]
    tables = [complexity.rows_of(step) for step in steps]
    sums = pd.DataFrame([complexity.sums_of(step, rows) for step, rows in zip(steps, tables, strict=True)])
    rows = pd.concat(tables, ignore_index=True)
    files = complexity.save(rows, sums, notebook="04_complexity", parameters=p.model_dump())
    note = (f"{'REPLAY, which here counts anew. ' if p.source == 'replay' else ''}Counted from shapes under torch "
            f"{torch.__version__}: nothing is timed, and no machine changes the counts.")
    return Study(names, detail, rows, sums, files, note)


# ------------------------------------------------------------------------------------------------- figures

@needs("networks")
def work_by_network(totals: pd.DataFrame):
    """Return the GFLOPs a sample of each network, a dot for the forward and one for the backward pass, logarithmic.

    ``totals`` holds one row a network; the number after the dots is backward over forward. Unknown FLOPs have no dot.
    """
    passes = {"forward": SERIES[0], "backward": SERIES[1]}
    table = totals.assign(**{name: totals[f"flops_{name}"] / totals["batch_size"] / 1e9 for name in passes})
    figure = interval_rows(table, "network", "GFLOP a sample (2 a multiply-add, element-wise work included)", *passes,
                           **{name: {"s": 46, "color": colour, "label": name} for name, colour in passes.items()})
    axis, most = figure.axes[0], table["backward"].max()
    for place, row in enumerate(table.itertuples()):
        if np.isfinite(row.backward):
            axis.annotate(f"× {row.backward_over_forward:.3f}", (row.backward, place), (10, 0), textcoords="offset points",
                          va="center", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axis.set_xlim(right=most * 3 if np.isfinite(most) else None)
    return figure


@needs("counted work")
def shares_by_kind(groups: pd.DataFrame):
    """Return two panels, the share of each kind of work in a training step's FLOPs and in its compulsory bytes.

    ``groups`` holds network, group, flops and bytes; a network with unknown FLOPs has no bar there.
    """
    names, kinds = groups["network"].unique(), [kind for kind in _COLOURS if kind in set(groups["group"])]
    figure, panels = axes(2, 9, 1.5 + 0.3 * len(names), sharey=True)
    for axis, column, title in zip(panels, ("flops", "bytes"), ("FLOPs", "Compulsory bytes"), strict=True):
        share = groups[column] / groups.groupby("network")[column].transform("sum", skipna=False) * 100
        wide = groups.assign(share=share).pivot_table(index="network", columns="group", values="share")
        wide.reindex(index=names, columns=kinds).fillna(0.0).plot.barh(stacked=True, ax=axis, color=_COLOURS, width=0.75,
                                                                       legend=False, ylabel="")
        axis.set(xlim=(0, 100), xticks=(0, 25, 50, 75), xlabel="% of the training step", title=title)
        label_rows(axis, names, 11)
    legend(figure)
    return figure


@needs("layers")
def intensity_by_layer(rows: pd.DataFrame):
    """Return FLOPs a compulsory byte of every forward operator in the network's order, coloured by kind of work.

    ``rows`` is one network's ``complexity`` table with its ``group``; the area of a dot is the operator's share of the bytes.
    """
    shown = rows.query("flops_forward > 0 and bytes_forward > 0").reset_index(drop=True).eval("""
        intensity = flops_forward / bytes_forward
        area = 12 + 148 * bytes_forward / bytes_forward.max()""")
    figure, axis = panel(9, 4)
    for kind, colour in _COLOURS.items():
        part = shown[shown["group"] == kind]
        if len(part):
            axis.scatter(part.index, part["intensity"], part["area"], color=colour, alpha=0.75, linewidth=0)
            axis.scatter([], [], color=colour, label=kind)
    axis.set(yscale="log", xlabel="operator of the forward pass, in order", ylabel="FLOP a compulsory byte")
    legend(figure)
    return figure


@needs("networks")
def memory(totals: pd.DataFrame):
    """Return what fills the memory: a square for the weights' states, a dot for the saved activations of each batch size.

    ``totals`` holds a row a network and batch size; in MB (10^6 bytes), logarithmic.
    """
    wide = totals.pivot_table(index="network", columns="batch_size", values="activation_mb", sort=False).sort_index(axis=1)
    wide = wide.rename(columns="activations, batch {}".format)
    weights_mb = totals.groupby("network", sort=False)["parameter_mb"].first() * _STATES
    marks = {name: {"s": 8 + 22 * number, "color": SERIES[0], "alpha": 0.25 + 0.55 * number / wide.shape[1], "label": name}
             for number, name in enumerate(wide, 1)}
    table = wide.assign(low=wide.min(axis=1), high=wide.max(axis=1), weights=weights_mb).reset_index()
    return interval_rows(table, "network", "MB", "low", "high", **marks, weights={
        "marker": "s", "s": 42, "color": SERIES[1], "label": "weights, gradients, Adam's two moments"})


# ------------------------------------------------------------------------------------------------- tables

def grouped(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a ``complexity`` table with a column ``group``: what kind of work each row is."""
    named = {op: GROUPS[family.name] for family in families.families().values() if family.name in GROUPS
             for op in family.covers}
    return rows.assign(group=rows["op"].map(named).fillna(OTHER))


def by_group(rows: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs and bytes of a training step by network, batch size and kind of work."""
    work = grouped(rows).eval("flops = flops_forward + flops_backward\nbytes = bytes_forward + bytes_backward")
    return work.groupby(["network", "batch_size", "group"], sort=False)[["flops", "bytes"]].sum(skipna=False).reset_index()


def _in_units(table: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Return columns under the names that people read, each divided by the unit that its name ends in."""
    shown = renamed(table, names)
    return shown.assign(**{name: shown[name] / _UNITS[unit] for column, name in names.items()
                           if (unit := name.rpartition(", ")[2]) in _UNITS and not column.endswith("_mb")})


def heaviest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ten layers of one network with the most FLOPs in a training step, in millions and MB, with their share."""
    layers = complexity.by_layer(rows).replace({"layer": {"": "(the network itself)"}}).eval("""
        step = flops_forward + flops_backward
        share = step / step.sum() * 100""")
    return _in_units(layers.nlargest(10, "step"), _LAYER)


def intensity_by_batch(sums: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs a byte of a training step, a row a network and a column a batch size."""
    wide = sums.pivot_table(index="network", columns="batch_size", values="flops_per_byte", sort=False, dropna=False)
    return wide.rename(columns="batch {}".format).rename_axis(columns=None).reset_index()


def overview(sums: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``totals`` in units that people read: millions, GFLOP, MB."""
    return _in_units(sums.eval("bytes = bytes_forward + bytes_backward"), _OVERVIEW)


def differing(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons that differ, and the sources that gave no number, as people read them."""
    shown = rows.query("difference != 0").drop(columns=["batch_size", "explained"])
    numbers = ["ours", "theirs", "difference", "rest"]
    return shown.assign(**shown[numbers].map(lambda value: "–" if pd.isna(value) else f"{value:,.0f}"))


# ------------------------------------------------------------------------------------------------- numbers of sentences

def ratios(sums: pd.DataFrame) -> Numbers:
    """Return how many forward passes a backward pass, and a step, are worth; ``sums`` are ``totals``, one row a network."""
    counted = sums.dropna(subset="backward_over_forward").eval("step = 1 + backward_over_forward")
    return {"counted": counted, "uncounted": sums.query("uncounted != ''"),
            "below_two": counted["backward_over_forward"].max() < 2}


def shares(groups: pd.DataFrame) -> Numbers:
    """Return the share of convolutions, GEMMs and attention in each network's FLOPs and bytes, %; ``groups``: ``by_group``."""
    products = groups[groups["group"].isin(_PRODUCTS)].groupby("network")[["flops", "bytes"]].sum()
    everything = groups.groupby("network")[["flops", "bytes"]].sum(skipna=False)
    return {"shares": (products.reindex(everything.index, fill_value=0.0) / everything * 100).dropna()}


@needs("networks")
def growth(batches: pd.DataFrame) -> Numbers:
    """Return how FLOPs a byte grow from the first to the last batch size; ``batches``: ``intensity_by_batch``."""
    smallest, largest = batches.columns[1], batches.columns[-1]
    return {"several_sizes": largest != smallest, "smallest": smallest, "largest": largest,
            "batches": batches.assign(growth=batches[largest] / batches[smallest])}


def comparisons(rows: pd.DataFrame) -> Numbers:
    """Return the second sources that agree with the counts, as they are or by a rule, or not, and how far each is off."""
    given = rows[rows["theirs"].notna()]
    equal, unexplained = given["difference"] == 0, given["rest"] != 0
    ratio = (given["theirs"] / given["ours"].where(given["ours"] > 0)).astype(float)
    return {"given": given.assign(ratio=ratio, off=(ratio - 1).abs()), "equal": equal.sum(),
            "explained": (~equal & ~unexplained).sum(), "unexplained": given[unexplained],
            "silent": len(rows) - len(given) or None}


def key_numbers(results: Study, sums: pd.DataFrame, checks: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers, which must all reproduce: of the detailed network, of the comparisons, and the ratio's range.

    ``sums`` holds the totals at the smallest batch size.
    """
    name, detail = results.detail.replace(":", "-"), sums.set_index("network").loc[results.detail]
    ratio = sums["backward_over_forward"]
    return {f"{name} parameters": (detail["params"], ""),
            f"{name} multiply-adds a sample": (detail["macs_forward"] / detail["batch_size"], ""),
            f"{name} saved activations": (detail["activation_mb"], "MB"),
            "comparisons with an unexplained difference": ((checks["rest"].fillna(0) != 0).sum(), ""),
            "least backward over forward": (ratio.min(), ""), "most backward over forward": (ratio.max(), "")}
