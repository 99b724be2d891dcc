"""The figures of the scheduler: Gantt charts, policies against the bound, load, wrong predictions, trade-offs, contention."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.gantt import COLOURS
from lib.report.style import SERIES

_OURS = SERIES[1]


@needs("schedules")
def against_bound(table: pd.DataFrame, most: float = 2.5):
    """Return makespan over bound by policy, a panel a mix; columns ``mix, policy, ratio``. Bars beyond ``most`` are cut."""
    import matplotlib.pyplot as plt

    mixes, names = list(dict.fromkeys(table["mix"])), list(dict.fromkeys(table["policy"]))
    figure, axes = plt.subplots(1, len(mixes), figsize=(min(10, 2.6 * len(mixes) + 1), 0.9 + 0.27 * len(names)), sharey=True,
                                squeeze=False)
    for axis, mix in zip(axes.flat, mixes, strict=True):
        part = table[table["mix"] == mix].groupby("policy", sort=False)["ratio"].agg(["mean", "min", "max"]).reindex(names)
        rows = np.arange(len(names))
        colours = [_OURS if name == "hybrid" else SERIES[0] for name in names]
        axis.barh(rows, part["mean"].clip(upper=most) - 1, left=1, color=colours)
        axis.hlines(rows, part["min"].clip(upper=most), part["max"].clip(upper=most), color="#333333", linewidth=1)
        for row, value, end in zip(rows, part["mean"], part["max"].clip(upper=most), strict=True):
            axis.annotate(f"{value:.3f}" if value < 9.995 else f"{value:.1f}", (end, row), xytext=(3, 0),
                          textcoords="offset points", va="center", fontsize=8)
        axis.set(yticks=rows, yticklabels=names, xlim=(1, most * 1.25))
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
        band = part.groupby(x)[y].agg(["mean", "min", "max"])
        colour = _OURS if name == "hybrid" else ("#2b6cb0", "#2f855a", "#805ad5", "#b7791f", "#d53f8c", "#4a5568")[number % 6]
        axis.fill_between(band.index, band["min"], band["max"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(band.index, band["mean"], "o-", color=colour, label=name, markersize=4)
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
    for points, face in ((ours[ours["front"]], _OURS), (ours[~ours["front"]], "none")):
        axis.scatter(points["makespan_s"], points["energy_j"] / 1e6, facecolors=face, edgecolors=_OURS, zorder=3, s=36,
                     label="hybrid, on the front" if face != "none" else "hybrid, not on it" if len(points) else None)
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
    """Return actual over predicted seconds of jobs of a real run; columns ``job_class, predicted_s, actual_s``."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(4.6, 3.6))
    span = np.array([table[["predicted_s", "actual_s"]].to_numpy().min() * 0.9, table[["predicted_s", "actual_s"]].max().max()])
    axis.plot(span, span, color="#555555", linewidth=1)
    axis.fill_between(span, span * 0.9, span * 1.1, color="#dddddd", alpha=0.6, linewidth=0)
    for number, (job_class, part) in enumerate(table.groupby("job_class", sort=True)):
        axis.plot(part["predicted_s"], part["actual_s"], "o", color=COLOURS[number % len(COLOURS)], label=job_class,
                  markersize=5)
    axis.set(xlabel="predicted, s", ylabel="actual, s")
    axis.legend(fontsize=8, ncols=2)
    return figure
