"""The figures of a fine-tune: how it learns, and its predicted step."""

import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import PALE, axes, interval_rows, legend
from lib.report.style import SERIES

_CURVES = {"train/step_{}": {"label": "training step", "color": PALE, "linewidth": 1.2},
           "train/epoch_{}": {"label": "training epoch", "color": SERIES[0], "marker": "o"},
           "val/{}": {"label": "validation", "color": SERIES[1], "marker": "D"}}


@needs("reported steps")
def learning(history: pd.DataFrame):
    """Return loss and accuracy over batches: of each step, of training epochs, and of validation; ``history`` is its table.

    Dotted lines end an epoch.
    """
    figure, panels = axes(2, 9, 3.6)
    ends = history.query("name == 'train/step_loss'").groupby("epoch")["step"].max()
    for axis, quantity, title in zip(panels, ("loss", "acc@1"), ("loss", "accuracy (micro)"), strict=True):
        for name, style in _CURVES.items():
            part = history.query(f"name == '{name.format(quantity)}'").dropna(subset="value").sort_values("step")
            if len(part):
                axis.plot(part["step"] + 1, part["value"], markersize=5, **style)
        if not axis.lines:
            raise MissingError(f"{quantity} of any step or epoch")
        for last in ends.iloc[:-1]:
            axis.axvline(last + 1.5, color="#888888", linewidth=1, linestyle=":", zorder=0)
        axis.set(xlabel="batches", ylabel=title)
    panels[1].set_ylim(0, 1.02)
    legend(figure)
    return figure


@needs("predictions")
def predictions(table: pd.DataFrame):
    """Return the predicted step on each device with its interval, and the measured one, logarithmic."""
    return interval_rows(table, "device", "ms, a step with all of its parts", span="nominal 90 % interval",
                         predicted_ms={"color": SERIES[0], "label": "predicted"},
                         measured_ms={"color": SERIES[1], "marker": "|", "s": 260, "linewidths": 2.5, "label": "measured"})
