"""The figures of the scheduler: policies against the bound, load, wrong predictions, trade-offs, a real run."""

from itertools import cycle

import pandas as pd

from lib.missing import needs
from lib.report.plots import equality, facets, label_rows, panel, points
from lib.report.style import SERIES

_OURS, _MOST = SERIES[1], 2.5
_OTHERS = ("#2b6cb0", "#2f855a", "#805ad5", "#b7791f", "#d53f8c", "#4a5568")


@needs("schedules")
def against_bound(table: pd.DataFrame):
    """Return makespan over bound by policy, a panel a mix; columns ``mix, policy, ratio``. Bars beyond _MOST are cut."""
    names, mixes = table["policy"].unique(), table["mix"].nunique()
    figure, panels = facets(table, "mix", min(10, 2.6 * mixes + 1) / mixes, 0.9 + 0.27 * len(names), sharey=True)
    for axis, _, part in panels:
        ratios = part.groupby("policy")["ratio"].agg(["mean", "min", "max"]).reindex(names)
        cut = ratios.clip(upper=_MOST)
        bars = axis.barh(range(len(names)), cut["mean"] - 1, left=1, ecolor="#333333",
                         color=[_OURS if name == "hybrid" else SERIES[0] for name in names],
                         xerr=(cut["mean"] - cut["min"], cut["max"] - cut["mean"]))
        texts = ratios["mean"].map(lambda value: f"{value:.3f}" if value < 9.995 else f"{value:.1f}", na_action="ignore")
        axis.bar_label(bars, texts.fillna(""), padding=3, fontsize=8)
        axis.set_xlim(1, _MOST * 1.25)
        label_rows(axis, names, 11)
    figure.supxlabel("makespan / lower bound (mean of seeds; line: range)", fontsize=10)
    return figure


@needs("results")
def lines(table: pd.DataFrame, x: str, y: str, xlabel: str, ylabel: str, by: str = "policy", log: str = ""):
    """Return ``y`` against ``x``, a line for each ``by``, its mean over seeds with the range; ``log`` names log axes."""
    import seaborn as sns

    names = table[by].unique()
    colours = dict(zip(names, cycle(_OTHERS), strict=False)) | ({"hybrid": _OURS} if "hybrid" in names else {})
    figure, axis = panel(7.5, 3.4)
    sns.lineplot(table, x=x, y=y, hue=by, palette=colours, errorbar=("pi", 100), marker="o", markersize=4, markeredgewidth=0,
                 err_kws={"alpha": 0.15, "linewidth": 0}, ax=axis)
    axis.set(xlabel=xlabel, ylabel=ylabel, **{f"{letter}scale": "log" for letter in log})
    axis.legend(fontsize=9, ncols=2)
    return figure


@needs("schedules")
def pareto(table: pd.DataFrame):
    """Return energy against makespan: ``hybrid`` for weights between them, filled on the front, and baselines beside."""
    figure, axis = panel(6.5)
    table = table.eval("energy_mj = energy_j / 1e6")
    ours, front = table.query("policy == 'hybrid'"), table.query("front").sort_values("makespan_s")
    axis.step(front["makespan_s"], front["energy_mj"], where="post", color="#999999", linewidth=1, label="front")
    for part, face, label in ((ours[ours["front"]], _OURS, "hybrid, on the front"),
                              (ours[~ours["front"]], "none", "hybrid, not on it")):
        axis.scatter(part["makespan_s"], part["energy_mj"], facecolors=face, edgecolors=_OURS, zorder=3, s=36,
                     label=label if len(part) else None)
    points(axis, table.query("policy != 'hybrid'"), "makespan_s", "energy_mj", "policy", color=SERIES[0])
    axis.set(xlabel="makespan, s", ylabel="energy, MJ", xscale="log")
    axis.legend(fontsize=8)
    return figure


@needs("finished jobs")
def parity(table: pd.DataFrame):
    """Return actual over predicted seconds of jobs of a real run; columns ``job_class, predicted_s, actual_s``."""
    figure, axis = panel(4.6)
    equality(axis, table, "predicted_s", "actual_s", "linear")
    points(axis, table.sort_values("job_class"), "predicted_s", "actual_s", "job_class", s=25)
    axis.set(xlabel="predicted, s", ylabel="actual, s")
    axis.legend(fontsize=8, ncols=2)
    return figure
