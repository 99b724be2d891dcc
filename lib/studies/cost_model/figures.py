"""The figures of the cost model: what to trust, parity, errors by size, learning curve, effects, networks, memory, devices."""

import matplotlib
import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.predict.networks import architectures
from lib.predict.networks.runtimes import EAGER
from lib.predict.trust import errors
from lib.report.plots import axes, equality, facets, groups, interval_rows, label_rows, legend, panel, points
from lib.report.style import SERIES

_FAMILIES, _FEATURES = 6, 14  # that a figure shows at most
_MANY = 10  # networks of a kind, below which its error says little
_MEMORY = (("tensors_mb", "peak_mb", "peak of tensors"), ("rss_mb", "rss_predicted_mb", "resident, beyond Python and torch"))
_COVERED = (("range holds 85 % or more", 85, np.inf, SERIES[0]), ("70 to 85 %", 70, 85, SERIES[1]),
            ("less", -np.inf, 70, "#7a1420"))
_OTHER_ERRORS = {errors.FINAL: ("final set", "x", "#111111"), errors.NOISE: ("labels", "|", "#7a7a7a")}


def _labelled(figure, measured: str, predicted: str):
    figure.supxlabel(measured, fontsize=10)
    figure.supylabel(predicted, fontsize=10)
    return figure


@needs("errors of held-out networks")
def trust(rows: pd.DataFrame):
    """Return the errors of held-out networks, a line a device and condition, the worst on top, a mark a kind; hollow: few."""
    rows = rows.assign(case=errors.case_of(rows))
    networks, final = (rows[rows["what"] == what] for what in (errors.NETWORKS, errors.FINAL))
    of_kinds = networks.query("kind != @errors.ALL and n >= @_MANY")
    if of_kinds.empty:
        raise MissingError(f"kinds of {_MANY} networks or more")
    shown = pd.concat([of_kinds, final[final["case"].isin(of_kinds["case"])]])
    order = shown.groupby("case")["mape_pct"].max().sort_values(ascending=False).index
    figure, axis = panel(9, 1.2 + 0.3 * len(order))

    def draw(part: pd.DataFrame, label: str, **options) -> None:
        part = part[part["case"].isin(order)]
        axis.scatter(part["mape_pct"], order.get_indexer(part["case"]), label=label if len(part) else None, zorder=3, **options)

    for kind, mark, colour in zip(architectures.NETWORK_KINDS, "os^D", SERIES, strict=False):
        for many, face in ((False, "white"), (True, colour)):
            draw(networks[(networks["kind"] == kind) & ((networks["n"] >= _MANY) == many)], kind, marker=mark, s=34,
                 facecolors=face, edgecolors=colour)
    for what, (name, mark, colour) in _OTHER_ERRORS.items():
        draw(rows[rows["what"] == what], name, marker=mark, s=40, color=colour)
    axis.set(xlabel="mean absolute error of held-out networks, %", xlim=(0, None))
    label_rows(axis, order)
    axis.grid(axis="y", visible=True)
    legend(figure, 6, "upper")
    return figure


@needs("labels of outsiders")
def outsiders(table: pd.DataFrame):
    """Return errors on what others measured (``scoreboard.summary``), a line a source, device and question, by coverage."""
    rows = table.assign(case=table["source"] + ": " + table["device"] + ", " + table["question"]).iloc[::-1]
    figure, axis = panel(9, 1.2 + 0.24 * len(rows))
    for name, least, most, colour in _COVERED:
        part = rows["inside_pct"].between(least, most, inclusive="left").to_numpy()
        axis.barh(np.flatnonzero(part), rows["mape_pct"][part], color=colour, height=0.7, label=name)
    axis.scatter(rows["median_pct"], range(len(rows)), color="black", marker="|", s=60, zorder=3, label="typical (median)")
    axis.set(xlabel="mean absolute error, %", xlim=(0, None))
    label_rows(axis, list(rows["case"]))
    legend(figure, 4, "upper")
    return figure


@needs("networks in several runtimes")
def runtimes(table: pd.DataFrame, batch_size: int):
    """Return the measured gain over eager torch of each network (rows) in each runtime (columns) as a heat map.

    ``table``: ``runtime_choices.rows``, of which the machine with the most is shown. A frame marks the condition that is
    predicted to be best of those measured.
    """
    import seaborn

    part = table.query(f"batch_size == @batch_size and condition != {EAGER.words!r}")
    part = part[part["device"].isin(part["device"].value_counts().index[:1])]
    if part.empty:
        raise MissingError(f"networks at batch {batch_size}")
    measured, predicted = (part.pivot_table(index="case", columns="condition", values=name)
                           for name in ("gain", "predicted_gain"))
    order = measured.max(axis=1).sort_values(ascending=False).index
    columns = measured.count().sort_values(ascending=False).index
    measured, predicted = measured.loc[order, columns], predicted.loc[order, columns]
    figure, axis = panel(9, 2.2 + 0.26 * len(order))
    seaborn.heatmap(np.log2(measured), ax=axis, cmap="vlag", center=0, annot=measured, fmt=".1f", annot_kws={"size": 7},
                    cbar=False)
    for row, (_, gains) in enumerate(predicted.iterrows()):
        if gains.max() > 1:
            column = columns.get_loc(gains.idxmax())
            axis.add_patch(matplotlib.patches.Rectangle((column, row), 1, 1, fill=False, edgecolor="black", linewidth=1.4))
    axis.set(xlabel="", ylabel="")
    for label in axis.get_xticklabels():
        label.set(rotation=40, ha="right")
    return figure


