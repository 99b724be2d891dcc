"""The figures of layer power: the log with its layers, what the mapping recovers, layers by kind, errors, and the search."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.style import SERIES
from lib.tensorrt.engine import KINDS

_COLOURS = dict(zip([*KINDS.values(), "other"], [SERIES[0], SERIES[2], SERIES[1], "#9a9a9a"], strict=True))
_MARKERS = dict(zip([*KINDS.values(), "other"], "osD^", strict=True))


def _axes(columns: int = 1, height: float = 3.6):
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(9, height), squeeze=False)


@needs("recorded power")
def power_log(samples: pd.DataFrame, windows: pd.DataFrame, title: str):
    """Return the power of a few passes, each sample a dot, over the layers that ran meanwhile, a colour a kind.

    ``samples``: ms, power_w, idle_w; ``windows``: kind, start_ms, end_ms, see ``tables``.
    """
    figure, ((axis,),) = _axes()
    for row in windows.itertuples():
        axis.axvspan(row.start_ms, row.end_ms, color=_COLOURS[row.kind], alpha=0.3, linewidth=0)
    axis.scatter(samples["ms"], samples["power_w"], s=9, color="#222222", zorder=3)
    axis.axhline(samples["idle_w"].iloc[0], color="#444444", linewidth=1, linestyle="--", label="idle")
    for kind, colour in _COLOURS.items():
        axis.fill_between([], [], color=colour, alpha=0.4, label=f"{kind} layers")
    axis.set(xlabel="ms", ylabel="W", xlim=(0, windows["end_ms"].max()), ylim=(0, None), title=title)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    return figure


@needs("layers with power")
def mapping(table: pd.DataFrame):
    """Return recovered over true watts of each layer by its number of windows with samples; ``table``: ``study.recovered``."""
    if "true_w" not in table:
        raise MissingError("known true power: the recorded power is measured")
    figure, ((axis,),) = _axes()
    for column, label, colour, marker in (("original_w", "the original's mapping", SERIES[1], "x"),
                                          ("power_w", "samples within the window", SERIES[0], "o")):
        axis.scatter(table["windows"].clip(lower=0.5), table[column] / table["true_w"], s=26, color=colour, marker=marker,
                     label=label)
    axis.axhline(1, color="#444444", linewidth=1)
    axis.set(xscale="log", xlabel="windows that hold a sample", ylabel="recovered / true power",
             title="SYNTHETIC power above idle, a point a layer")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


@needs("layers")
def layers_by_kind(layers: pd.DataFrame):
    """Return runtime over FLOPs and over bytes of every layer, a colour a kind."""
    figure, (panels,) = _axes(2, 4)
    for axis, column, label in ((panels[0], "flops", "FLOPs"), (panels[1], "bytes", "compulsory bytes")):
        for kind, part in layers.groupby("kind"):
            axis.scatter(part[column], part["runtime"], s=18, color=_COLOURS[kind], marker=_MARKERS[kind], alpha=0.7,
                         linewidths=0, label=kind)
        axis.set(xscale="log", yscale="log", xlabel=label)
    panels[0].set_ylabel("ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


@needs("scores")
def errors(scores: pd.DataFrame):
    """Return the mean error of each learner on networks left out, a panel a kind, logarithmic."""
    kinds, models = list(dict.fromkeys(scores["kind"])), list(dict.fromkeys(scores["model"]))[::-1]
    figure, (panels,) = _axes(len(kinds), 3.2)
    for axis, kind in zip(panels, kinds, strict=True):
        part = scores[scores["kind"] == kind].set_index("model").reindex(models)
        axis.barh(range(len(models)), 100 * part["mape"], color=_COLOURS[kind])
        for row, value in enumerate(100 * part["mape"]):
            if np.isfinite(value):
                axis.annotate(f"{value:,.0f}", (value, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=9)
        axis.set(xscale="log", title=f"{kind} (n = {part['n'].max():.0f})", xlim=(5, 500 * part["mape"].max()),
                 yticks=range(len(models)), yticklabels=models if axis is panels[0] else [])
        axis.grid(axis="y", visible=False)
    figure.supxlabel("mean absolute error of the runtime, %", fontsize=11)
    return figure


@needs("networks")
def networks(totals: pd.DataFrame):
    """Return measured and predicted time of each network's layers with the sum of their 90 % intervals."""
    figure, ((axis,),) = _axes(height=1.2 + 0.4 * len(totals))
    place = np.arange(len(totals))
    axis.hlines(place, totals["low_ms"], totals["high_ms"], color="#c9d7ea", linewidth=6, label="sum of 90 % intervals")
    axis.scatter(totals["predicted_ms"], place, color=SERIES[0], zorder=3, label="predicted, its network left out")
    axis.scatter(totals["measured_ms"], place, color=SERIES[1], marker="D", s=26, zorder=3, label="measured")
    axis.set(yticks=place, yticklabels=totals["network"], xscale="log", xlabel="ms", ylim=(len(totals) - 0.5, -0.5))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


@needs("search")
def search(trials: pd.DataFrame):
    """Return the value of each trial of a search and the best until then, a panel a kind; ``trials``: kind, trial, value."""
    kinds = list(dict.fromkeys(trials["kind"]))
    figure, (panels,) = _axes(len(kinds), 3)
    for axis, kind in zip(panels, kinds, strict=True):
        part = trials[trials["kind"] == kind]
        axis.scatter(part["trial"], 100 * part["value"], s=14, color=_COLOURS[kind], label="trial")
        axis.plot(part["trial"], 100 * part["value"].cummin(), color="#444444", linewidth=1.2, label="best")
        axis.set(title=kind, xlabel="trial")
    panels[0].set_ylabel("RMSPE of networks left out, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    return figure
