"""The figures of the scheduler: policies against the bound, load, wrong predictions, trade-offs, contention, a real run."""

import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import axes, equality, groups, label_rows
from lib.report.style import SERIES
from lib.schedule.contention import ALONE

_OURS = SERIES[1]
_OTHERS = ("#2b6cb0", "#2f855a", "#805ad5", "#b7791f", "#d53f8c", "#4a5568")


@needs("schedules")
def against_bound(table: pd.DataFrame, most: float = 2.5):
    """Return makespan over bound by policy, a panel a mix; columns ``mix, policy, ratio``. Bars beyond ``most`` are cut."""
    mixes, names = table["mix"].unique(), table["policy"].unique()
    figure, panels = axes(len(mixes), min(10, 2.6 * len(mixes) + 1), 0.9 + 0.27 * len(names), sharey=True)
    colours = [_OURS if name == "hybrid" else SERIES[0] for name in names]
    for axis, mix in zip(panels, mixes, strict=True):
        ratios = table[table["mix"] == mix].groupby("policy")["ratio"].agg(["mean", "min", "max"]).reindex(names)
        cut = ratios.clip(upper=most)
        bars = axis.barh(range(len(names)), cut["mean"] - 1, left=1, color=colours,
                         xerr=(cut["mean"] - cut["min"], cut["max"] - cut["mean"]), ecolor="#333333")
        axis.bar_label(bars, [f"{value:.3f}" if value < 9.995 else f"{value:.1f}" for value in ratios["mean"]], padding=3,
                       fontsize=8)
        axis.set(xlim=(1, most * 1.25))
        axis.set_title(mix, fontsize=10)
        label_rows(axis, names, 11)
    figure.supxlabel("makespan / lower bound (mean of seeds; line: range)", fontsize=10)
    return figure


@needs("results")
def lines(table: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str, by: str = "policy", log: str = ""):
    """Return ``y`` against ``x``, a line for each ``by``, its mean over seeds with the range; ``log`` names log axes."""
    figure, (axis,) = axes(width=7.5, height=3.4)
    for number, (name, part) in enumerate(table.groupby(by, sort=False)):
        band = part.groupby(x)[y].agg(["mean", "min", "max"])
        colour = _OURS if name == "hybrid" else _OTHERS[number % len(_OTHERS)]
        axis.fill_between(band.index, band["min"], band["max"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(band.index, band["mean"], "o-", color=colour, label=name, markersize=4)
    axis.set(xlabel=xlabel, ylabel=ylabel, **{f"{letter}scale": "log" for letter in log})
    axis.legend(fontsize=9, ncols=2)
    return figure


@needs("schedules")
def pareto(table: pd.DataFrame):
    """Return energy against makespan: ``hybrid`` for weights between them, filled on the front, and baselines beside."""
    figure, (axis,) = axes(width=6.5)
    table = table.assign(energy_mj=table["energy_j"] / 1e6)
    ours, front = table[table["policy"] == "hybrid"], table[table["front"]].sort_values("makespan_s")
    axis.step(front["makespan_s"], front["energy_mj"], where="post", color="#999999", linewidth=1, label="front")
    for points, face, label in ((ours[ours["front"]], _OURS, "hybrid, on the front"),
                                (ours[~ours["front"]], "none", "hybrid, not on it")):
        axis.scatter(points["makespan_s"], points["energy_mj"], facecolors=face, edgecolors=_OURS, zorder=3, s=36,
                     label=label if len(points) else None)
    for _, points, options in groups(table[table["policy"] != "hybrid"], "policy"):
        axis.scatter(points["makespan_s"], points["energy_mj"], **(options | {"color": SERIES[0]}))
    axis.set(xlabel="makespan, s", ylabel="energy, MJ", xscale="log")
    axis.legend(fontsize=8)
    return figure


@needs("measured pairs")
def contention(table: pd.DataFrame):
    """Return the slowdown of each workload (rows) beside each other (columns), a panel a pair of device types."""
    import seaborn as sns

    pairs = table[table["beside"] != ALONE[0]]
    if pairs.empty:
        raise MissingError("measured pairs")
    parts = pairs.groupby(["device_type", "beside_type"], sort=False)
    names = sorted(set(pairs["workload_id"]))
    figure, panels = axes(len(parts), 1.6 + (1.0 + 0.55 * len(names)) * len(parts), 1.2 + 0.42 * len(names))
    for axis, ((slowed, other), part) in zip(panels, parts, strict=True):
        wide = part.pivot_table(index="workload_id", columns="beside", values="slowdown").reindex(index=names, columns=names)
        sns.heatmap(wide, vmin=1, vmax=max(1.2, pairs["slowdown"].max()), cmap="YlOrRd", annot=True, fmt=".2f", cbar=False,
                    ax=axis, annot_kws={"fontsize": 8})
        axis.set(xlabel=f"beside (on {other})", ylabel=f"slowed down (on {slowed})")
        axis.tick_params(axis="y", rotation=0)
    return figure


@needs("finished jobs")
def parity(table: pd.DataFrame):
    """Return actual over predicted seconds of jobs of a real run; columns ``job_class, predicted_s, actual_s``."""
    figure, (axis,) = axes(width=4.6)
    equality(axis, table[["predicted_s", "actual_s"]].to_numpy(), "linear")
    for _, part, options in groups(table.sort_values("job_class"), "job_class"):
        axis.scatter(part["predicted_s"], part["actual_s"], s=25, **options)
    axis.set(xlabel="predicted, s", ylabel="actual, s")
    axis.legend(fontsize=8, ncols=2)
    return figure
