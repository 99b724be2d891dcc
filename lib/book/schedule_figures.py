"""The figures of the scheduler: Gantt charts, policies against the bound, load, wrong predictions, trade-offs, contention."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.book.figures import SERIES
from lib.missing import MissingError, needs

_WRONG = {"retried": "#b22222", "failed": "#b22222", "moved": "#c9a227", "lost": "#7a7a7a"}
_MOST_DEVICES, _MOST_KINDS = 24, 12
_KINDS = (*SERIES, "#319795", "#744210", "#4a5568", "#97266d", "#276749", "#2c5282")
_OURS = SERIES[1]


@needs("attempts")
def gantt(schedules: Mapping[str, pd.DataFrame], kinds: Mapping[str, str] | None = None, bound_s: float | None = None):
    """Return what ran where and when, a panel a named schedule (table ``schedule``) on one time axis.

    ``kinds`` gives each job a name to colour by; ``bound_s`` is drawn as a line. Attempts that did not end well are hatched.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    every = pd.concat(list(schedules.values()))
    if every.empty:
        raise MissingError("attempts")
    devices = sorted(set(every["device"]), key=_natural)[:_MOST_DEVICES]
    kinds = kinds or {}
    names = list(dict.fromkeys(kinds[job] for job in every["job_id"] if job in kinds))
    row = min(0.3, 0.16 + 0.3 / len(devices))  # many devices: thinner bars
    figure, axes = plt.subplots(len(schedules), 1, sharex=True, squeeze=False,
                                figsize=(8.5, 0.7 + len(schedules) * (0.5 + row * len(devices))))
    for axis, (title, schedule) in zip(axes.flat, schedules.items(), strict=True):
        for row in schedule[schedule["device"].isin(devices)].itertuples():
            _bar(axis, row, devices.index(row.device), names.index(kinds[row.job_id]) if row.job_id in kinds else 0)
        if bound_s is not None:
            axis.axvline(bound_s, color="#333333", linestyle="--", linewidth=1)
        axis.set(yticks=range(len(devices)), ylim=(len(devices) - 0.4, -0.6))
        axis.set_yticklabels(devices, fontsize=7 if len(devices) > 8 else 9)
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", visible=False)
    axes.flat[-1].set_xlabel("seconds" + ("" if bound_s is None else " (dashed: no schedule ends before)"))
    marks = [Patch(color=_KINDS[number % len(_KINDS)], label=name) for number, name in enumerate(names[:_MOST_KINDS])]
    marks += [Patch(facecolor=_WRONG[status], hatch="////", edgecolor="white", label=status)
              for status in dict.fromkeys(every["status"]) if status in _WRONG]
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts cpu[10] after cpu[9]."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _bar(axis, row, place: int, kind: int) -> None:
    wrong = row.status in _WRONG
    axis.barh(place, row.end_s - row.start_s, left=row.start_s, height=0.8, linewidth=0.4, edgecolor="white",
              color=_WRONG[row.status] if wrong else _KINDS[kind % len(_KINDS)], hatch="////" if wrong else None)


@needs("schedules")
def against_bound(table: pd.DataFrame, most: float = 2.5):
    """Return makespan over bound by policy, a panel a mix; columns ``mix, policy, ratio``. Bars beyond ``most`` are cut."""
    import matplotlib.pyplot as plt

    mixes, names = list(dict.fromkeys(table["mix"])), list(dict.fromkeys(table["policy"]))
    figure, axes = plt.subplots(1, len(mixes), figsize=(min(10, 2.6 * len(mixes) + 1), 0.9 + 0.27 * len(names)), sharey=True,
                                squeeze=False)
    for axis, mix in zip(axes.flat, mixes, strict=True):
        part = table[table["mix"] == mix].groupby("policy", sort=False)["ratio"].agg(["mean", "min", "max"]).reindex(names)
        places = np.arange(len(names))
        axis.barh(places, part["mean"] - 1, left=1, color=[_OURS if name == "hybrid" else SERIES[0] for name in names])
        axis.hlines(places, part["min"], part["max"].clip(upper=most), color="#333333", linewidth=1)
        for place, value in zip(places, part["mean"], strict=True):
            axis.annotate(f"{value:.3f}" if value < 9.995 else f"{value:.1f}", (min(value, most), place), xytext=(3, 0),
                          textcoords="offset points", va="center", fontsize=8)
        axis.set(yticks=places, yticklabels=names, xlim=(1, most * 1.2))
        axis.set_title(mix, fontsize=10)
        axis.grid(axis="y", visible=False)
    axes.flat[0].invert_yaxis()
    figure.supxlabel("makespan / lower bound (mean of seeds; line: range)", fontsize=10)
    return figure


