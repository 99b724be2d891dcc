"""The figures of operator sweeps: latency over work, achieved rates by family, and how well the rounds agree."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.style import SERIES

_VERDICTS = {"stable": SERIES[2], "noisy": SERIES[4], "unusable": SERIES[1]}


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
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
    for colour, (group, part) in zip(SERIES, table.groupby(_groups(table)), strict=False):
        for axis, column in ((left, "flops"), (right, "bytes")):
            some = part[part[column] > 0]
            axis.scatter(some[column], some["latency_ms"], s=16, color=colour, linewidths=0, alpha=0.7, label=group)
    left.set(xscale="log", yscale="log", xlabel="FLOPs of one call", ylabel="latency, ms")
    right.set(xscale="log", xlabel="compulsory bytes of one call")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), fontsize=9, markerscale=1.6)
    return figure


@needs("usable configurations")
def rates(table: pd.DataFrame):
    """Return the achieved GFLOP/s of each group as boxes with its points, best group first."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    named = table[table["gflops"] > 0].assign(group=_groups(table, most=20) if len(set(table["op"])) > 1 else _groups(table))
    if named.empty:
        raise MissingError("configurations that compute")
    order = named.groupby("group")["gflops"].median().sort_values(ascending=False).index
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.36 * len(order)))
    sns.boxplot(named, x="gflops", y="group", order=order, color="#dbe6f4", fliersize=0, linewidth=1, ax=axis, log_scale=True)
    sns.stripplot(named, x="gflops", y="group", order=order, color=SERIES[0], size=2.5, alpha=0.5, ax=axis, log_scale=True)
    axis.set(xlabel="GFLOP/s", ylabel="")
    axis.grid(axis="y", visible=False)
    return figure


@needs("measured configurations")
def agreement(table: pd.DataFrame):
    """Return the spread of the rounds (IQR in % of the median) over latency, coloured by verdict, and its distribution."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    spread = np.maximum(table["latency_iqr_ms"] / table["latency_ms"] * 100, 0.05)
    for verdict, colour in _VERDICTS.items():
        chosen = table["verdict"] == verdict
        left.scatter(table.loc[chosen, "latency_ms"], spread[chosen], s=14, color=colour, alpha=0.7, linewidths=0,
                     label=f"{verdict} ({int(chosen.sum())})")
    left.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="IQR of the rounds, % of median")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, markerscale=1.6)
    shares = np.arange(1, len(spread) + 1) / len(spread) * 100
    right.step(np.sort(spread), shares, where="post")
    for level in (50, 90):
        value = float(np.percentile(spread, level))
        right.plot([value], [level], "o", color=SERIES[1])
        right.annotate(f"  {level} %: {value:.1f} %", (value, level), va="top", fontsize=9)
    right.set(xscale="log", xlabel="IQR of the rounds, % of median", ylabel="% of configurations", ylim=(0, 101))
    return figure
