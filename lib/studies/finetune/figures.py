"""The figures of a fine-tune: how it learns, and its rate."""

import pandas as pd

from lib.missing import MissingError, needs
from lib.report.style import SERIES, axes

_STEP, _TRAIN, _VAL = "#c9d7ea", SERIES[0], SERIES[1]


def _ends(history: pd.DataFrame, axis) -> None:
    """Mark the last batch of each epoch but the last."""
    steps = history[history["name"] == "train/step_loss"]
    for last in steps.groupby("epoch")["step"].max().iloc[:-1]:
        axis.axvline(last + 1.5, color="#888888", linewidth=1, linestyle=":", zorder=0)


@needs("reported steps")
def learning(history: pd.DataFrame):
    """Return loss and accuracy over batches: of each step, of training epochs, and of validation; ``history`` is its table."""
    figure, (panels,) = axes(2, 9, 3.6)
    for axis, quantity, what in ((panels[0], "loss", "loss"), (panels[1], "acc@1", "accuracy (micro)")):
        drawn = False
        for name, label, style in ((f"train/step_{quantity}", "training step", {"color": _STEP, "linewidth": 1.2}),
                                   (f"train/epoch_{quantity}", "training epoch", {"color": _TRAIN, "marker": "o"}),
                                   (f"val/{quantity}", "validation", {"color": _VAL, "marker": "D"})):
            part = history[(history["name"] == name) & history["value"].notna()].sort_values("step")
            if len(part):
                axis.plot(part["step"] + 1, part["value"], markersize=5, label=label, **style)
                drawn = True
        if not drawn:
            raise MissingError(f"{quantity} of any step or epoch")
        _ends(history, axis)
        axis.set(xlabel="batches", ylabel=what)
    panels[1].set_ylim(0, 1.02)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


@needs("predictions")
def predictions(table: pd.DataFrame):
    """Return the predicted step on each device with its interval, and the measured one, logarithmic."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, ((axis,),) = axes(height=1.2 + 0.34 * len(table))
    rows = range(len(table))
    axis.hlines(rows, table["low_ms"], table["high_ms"], color="#c9d7ea", linewidth=6, label="nominal 90 % interval")
    axis.scatter(table["predicted_ms"], rows, color=SERIES[0], zorder=3, label="predicted")
    axis.scatter(table["measured_ms"], rows, color=SERIES[1], marker="|", s=260, linewidths=2.5,
                 zorder=4, label="measured")
    axis.set(xscale="log", xlabel="ms, a step with all of its parts", yticks=rows, yticklabels=table["device"],
             ylim=(len(table) - 0.5, -0.5))
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure
