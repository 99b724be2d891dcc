"""The figures of layer power: the log with its layers, what the mapping recovers, layers by kind, errors, and the search."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import INK, axes, facets, interval_rows, label_rows, legend, panel, points
from lib.report.style import SERIES
from lib.tensorrt.engine import KINDS

_COLOURS = dict(zip([*KINDS.values(), "other"], [SERIES[0], SERIES[2], SERIES[1], "#9a9a9a"], strict=True))


@needs("recorded power")
def power_log(samples: pd.DataFrame, windows: pd.DataFrame, title: str):
    """Return the power of a few passes, each sample a dot, over the layers that ran meanwhile, a colour a kind.

    ``samples``: ms, power_w, idle_w; ``windows``: kind, start_ms, end_ms, see ``tables``.
    """
    figure, axis = panel(9)
    for row in windows.itertuples():
        axis.axvspan(row.start_ms, row.end_ms, color=_COLOURS[row.kind], alpha=0.3, linewidth=0)
    axis.scatter(samples["ms"], samples["power_w"], s=9, color="#222222", zorder=3)
    axis.axhline(samples["idle_w"].iloc[0], color=INK, linewidth=1, linestyle="--", label="idle")
    for kind, colour in _COLOURS.items():
        axis.fill_between([], [], color=colour, alpha=0.4, label=f"{kind} layers")
    axis.set(xlabel="ms", ylabel="W", xlim=(0, windows["end_ms"].max()), ylim=(0, None), title=title)
    legend(figure, 5)
    return figure


@needs("layers with power")
def mapping(table: pd.DataFrame):
    """Return recovered over true watts of each layer by its number of windows with samples; ``table``: ``tables.recovered``."""
    if "true_w" not in table:
        raise MissingError("known true power: the recorded power is measured")
    figure, axis = panel(9)
    for column, label, colour, marker in (("original_w", "the original's mapping", SERIES[1], "x"),
                                          ("power_w", "samples within the window", SERIES[0], "o")):
        axis.scatter(table["windows"].clip(lower=0.5), table[column] / table["true_w"], s=26, color=colour, marker=marker,
                     label=label)
    axis.axhline(1, color=INK, linewidth=1)
    axis.set(xscale="log", xlabel="windows that hold a sample", ylabel="recovered / true power",
             title="SYNTHETIC power above idle, a point a layer")
    legend(figure)
    return figure


@needs("layers")
def layers_by_kind(layers: pd.DataFrame):
    """Return runtime over FLOPs and over bytes of every layer, a colour a kind."""
    figure, panels = axes(2, 9, 4)
    for axis, column, label in zip(panels, ("flops", "bytes"), ("FLOPs", "compulsory bytes"), strict=True):
        points(axis, layers, column, "runtime", "kind", _COLOURS, s=18, alpha=0.7, linewidths=0)
        axis.set(xscale="log", yscale="log", xlabel=label)
    panels[0].set_ylabel("ms")
    legend(figure)
    return figure


@needs("scores")
def errors(scores: pd.DataFrame):
    """Return the mean error of each learner on networks left out, a panel a kind, logarithmic."""
    models = scores["model"].unique()
    figure, panels = facets(scores, "kind", 9 / scores["kind"].nunique(), 3.2, sharey=True)
    for axis, kind, part in panels:
        percent = 100 * part.set_index("model")["mape"].reindex(models)
        bars = axis.barh(range(len(models)), percent, color=_COLOURS[kind])
        axis.bar_label(bars, [f"{value:,.0f}" if np.isfinite(value) else "" for value in percent], padding=3, fontsize=9)
        axis.set(xscale="log", title=f"{kind} (n = {part['n'].max():.0f})", xlim=(5, 5 * percent.max()))
        label_rows(axis, models, 11)
    figure.supxlabel("mean absolute error of the runtime, %", fontsize=11)
    return figure


@needs("networks")
def networks(totals: pd.DataFrame):
    """Return measured and predicted time of each network's layers with the sum of their 90 % intervals."""
    return interval_rows(totals, "network", "ms", span="sum of 90 % intervals",
                         predicted_ms={"color": SERIES[0], "label": "predicted, its network left out"},
                         measured_ms={"color": SERIES[1], "marker": "D", "s": 26, "label": "measured"})


@needs("search")
def search(trials: pd.DataFrame):
    """Return the value of each trial of a search and the best until then, a panel a kind; ``trials``: kind, trial, value."""
    figure, panels = facets(trials, "kind", 9 / trials["kind"].nunique(), 3)
    for axis, kind, part in panels:
        axis.scatter(part["trial"], 100 * part["value"], s=14, color=_COLOURS[kind], label="trial")
        axis.plot(part["trial"], 100 * part["value"].cummin(), color=INK, linewidth=1.2, label="best")
        axis.set_xlabel("trial")
    figure.supylabel("RMSPE of networks left out, %", fontsize=10)
    legend(figure)
    return figure
