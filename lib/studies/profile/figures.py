"""The figures of profiled runs: phases over time, phase shares, throughput and memory, runs side by side."""

import numpy as np
import pandas as pd

from lib.measure.training.summary import PHASES_MS
from lib.missing import needs
from lib.report.plots import axes, groups, label_rows, legend
from lib.report.style import COLOURS, WARM_UP

_MEMORY = {"cuda_mem_alloc_mb": "Memory allocated on the GPU", "peak_rss_mb": "Peak resident memory of the process"}


@needs("profiled training steps")
def phases_over_time(rows: pd.DataFrame):
    """Return the training steps one after another, stacked by phase, warm-up shaded; bars beyond the axis carry their ms."""
    figure, (axis,) = axes()
    train = rows[rows["task_type"] == "train"].sort_values("global_step")
    base = np.zeros(len(train))
    for column, label in PHASES_MS.items():
        axis.bar(train["global_step"], train[column], bottom=base, width=1.0, color=COLOURS[label], label=label)
        base += train[column].to_numpy()
    if warm := int(train["warmup"].sum()):
        axis.axvspan(-0.5, warm - 0.5, color=WARM_UP, zorder=0)
        axis.annotate("warm-up", (warm / 2 - 0.5, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=9)
    top = min(base.max() * 1.05, 3 * float(np.median(base)))
    for step in np.flatnonzero(base > top):
        axis.annotate(f"{base[step]:,.0f} ms", (train["global_step"].iloc[step] + 0.5, top), (3, -3),
                      textcoords="offset points", ha="left", va="top", fontsize=8)
    axis.set(xlabel="training step", ylabel="ms", xlim=(-0.5, len(train) - 0.5), ylim=(0, top))
    axis.grid(axis="x", visible=False)
    legend(figure, 5)
    return figure


@needs("profiled steps")
def phase_stack(table: pd.DataFrame, labels: str, shares: bool = False):
    """Return one horizontal bar a row of ``table``, stacked by phase; ``labels`` names the column that labels the bars.

    With ``shares`` bars are % of the step: workloads of any length fit one axis. The step's ms stand at the end.
    """
    figure, (axis,) = axes(height=1.3 + 0.42 * len(table))
    phases_ms = table[list(PHASES_MS.values())]
    steps_ms = phases_ms.sum(axis=1)
    values = phases_ms.div(steps_ms, axis=0) * 100 if shares else phases_ms
    values.plot.barh(stacked=True, ax=axis, color=COLOURS, width=0.8, legend=False)
    axis.bar_label(axis.containers[-1], [f" {step:,.1f} ms" for step in steps_ms], fontsize=9)
    axis.set(xlabel="% of the step" if shares else "ms", xlim=(0, values.sum(axis=1).max() * 1.14))
    label_rows(axis, table[labels], 11)
    legend(figure, 5)
    return figure


@needs("profiled steps")
def throughput_and_memory(rows: pd.DataFrame):
    """Return throughput and memory (of the GPU where one was used) over the steps of every pass, warm-up steps faint."""
    memory = "cuda_mem_alloc_mb" if (rows["device_type"] == "cuda").any() else "peak_rss_mb"
    figure, (left, right) = axes(2, 9, 3.2)
    for name, part, options in groups(rows, "task_type"):
        line = {"color": options["color"], "label": name}
        left.plot(part["global_step"], part["images_per_sec"], color=options["color"], alpha=0.35, linewidth=1)
        steady = part[~part["warmup"]]
        left.plot(steady["global_step"], steady["images_per_sec"], **line)
        right.plot(part["global_step"], part[memory], **line)
    left.set(xlabel="step of the pass", ylabel="images/s", ylim=(0, None), title="Throughput")
    right.set(xlabel="step of the pass", ylabel="MB", ylim=(0, rows[memory].max() * 1.15), title=_MEMORY[memory])
    left.legend()
    return figure


@needs("usable runs")
def throughput_by_workload(table: pd.DataFrame):
    """Return images per second of each workload, a bar a backend and precision, on a logarithmic axis."""
    figure, (axis,) = axes(height=3.2)
    wide = table.assign(series=table["backend"] + " " + table["precision"]).pivot_table(
        index="workload_id", columns="series", values="images_per_sec")
    wide.plot.bar(ax=axis, width=0.8, rot=0, logy=True, xlabel="", ylabel="images/s")
    for bars in axis.containers:
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=9, padding=2)
    axis.set_ylim(top=wide.max().max() * 2.5)
    axis.grid(axis="x", visible=False)
    axis.legend()
    return figure
