"""The figures of complexity: work by network and kind, arithmetic intensity by layer, and what fills the memory."""

import numpy as np
import pandas as pd

from lib.missing import needs
from lib.report.style import SERIES

KINDS = {"convolution": SERIES[0], "matrix product": SERIES[3], "attention": SERIES[5], "normalisation": SERIES[2],
         "activation function": SERIES[4], "pooling": SERIES[1], "copies, additions, other": "#9a9a9a"}
_STATES = 4  # a weight, its gradient, and Adam's two moments


def _bars(count: int, columns: int = 1):
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(9, 1.5 + 0.3 * count), sharey=True, squeeze=False)


@needs("networks")
def work_by_network(totals: pd.DataFrame):
    """Return the GFLOPs a sample of each network, a dot for the forward and one for the backward pass, logarithmic.

    ``totals`` holds one row a network; the number after the dots is backward over forward. Unknown FLOPs have no dot.
    """
    figure, ((axis,),) = _bars(len(totals))
    forward, backward = (totals[column] / totals["batch_size"] / 1e9 for column in ("flops_forward", "flops_backward"))
    axis.set(yticks=range(len(totals)), yticklabels=totals["network"])
    axis.hlines(range(len(totals)), forward, backward, color="#c9d7ea", linewidth=3, zorder=1)
    for values, colour, label in ((forward, SERIES[0], "forward"), (backward, SERIES[1], "backward")):
        axis.scatter(values, range(len(totals)), s=46, color=colour, label=label, zorder=2)
    for row, (end, ratio) in enumerate(zip(backward, totals["backward_over_forward"], strict=True)):
        if np.isfinite(end):
            axis.annotate(f"× {ratio:.3f}", (end, row), (10, 0), textcoords="offset points", va="center", fontsize=9,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axis.set(xscale="log", xlabel="GFLOP a sample (2 a multiply-add, element-wise work included)")
    axis.set_xlim(right=backward.max() * 3 if np.isfinite(backward.max()) else None)
    axis.set_ylim(len(totals) - 0.5, -0.5)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


@needs("counted work")
def shares_by_kind(groups: pd.DataFrame):
    """Return two panels, the share of each kind of work in a training step's FLOPs and in its compulsory bytes.

    ``groups`` holds network, group, flops and bytes; a network with unknown FLOPs has no bar there.
    """
    networks = list(dict.fromkeys(groups["network"]))
    figure, (panels,) = _bars(len(networks), 2)
    for axis, column, title in ((panels[0], "flops", "FLOPs"), (panels[1], "bytes", "Compulsory bytes")):
        unknown = set(groups.loc[groups[column].isna(), "network"])
        counted = groups.loc[~groups["network"].isin(unknown)]
        wide = counted.pivot_table(index="network", columns="group", values=column, aggfunc="sum").reindex(networks).fillna(0.0)
        share, base = wide.div(wide.sum(axis=1).clip(lower=1), axis=0) * 100, np.zeros(len(networks))
        for kind in (kind for kind in KINDS if kind in share):
            axis.barh(networks, share[kind], 0.75, left=base, color=KINDS[kind], label=kind)
            base += share[kind].to_numpy()
        axis.set(xlim=(0, 100), xticks=(0, 25, 50, 75), xlabel="% of the training step", title=title)
        axis.grid(axis="y", visible=False)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    return figure


@needs("layers")
def intensity_by_layer(rows: pd.DataFrame):
    """Return FLOPs a compulsory byte of every forward operator in the network's order, coloured by kind of work.

    ``rows`` is one network's ``complexity`` table with its ``group``; the area of a dot is the operator's share of the bytes.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    shown = rows[(rows["flops_forward"] > 0) & (rows["bytes_forward"] > 0)].reset_index(drop=True)
    shown = shown.assign(place=np.arange(len(shown)), intensity=shown["flops_forward"] / shown["bytes_forward"],
                         megabytes=shown["bytes_forward"] / 1e6)
    figure, axis = plt.subplots(figsize=(9, 4))
    kinds = [kind for kind in KINDS if kind in set(shown["group"])]
    sns.scatterplot(shown, x="place", y="intensity", hue="group", hue_order=kinds, palette=[KINDS[kind] for kind in kinds],
                    size="megabytes", sizes=(12, 160), alpha=0.75, linewidth=0, legend=False, ax=axis)
    for kind in kinds:
        axis.scatter([], [], s=40, color=KINDS[kind], label=kind)
    axis.set(yscale="log", xlabel="operator of the forward pass, in order", ylabel="FLOP a compulsory byte")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure


@needs("networks")
def memory(totals: pd.DataFrame):
    """Return what fills the memory: a square for the weights' states, a dot for the saved activations of each batch size.

    ``totals`` holds a row a network and batch size; in MB (10^6 bytes), logarithmic.
    """
    networks, sizes = list(dict.fromkeys(totals["network"])), sorted(set(totals["batch_size"]))
    figure, ((axis,),) = _bars(len(networks))
    first = totals.drop_duplicates("network")
    spans = totals.groupby("network")["activation_mb"].agg(["min", "max"]).reindex(networks)
    axis.hlines(networks, spans["min"], spans["max"], color="#c9d7ea", linewidth=3, zorder=1)
    for number, size in enumerate(sizes):
        part = totals[totals["batch_size"] == size]
        axis.scatter(part["activation_mb"], part["network"], s=30 + 22 * number, color=SERIES[0],
                     alpha=0.45 + 0.55 * (number + 1) / len(sizes) - 0.2, label=f"activations, batch {size}", zorder=2)
    axis.scatter(first["parameter_mb"] * _STATES, first["network"], marker="s", s=42, color=SERIES[1], zorder=3,
                 label="weights, gradients, Adam's two moments")
    axis.set(xscale="log", xlabel="MB", ylim=(len(networks) - 0.5, -0.5))
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure
