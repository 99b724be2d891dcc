"""The figures of complexity: work by network and kind, arithmetic intensity by layer, and what fills the memory."""

import numpy as np
import pandas as pd

from lib.missing import needs
from lib.report.plots import axes, intervals, label_rows, legend
from lib.report.style import SERIES

KINDS = {"convolution": SERIES[0], "matrix product": SERIES[3], "attention": SERIES[5], "normalisation": SERIES[2],
         "activation function": SERIES[4], "pooling": SERIES[1], "copies, additions, other": "#9a9a9a"}
_STATES = 4  # a weight, its gradient, and Adam's two moments


@needs("networks")
def work_by_network(totals: pd.DataFrame):
    """Return the GFLOPs a sample of each network, a dot for the forward and one for the backward pass, logarithmic.

    ``totals`` holds one row a network; the number after the dots is backward over forward. Unknown FLOPs have no dot.
    """
    figure, (axis,) = axes(width=9, height=1.5 + 0.3 * len(totals))
    forward, backward = (totals[column] / totals["batch_size"] / 1e9 for column in ("flops_forward", "flops_backward"))
    intervals(axis, forward, backward)
    for values, colour, label in ((forward, SERIES[0], "forward"), (backward, SERIES[1], "backward")):
        axis.scatter(values, range(len(totals)), s=46, color=colour, label=label)
    for row, (end, ratio) in enumerate(zip(backward, totals["backward_over_forward"], strict=True)):
        if np.isfinite(end):
            axis.annotate(f"× {ratio:.3f}", (end, row), (10, 0), textcoords="offset points", va="center", fontsize=9,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axis.set(xscale="log", xlabel="GFLOP a sample (2 a multiply-add, element-wise work included)")
    axis.set_xlim(right=backward.max() * 3 if np.isfinite(backward.max()) else None)
    label_rows(axis, totals["network"], 11)
    legend(figure)
    return figure


@needs("counted work")
def shares_by_kind(groups: pd.DataFrame):
    """Return two panels, the share of each kind of work in a training step's FLOPs and in its compulsory bytes.

    ``groups`` holds network, group, flops and bytes; a network with unknown FLOPs has no bar there.
    """
    names, kinds = groups["network"].unique(), [kind for kind in KINDS if kind in set(groups["group"])]
    figure, panels = axes(2, 9, 1.5 + 0.3 * len(names), sharey=True)
    for axis, column, title in zip(panels, ("flops", "bytes"), ("FLOPs", "Compulsory bytes"), strict=True):
        unknown = groups.loc[groups[column].isna(), "network"]
        wide = groups[~groups["network"].isin(unknown)].pivot_table(index="network", columns="group", values=column,
                                                                    aggfunc="sum")
        wide = wide.reindex(index=names, columns=kinds).fillna(0.0)
        share = wide.div(wide.sum(axis=1).clip(lower=1), axis=0) * 100
        share.plot.barh(stacked=True, ax=axis, color=KINDS, width=0.75, legend=False, ylabel="")
        axis.set(xlim=(0, 100), xticks=(0, 25, 50, 75), xlabel="% of the training step", title=title)
        label_rows(axis, names, 11)
    legend(figure)
    return figure


@needs("layers")
def intensity_by_layer(rows: pd.DataFrame):
    """Return FLOPs a compulsory byte of every forward operator in the network's order, coloured by kind of work.

    ``rows`` is one network's ``complexity`` table with its ``group``; the area of a dot is the operator's share of the bytes.
    """
    shown = rows[(rows["flops_forward"] > 0) & (rows["bytes_forward"] > 0)].reset_index(drop=True)
    intensity, megabytes = shown["flops_forward"] / shown["bytes_forward"], shown["bytes_forward"] / 1e6
    areas = 12 + 148 * megabytes / megabytes.max()
    figure, (axis,) = axes(width=9, height=4)
    for kind, colour in KINDS.items():
        part = shown["group"] == kind
        if part.any():
            axis.scatter(shown.index[part], intensity[part], areas[part], color=colour, alpha=0.75, linewidth=0)
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
    figure, (axis,) = axes(width=9, height=1.5 + 0.3 * len(wide))
    rows = range(len(wide))
    intervals(axis, wide.min(axis=1), wide.max(axis=1))
    for number, size in enumerate(wide, 1):
        axis.scatter(wide[size], rows, s=8 + 22 * number, color=SERIES[0], alpha=0.25 + 0.55 * number / wide.shape[1],
                     label=f"activations, batch {size}")
    weights_mb = totals.groupby("network", sort=False)["parameter_mb"].first()
    axis.scatter(weights_mb * _STATES, rows, marker="s", s=42, color=SERIES[1], label="weights, gradients, Adam's two moments")
    axis.set(xscale="log", xlabel="MB")
    label_rows(axis, wide.index, 11)
    legend(figure)
    return figure
