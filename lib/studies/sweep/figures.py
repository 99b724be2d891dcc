"""The figures of operator sweeps: latency over work, achieved rates by family, and how well the rounds agree."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import axes, groups, legend
from lib.report.style import SERIES
from lib.studies.sweep.tables import spread

_VERDICTS = {"stable": SERIES[2], "noisy": SERIES[4], "unusable": SERIES[1]}
_LEAST_SPREAD = 0.05  # %, on a logarithmic axis


def _groups(table: pd.DataFrame, most: int = 6) -> pd.Series:
    """Return what colours the points: the kind of convolution where there are only those, else the family.

    Families beyond the ``most`` commonest are shown together.
    """
    if set(table["op"]) == {"conv2d"}:
        kinds = np.select([table["groups"] == 1, table["groups"] == table["in_channels"]], ["dense", "depthwise"], "grouped")
        return pd.Series(kinds, index=table.index) + ", " + table["pass"]
    common = table["op"].value_counts().index[:most - 1]
    return table["op"].where(table["op"].isin(common), "others")


@needs("usable configurations")
def latency_over_work(table: pd.DataFrame):
    """Return two panels: latency over FLOPs (operators that compute) and over compulsory bytes, both logarithmic."""
    figure, (left, right) = axes(2, 9, 4, sharey=True)
    for axis, column in ((right, "bytes"), (left, "flops")):
        for _, part, options in groups(table.sort_values("op"), _groups(table)):
            some = part[part[column] > 0]
            axis.scatter(some[column], some["latency_ms"], s=16, linewidths=0, alpha=0.7, **options)
    left.set(xscale="log", yscale="log", xlabel="FLOPs of one call", ylabel="latency, ms")
    right.set(xscale="log", xlabel="compulsory bytes of one call")
    legend(figure, 6, markerscale=1.6)
    return figure


@needs("usable configurations")
def rates(table: pd.DataFrame):
    """Return the achieved GFLOP/s of each group as boxes with its points, best group first."""
    import seaborn as sns

    named = table[table["gflops"] > 0].assign(group=_groups(table, most=20) if len(set(table["op"])) > 1 else _groups(table))
    if named.empty:
        raise MissingError("configurations that compute")
    order = named.groupby("group")["gflops"].median().sort_values(ascending=False).index
    figure, (axis,) = axes(height=1.2 + 0.36 * len(order))
    common = {"data": named, "x": "gflops", "y": "group", "order": order, "ax": axis, "log_scale": True}
    sns.boxplot(**common, color="#dbe6f4", fliersize=0, linewidth=1)
    sns.stripplot(**common, color=SERIES[0], size=2.5, alpha=0.5)
    axis.set(xlabel="GFLOP/s", ylabel="")
    axis.grid(axis="y", visible=False)
    return figure


@needs("measured configurations")
def agreement(table: pd.DataFrame):
    """Return the spread of the rounds (IQR in % of the median) over latency, coloured by verdict, and its distribution."""
    figure, (left, right) = axes(2, 9, 3.4)
    percent = np.maximum(spread(table), _LEAST_SPREAD)
    for verdict, colour in _VERDICTS.items():
        chosen = table["verdict"] == verdict
        left.scatter(table.loc[chosen, "latency_ms"], percent[chosen], s=14, color=colour, alpha=0.7, linewidths=0,
                     label=f"{verdict} ({int(chosen.sum())})")
    left.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="IQR of the rounds, % of median")
    legend(figure, 3, markerscale=1.6)
    right.ecdf(percent)
    for level in (0.5, 0.9):
        value = percent.quantile(level)
        right.plot([value], [level], "o", color=SERIES[1])
        right.annotate(f"  {level:.0%}: {value:.1f} %", (value, level), va="top", fontsize=9)
    right.yaxis.set_major_formatter("{x:.0%}")
    right.set(xscale="log", xlabel="IQR of the rounds, % of median", ylabel="configurations")
    return figure
