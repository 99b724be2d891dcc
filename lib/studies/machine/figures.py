"""The figure of a machine: its measured ceilings."""

import pandas as pd

from lib.missing import needs
from lib.report.plots import axes, groups
from lib.report.style import SERIES


@needs("measured ceilings")
def ceilings(best: pd.DataFrame, table: pd.DataFrame):
    """Return two panels: the best GEMM rate of each dtype, and triad bandwidth over the working set."""
    figure, (left, right) = axes(2, 9, 3.4)
    compute = best[best["level"] == "compute"].sort_values("peak_gflops")
    bars = left.barh(compute["dtype"], compute["peak_gflops"], color=SERIES[0])
    left.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
    left.set(xscale="log", xlabel="GFLOP/s", title="Compute, by element type")
    left.set_xlim(right=compute["peak_gflops"].max() * 4 if len(compute) else None)
    left.grid(axis="y", visible=False)
    triad = table[table["peak_gbps"].notna()].sort_values("working_set_mb")
    for _, part, options in groups(triad, "level"):
        right.plot(part["working_set_mb"], part["peak_gbps"], **options)
    right.set(xscale="log", ylim=(0, None), xlabel="working set, MB", ylabel="GB/s", title="Bandwidth, by working set")
    if len(triad):
        right.legend()
    return figure
