"""The figures of the roofline notebook: roofs, points whose labels keep apart, and throughput with its spread."""

from itertools import cycle

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import INK, groups, label_rows, legend, panel
from lib.report.plots import points as draw_points
from lib.report.style import SERIES
from lib.studies.roofline.tables import percent

LEVELS = {"L1": ":", "L2": "-.", "L3": "--", "RAM": "-", "device": "-"}
_APART = 1.2  # times: roofs nearer to each other share a label
_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False)
_RADII, _CIRCLE = np.arange(10, 120, 8)[:, None], np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)  # of places for a name


def _below(table: pd.DataFrame, height: float, low: float, high: float, bottom: float, top: float):
    """Return a figure of roofs and its axis: a slope a memory level, shared by all types, and each type's compute roof.

    A compute roof starts at its first ridge point.
    """
    figure, axis = panel(8.5, height)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top),
             xlabel="arithmetic intensity, FLOP/byte", ylabel="GFLOP/s")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:,g}")
        side.set_minor_formatter("")
    for row in table.loc[table.groupby("level", sort=False)["ridge_point"].idxmax()].itertuples():
        ends = np.array([low, row.ridge_point])
        axis.plot(ends, ends * row.peak_gbps, LEVELS[row.level], color=INK, linewidth=1.3, zorder=1,
                  label=f"{row.level} {row.peak_gbps:,.0f} GB/s")
    peaks = table.groupby("dtype")["peak_gflops"].first().sort_values(ascending=False)
    names: list[str] = []
    colours = SERIES if len(peaks) > 1 else [INK]
    for (dtype, peak), lower, colour in zip(peaks.items(), [*peaks[1:], 0.0], cycle(colours), strict=False):
        start = table.loc[table["dtype"] == dtype, "ridge_point"].min()
        axis.plot([start, high], [peak, peak], color=colour, linewidth=1.6, zorder=2)
        names.append(f"{dtype}  {peak:,.{0 if peak >= 10 else 1}f} GFLOP/s")
        if peak > _APART * lower:
            axis.annotate(", ".join(names), (high, peak), xytext=(-4, 3), textcoords="offset points", ha="right", color=colour,
                          fontsize=9)
            names.clear()
    return figure, axis


@needs("roofs")
def roofs(table: pd.DataFrame):
    """Return the roofs of a device, a colour an element type, a line style a memory level.

    ``table``: device, source, dtype, level, peak_gflops, peak_gbps, ridge_point.
    """
    low, high = table["ridge_point"].min() / 8, table["ridge_point"].max() * 12
    bottom = max(low * table["peak_gbps"].min(), table["peak_gflops"].min() / 8)
    figure, axis = _below(table, 4.2, low, high, bottom, table["peak_gflops"].max() * 2.2)
    source = "as the vendor states it" if table["source"].iloc[0] == "vendor" else "measured here"
    axis.set_title(f"{table['device'].iloc[0]}, {source}")
    legend(figure)
    return figure


@needs("usable points")
def roofline(table: pd.DataFrame, points: pd.DataFrame, labels: int = 30):
    """Return points below their roofs: one colour and marker a family, names beside the ``labels`` longest-running.

    ``table`` as for ``roofs``, of which the element types that judge a point are drawn. A point above its roof has a ring
    around it.
    """
    table = table[table["dtype"].isin(points["roof_dtype"])]
    if table.empty:
        raise MissingError("roofs of these element types")
    low = min(points["ai"].min(), table["ridge_point"].min()) / 2.5
    high = max(points["ai"].max(), table["ridge_point"].max()) * 3
    bottom = min(points["attained_gflops"].min() / 2.5, table["peak_gflops"].min() / 60)
    figure, axis = _below(table, 4.6, low, high, bottom, max(table["peak_gflops"].max(), points["attained_gflops"].max()) * 2)
    draw_points(axis, points, "ai", "attained_gflops", "family", s=38, linewidths=0, zorder=3)
    over = points.query("below_roof < 1")
    axis.scatter(over["ai"], over["attained_gflops"], s=130, facecolors="none", edgecolors="#c53030", zorder=4,
                 label="above its roof" if len(over) else None)
    legend(figure)
    _label(figure, axis, points.nlargest(labels, "elapsed_sec"), points)
    return figure