@needs("predictions")
def parity(predictions: pd.DataFrame):
    """Return predicted over measured time, a panel a family; the band is 10 %."""
    families = predictions["family"].value_counts().index[:_FAMILIES]
    shown = predictions[predictions["family"].isin(families)].sort_values("family", key=families.get_indexer, kind="stable")
    figure, panels = facets(shown, "family", 3.1, 2.9, 3)
    for axis, _, part in panels:
        equality(axis, part, "latency_ms", "predicted_ms")
        axis.scatter(part["latency_ms"], part["predicted_ms"], s=7, color=SERIES[0], alpha=0.5, linewidths=0)
    return _labelled(figure, "measured, ms", "predicted on unseen shapes, ms")


@needs("scores")
def learners(scores: pd.DataFrame):
    """Return the MAPE of every learner by family, one colour a learner, on a logarithmic axis."""
    families = scores["family"].unique()
    figure, axis = panel(height=0.6 + 0.42 * len(families))
    for name, part, options in groups(scores, "learner"):
        ours = {"color": "#111111", "s": 80, "marker": "*"} if name == scores["learner"].iloc[-1] else {}
        axis.scatter(part["mape"], pd.Index(families).get_indexer(part["family"]), **(options | ours))
    axis.set(xscale="log", xlabel="MAPE on unseen shapes, %")
    axis.xaxis.set_major_formatter("{x:g}")
    label_rows(axis, families, 11)
    axis.grid(axis="y", visible=True)
    legend(figure, 4, "upper")
    return figure


@needs("predictions")
def by_size(table: pd.DataFrame):
    """Return the median error against the measured time, a line a family."""
    figure, axis = panel(height=3.4)
    for _, part, options in groups(table[table["family"].isin(table["family"].unique()[:_FAMILIES])], "family"):
        axis.plot(np.sqrt(part["from_ms"] * part["to_ms"]), part["median"], markersize=4, **options)
    axis.set(xscale="log", xlabel="measured, ms", ylabel="median error, %", ylim=(0, None))
    axis.legend(fontsize=9, ncols=2)
    return figure


@needs("points of the learning curve")
def learning_curve(curve: pd.DataFrame):
    """Return MAPE and median error against the number of measured points."""
    figure, axis = panel(6, 3.2)
    axis.fill_between(curve["points"], curve["mape_low"], curve["mape_high"], color=SERIES[0], alpha=0.2, linewidth=0)
    axis.plot(curve["points"], curve["mape"], "o-", label="MAPE, with its interval", color=SERIES[0])
    axis.plot(curve["points"], curve["median"], "s--", label="median", color=SERIES[1])
    axis.set(xscale="log", xlabel="measured points", ylabel="error on unseen shapes, %", ylim=(0, None))
    axis.legend(fontsize=9)
    return figure


@needs("features")
def effects(table: pd.DataFrame):
    """Return how much each feature's shuffling adds to the error."""
    shown = table.head(_FEATURES)
    figure, axis = panel(7, 0.8 + 0.24 * len(shown))
    axis.barh(range(len(shown)), shown["added_mape"], color=SERIES[0])
    axis.set(xlabel="MAPE added when the feature is shuffled, percentage points")
    label_rows(axis, shown["feature"], 11)
    return figure


@needs("predicted networks")
def networks(table: pd.DataFrame):
    """Return predicted over measured time of whole networks, a panel a case; test networks are filled, tuning ones hollow."""
    case = table["mode"] + ", batch " + table["batch_size"].astype(str)
    figure, panels = facets(table.assign(case=case).sort_values(["mode", "batch_size"], kind="stable"), "case", 3.1, 3.2)
    for axis, _, part in panels:
        equality(axis, part, "latency_ms", "predicted_ms")
        axis.vlines(part["latency_ms"], part["low_ms"], part["high_ms"], color="#b8c7dd", linewidth=0.8)
        for tuning, face in ((True, "none"), (False, SERIES[0])):
            chosen = part[part["tuning"] == tuning]
            axis.scatter(chosen["latency_ms"], chosen["predicted_ms"], s=22, facecolors=face, edgecolors=SERIES[0], zorder=3,
                         label="tuning" if tuning else "test")
    figure.axes[0].legend(fontsize=8)
    return _labelled(figure, "measured, ms", "predicted, ms")


@needs("predicted networks")
def memory(table: pd.DataFrame):
    """Return predicted over measured memory by mode: the peak of tensors, and what a process grows by."""
    figure, panels = axes(2, height=3.4)
    for axis, (measured, predicted, title) in zip(panels, _MEMORY, strict=True):
        rows = table.query(f"{measured} > 0 and {predicted} > 0").sort_values("mode")
        axis.set_title(title, fontsize=10)
        if len(rows):
            equality(axis, rows, measured, predicted)
            points(axis, rows, measured, predicted, "mode", s=18, alpha=0.8)
            axis.legend(fontsize=9)
    return _labelled(figure, "measured, MB", "predicted, MB")


@needs("devices")
def devices(table: pd.DataFrame):
    """Return the predicted time of each device with its interval; hollow where it lies outside of the training ranges."""
    table = table.sort_values("predicted_ms")
    faces = np.where(table["out_of_range"], "white", SERIES[0])
    return interval_rows(table, "device", "ms (x: measured)", predicted_ms={"facecolors": faces, "edgecolors": SERIES[0]},
                         measured_ms={"marker": "x", "color": SERIES[1]})
