"""The figures of the scheduler: Gantt charts, policies against the bound, and how they bear load and wrong predictions."""

import numpy as np
import pandas as pd

from lib.book.figures import SERIES

_STATUS = {"retried": "#b22222", "failed": "#b22222", "moved": "#c9a227", "lost": "#7a7a7a"}
_MOST_DEVICES = 24


def gantt(schedule: pd.DataFrame, kinds: dict[str, str] | None = None, bound_s: float | None = None):
    """Return what ran where and when; ``kinds`` gives each job a name to colour by, ``bound_s`` is drawn as a line.

    Attempts that did not end well are hatched.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    devices = sorted(set(schedule["device"]))[:_MOST_DEVICES]
    names = list(dict.fromkeys((kinds or {}).values()))
    figure, axis = plt.subplots(figsize=(8, 1.0 + 0.32 * len(devices)))
    for row in schedule[schedule["device"].isin(devices)].itertuples():
        place = devices.index(row.device)
        colour = SERIES[names.index(kinds[row.job_id]) % len(SERIES)] if kinds else SERIES[0]
        wrong = row.status in _STATUS
        axis.barh(place, row.end_s - row.start_s, left=row.start_s, height=0.8, color=_STATUS.get(row.status, colour),
                  hatch="///" if wrong else None, edgecolor="white", linewidth=0.4)
    if bound_s is not None:
        axis.axvline(bound_s, color="#333333", linestyle="--", linewidth=1, label="lower bound")
    axis.set(yticks=range(len(devices)), yticklabels=devices, xlabel="seconds", ylim=(-0.6, len(devices) - 0.4))
    axis.invert_yaxis()
    marks = [Patch(color=SERIES[number % len(SERIES)], label=name) for number, name in enumerate(names[:12])]
    marks += [Patch(facecolor=_STATUS[status], hatch="///", label=status) for status in dict.fromkeys(schedule["status"])
              if status in _STATUS]
    if marks:
        figure.legend(handles=marks, loc="outside upper center", ncols=6, fontsize=8)
    return figure


def against_bound(table: pd.DataFrame):
    """Return makespan over bound by policy, a panel a mix; columns ``mix, policy, ratio``. The bound is 1."""
    import matplotlib.pyplot as plt

    mixes, names = list(dict.fromkeys(table["mix"])), list(dict.fromkeys(table["policy"]))
    figure, axes = plt.subplots(1, len(mixes), figsize=(min(10, 2.6 * len(mixes) + 1), 0.8 + 0.3 * len(names)), sharey=True,
                                squeeze=False)
    for axis, mix in zip(axes.flat, mixes, strict=True):
        part = table[table["mix"] == mix].groupby("policy", sort=False)["ratio"].agg(["mean", "min", "max"]).reindex(names)
        places = np.arange(len(names))
        axis.barh(places, part["mean"] - 1, left=1, color=[SERIES[1] if name == "hybrid" else SERIES[0] for name in names])
        axis.hlines(places, part["min"], part["max"], color="#333333", linewidth=1)
        for place, value in zip(places, part["mean"], strict=True):
            axis.annotate(f"{value:.3f}", (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set(title=mix, yticks=places, yticklabels=names, xlim=(1, float(part["max"].max()) * 1.15))
        axis.invert_yaxis()
    figure.supxlabel("makespan / lower bound", fontsize=10)
    return figure


def lines(table: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str, log: bool = False):
    """Return ``y`` against ``x``, a line a policy, its mean over seeds with the range."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3.4))
    for number, (name, part) in enumerate(table.groupby("policy", sort=False)):
        found = part.groupby(x)[y].agg(["mean", "min", "max"])
        colour = SERIES[number % len(SERIES)]
        axis.fill_between(found.index, found["min"], found["max"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(found.index, found["mean"], "o-", color=colour, label=name, markersize=4)
    axis.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    axis.legend(fontsize=9, ncols=2)
    return figure