def _label(figure, axis, named: pd.DataFrame, points: pd.DataFrame) -> None:
    """Write names near their points where nothing lies yet: rings of places are tried, nearest first."""
    figure.canvas.draw()
    to_pixels, frame, scale = axis.transData.transform, axis.get_window_extent(), figure.dpi / 72
    spots = to_pixels(points[["ai", "attained_gflops"]].to_numpy(float))
    texts = [text.get_window_extent() for text in axis.texts]
    along = [spot for line in axis.get_lines() for spot in np.linspace(*to_pixels(line.get_xydata())[[0, -1]], 200)]
    low = np.vstack([*(spots - 5), *along, *(box.min for box in texts)])  # of what is taken
    high = np.vstack([*(spots + 5), *along, *(box.max for box in texts)])
    for row in named.itertuples():
        sample = axis.text(0.5, 0.5, row.label, fontsize=8, transform=axis.transAxes)
        half = sample.get_window_extent().size / 2 + (scale, 0)
        sample.remove()
        offsets = ((_RADII + half)[:, None] * _CIRCLE).reshape(-1, 2)
        centres = to_pixels((row.ai, row.attained_gflops)) + offsets
        lows, highs = centres - half, centres + half
        is_inside = ((lows > frame.min) & (highs < frame.max)).all(axis=1)
        is_taken = ((lows[:, None] < high) & (highs[:, None] > low)).all(axis=2).any(axis=1)
        for place in np.flatnonzero(is_inside & ~is_taken)[:1]:
            low, high = np.vstack([low, lows[place]]), np.vstack([high, highs[place]])
            is_near = (abs(offsets[place]) <= half + 12).all()
            line = None if is_near else {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
            axis.annotate(row.label, (row.ai, row.attained_gflops), xytext=offsets[place] / scale, textcoords="offset points",
                          ha="center", va="center", fontsize=8, zorder=5, arrowprops=line)


@needs("usable points")
def shares(points: pd.DataFrame):
    """Return the share of attainable performance of each point, a bar a point coloured by what bounds it."""
    table = points.assign(share=percent(points)).sort_values("share", ascending=False)
    figure, axis = panel(8.5, 1.4 + 0.27 * len(table))
    for colour, bound in zip(SERIES, sorted(set(table["bound"])), strict=False):
        part = table["bound"] == bound
        bars = axis.barh(np.flatnonzero(part), table.loc[part, "share"], color=colour, label=f"bound by {bound}")
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.bar_label(bars, fmt="{:,.0f} %", padding=3, fontsize=8, bbox=clear)
    axis.axvline(100, color=INK, linewidth=1, zorder=1)
    axis.set(xlabel="% of attainable performance", xlim=(0, max(110, table["share"].max() * 1.12)))
    label_rows(axis, table["label"], 8)
    legend(figure)
    return figure


@needs("usable runs")
def throughput(table: pd.DataFrame):
    """Return mean images/s of each configuration with its standard deviation and n, a colour a machine and precision.

    ``table``: env, workload_id, arch, backend, batch_size, precision, n, mean, std.
    """
    names = table["workload_id"] + " " + table["arch"] + " b" + table["batch_size"].astype(str)
    figure, axis = panel(8.5, 1.4 + 0.33 * len(table))
    rows = table.reset_index(drop=True)
    for _, part, style in groups(rows, rows["env"] + " " + rows["backend"] + " " + rows["precision"]):
        spread = part["std"].fillna(0.0)
        bars = axis.barh(part.index, part["mean"], color=style["color"], label=style["label"], ecolor=INK, capsize=2,
                         xerr=spread.where(spread > 0))
        axis.bar_label(bars, [f"{row.mean:,.4g}" + ("" if np.isnan(row.std) else f" ± {row.std:,.3g}") + f"  (n = {row.n})"
                              for row in part.itertuples()], padding=4, fontsize=8)
    axis.set(xscale="log", xlabel="images/s", xlim=(table["mean"].min() / 3, table["mean"].max() * 5))
    label_rows(axis, names, 8)
    legend(figure, 3)
    return figure