@needs("results")
def lines(table: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str, by: str = "policy", log: str = ""):
    """Return ``y`` against ``x``, a line for each ``by``, its mean over seeds with the range; ``log`` names log axes."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 3.4))
    for number, (name, part) in enumerate(table.groupby(by, sort=False)):
        found = part.groupby(x)[y].agg(["mean", "min", "max"])
        colour = _OURS if name == "hybrid" else ("#2b6cb0", "#2f855a", "#805ad5", "#b7791f", "#d53f8c", "#4a5568")[number % 6]
        axis.fill_between(found.index, found["min"], found["max"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(found.index, found["mean"], "o-", color=colour, label=name, markersize=4)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    for one in log:
        _logarithmic(axis, one)
    axis.legend(fontsize=9, ncols=2)
    return figure


def _logarithmic(axis, which: str) -> None:
    """Make an axis (x or y) logarithmic, with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set(**{f"{which}scale": "log"})
    one = axis.xaxis if which == "x" else axis.yaxis
    one.set_major_locator(LogLocator(subs=(1, 2, 5)))
    one.set_major_formatter("{x:,.10g}")
    one.set_minor_formatter(NullFormatter())


@needs("schedules")
def pareto(table: pd.DataFrame):
    """Return energy against makespan: ``hybrid`` for weights between them, filled on the front, and baselines beside."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.6))
    ours = table[table["policy"] == "hybrid"]
    front = table[table["front"]].sort_values("makespan_s")
    axis.step(front["makespan_s"], front["energy_j"] / 1e6, where="post", color="#999999", linewidth=1, label="front")
    for mine, face in ((ours[ours["front"]], _OURS), (ours[~ours["front"]], "none")):
        axis.scatter(mine["makespan_s"], mine["energy_j"] / 1e6, facecolors=face, edgecolors=_OURS, zorder=3, s=36,
                     label="hybrid, on the front" if face != "none" else "hybrid, not on it" if len(mine) else None)
    for mark, row in zip("sv^D*", table[table["policy"] != "hybrid"].itertuples(), strict=False):
        axis.plot(row.makespan_s, row.energy_j / 1e6, mark, color=SERIES[0], label=row.policy, linestyle="")
    axis.set(xlabel="makespan, s", ylabel="energy, MJ")
    _logarithmic(axis, "x")
    axis.legend(fontsize=8)
    return figure


@needs("measured pairs")
def contention(table: pd.DataFrame):
    """Return the slowdown of each workload (rows) beside each other (columns), a panel a pair of device types."""
    import matplotlib.pyplot as plt

    pairs = table[table["beside"] != "nothing"]
    if pairs.empty:
        raise MissingError("measured pairs")
    groups = list(pairs.groupby(["device_type", "beside_type"], sort=False))
    names = sorted(set(pairs["workload_id"]))
    size = (1.6 + (1.0 + 0.55 * len(names)) * len(groups), 1.2 + 0.42 * len(names))
    figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False)
    most = max(1.2, float(pairs["slowdown"].max()))
    for axis, ((one, other), part) in zip(axes.flat, groups, strict=True):
        wide = part.pivot_table(index="workload_id", columns="beside", values="slowdown").reindex(index=names, columns=names)
        axis.imshow(wide, vmin=1, vmax=most, cmap="YlOrRd", aspect="auto")
        for row, column in np.argwhere(np.isfinite(wide.to_numpy())):
            value = wide.iloc[row, column]
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8,
                      color="white" if value > 1 + 0.7 * (most - 1) else "#222222")
        axis.set(xticks=range(len(names)), xticklabels=names, yticks=range(len(names)), yticklabels=names,
                 xlabel=f"beside (on {other})", ylabel=f"slowed down (on {one})")
        axis.grid(visible=False)
    return figure


@needs("finished jobs")
def parity(table: pd.DataFrame):
    """Return actual over predicted seconds of jobs of a real run; columns ``kind, predicted_s, actual_s``."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(4.6, 3.6))
    span = np.array([table[["predicted_s", "actual_s"]].to_numpy().min() * 0.9, table[["predicted_s", "actual_s"]].max().max()])
    axis.plot(span, span, color="#555555", linewidth=1)
    axis.fill_between(span, span * 0.9, span * 1.1, color="#dddddd", alpha=0.6, linewidth=0)
    for number, (kind, part) in enumerate(table.groupby("kind", sort=True)):
        axis.plot(part["predicted_s"], part["actual_s"], "o", color=_KINDS[number % len(_KINDS)], label=kind, markersize=5)
    axis.set(xlabel="predicted, s", ylabel="actual, s")
    axis.legend(fontsize=8, ncols=2)
    return figure
