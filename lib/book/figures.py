"""One plot style, how figures and tables are saved and shown, and the figures of the notebooks."""

import base64
import html
import os
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths
from lib.missing import needs

COLOURS = {"loader wait": "#7a7a7a", "copy to device": "#c9a227", "forward": "#2b6cb0", "backward": "#c05621",
           "optimizer": "#2f855a"}
WARM_UP = "#ece7da"
SERIES = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c")


def use_style() -> None:
    """Set the one style of all figures; nothing is shown by itself."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    mpl.rcParams.update({
        "figure.figsize": (8, 3.6), "figure.dpi": 100, "savefig.bbox": "tight", "figure.constrained_layout.use": True,
        "font.size": 11, "axes.titlesize": 12, "axes.titlelocation": "left", "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "legend.frameon": False, "lines.linewidth": 1.6, "svg.fonttype": "path", "svg.hashsalt": "lib",
        "axes.prop_cycle": mpl.cycler(color=SERIES)})


def save(figure, notebook: str, name: str) -> Path:
    """Write ``figures/<notebook>/<name>.svg`` and ``.png`` in one step each, close the figure, return the SVG's path."""
    import matplotlib.pyplot as plt

    folder = paths.FIGURES / notebook
    folder.mkdir(parents=True, exist_ok=True)
    for kind, options in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
        temporary = folder / f".{name}.{os.getpid()}.{kind}"
        figure.savefig(temporary, format=kind, **options)
        temporary.replace(folder / f"{name}.{kind}")
    plt.close(figure)
    return folder / f"{name}.svg"


def as_html(path: Path, caption: str) -> str:
    """Return an SVG file as a self-contained HTML figure with its caption."""
    data = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    return (f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{text}" style="max-width:100%">'
            f"<figcaption>{text}</figcaption></figure>")


def table_html(frame: pd.DataFrame, caption: str, digits: int = 2) -> str:
    """Return a DataFrame as an HTML table that scrolls on a narrow screen."""
    def number(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:,.{digits}f}"

    body = frame.to_html(index=False, border=0, classes="table", float_format=number, na_rep="–", justify="left")
    return f'<div class="scroll">{body}</div><p class="caption">{html.escape(caption)}</p>'


def _axes(columns: int = 1, width: float = 8, height: float = 3.6):
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, height), squeeze=False)


@needs("measured ceilings")
def ceilings(best: pd.DataFrame, table: pd.DataFrame):
    """Return two panels: the best product rate of each dtype, and triad bandwidth over the working set."""
    figure, ((left, right),) = _axes(2, 9, 3.4)
    compute = best[best["level"] == "compute"].sort_values("peak_gflops")
    bars = left.barh(compute["dtype"], compute["peak_gflops"], color=SERIES[0])
    left.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
    left.set(xscale="log", xlabel="GFLOP/s", title="Compute, by element type")
    left.set_xlim(right=compute["peak_gflops"].max() * 4 if len(compute) else None)
    left.grid(axis="y", visible=False)
    triad = table[table["peak_gbps"].notna()].sort_values("working_set_mb")
    for colour, (level, part) in zip(SERIES, triad.groupby("level", sort=False), strict=False):
        right.plot(part["working_set_mb"], part["peak_gbps"], "o-", color=colour, label=level)
    right.set(xscale="log", ylim=(0, None), xlabel="working set, MB", ylabel="GB/s", title="Bandwidth, by working set")
    if len(triad):
        right.legend()
    return figure


@needs("profiled training steps")
def phases_over_time(rows: pd.DataFrame, phases: dict[str, str]):
    """Return the training steps one after another, stacked by phase, warm-up shaded. ``phases``: column to label."""
    figure, ((axis,),) = _axes()
    train = rows[rows["task_type"] == "train"].sort_values("global_step")
    base = np.zeros(len(train))
    for column, label in phases.items():
        axis.bar(train["global_step"], train[column], bottom=base, width=1.0, color=COLOURS[label], label=label)
        base += train[column].to_numpy()
    warm = int(train["warmup"].sum())
    if warm:
        axis.axvspan(-0.5, warm - 0.5, color=WARM_UP, zorder=0)
        axis.annotate("warm-up", (warm / 2 - 0.5, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=9)
    top = min(base.max() * 1.05, 3 * float(np.median(base)))
    for step in np.flatnonzero(base > top):
        axis.annotate(f"{base[step]:,.0f} ms", (train["global_step"].iloc[step], top), rotation=90, ha="center", va="top",
                      fontsize=8, color="white")
    axis.set(xlabel="training step", ylabel="ms", xlim=(-0.5, len(train) - 0.5), ylim=(0, top))
    axis.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    return figure


@needs("profiled steps")
def phase_stack(table: pd.DataFrame, labels: str, phases: dict[str, str], logarithmic: bool = False):
    """Return one horizontal bar a row of ``table``, stacked by phase; ``labels`` names the column that labels the bars.

    Stacks need a linear axis; ``logarithmic`` therefore shows shares of the step, with the step's ms at the end.
    """
    figure, ((axis,),) = _axes(height=1.3 + 0.42 * len(table))
    values = table[list(phases.values())]
    total = values.sum(axis=1)
    values = values.div(total, axis=0) * 100 if logarithmic else values
    base = np.zeros(len(table))
    for label in phases.values():
        axis.barh(table[labels], values[label], left=base, color=COLOURS[label], label=label)
        base += values[label].to_numpy()
    for row, (end, step) in enumerate(zip(base, total, strict=True)):
        axis.annotate(f" {step:,.1f} ms", (end, row), va="center", fontsize=9)
    axis.set(xlabel="% of the step" if logarithmic else "ms", xlim=(0, base.max() * 1.14))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    return figure


@needs("profiled steps")
def throughput_and_memory(rows: pd.DataFrame, memory: str, memory_label: str):
    """Return throughput and memory over the steps of every pass, warm-up steps faint."""
    figure, ((left, right),) = _axes(2, 9, 3.2)
    for colour, (kind, part) in zip(SERIES, rows.groupby("task_type", sort=False), strict=False):
        left.plot(part["global_step"], part["images_per_sec"], color=colour, alpha=0.35, linewidth=1)
        steady = part[~part["warmup"]]
        left.plot(steady["global_step"], steady["images_per_sec"], color=colour, label=kind)
        right.plot(part["global_step"], part[memory], color=colour, label=kind)
    left.set(xlabel="step of the pass", ylabel="images/s", ylim=(0, None), title="Throughput")
    right.set(xlabel="step of the pass", ylabel="MB", ylim=(0, None), title=memory_label)
    left.legend()
    return figure


@needs("usable runs")
def throughput_by_workload(table: pd.DataFrame):
    """Return images per second of each workload, a bar a backend and precision, on a logarithmic axis."""
    figure, ((axis,),) = _axes(height=3.2)
    table = table.assign(series=table["backend"] + " " + table["precision"])
    wide = table.pivot_table(index="workload_id", columns="series", values="images_per_sec")
    width = 0.8 / max(1, wide.shape[1])
    for number, series in enumerate(wide):
        places = np.arange(len(wide)) + (number - (wide.shape[1] - 1) / 2) * width
        bars = axis.bar(places, wide[series], width, label=series, color=SERIES[number % len(SERIES)])
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=9, padding=2)
    axis.set(yscale="log", ylabel="images/s", xticks=np.arange(len(wide)), xticklabels=wide.index)
    axis.set_ylim(top=wide.max().max() * 2.5)
    axis.grid(axis="x", visible=False)
    axis.legend()
    return figure
