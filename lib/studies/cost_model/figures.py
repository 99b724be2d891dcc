"""The figures of the cost model: what to trust, parity, errors by size, learning curve, effects, networks, memory, devices."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.predict.networks import kinds
from lib.predict.trust import held_out
from lib.report.style import SERIES

_WITHIN = 0.10
_MANY = 10  # networks of a kind, below which its error says little
_MEMORY = (("tensors_mb", "peak_mb", "peak of tensors"), ("rss_mb", "rss_predicted_mb", "resident, beyond Python and torch"))


def _band(axis, low: float, high: float) -> None:
    """Draw the line of equality and the band of 10 % around it."""
    line = np.array([low, high])
    axis.plot(line, line, color="#555555", linewidth=1)
    axis.fill_between(line, line * (1 - _WITHIN), line * (1 + _WITHIN), color="#dddddd", alpha=0.6, linewidth=0)
    axis.set(xscale="log", yscale="log")


@needs("errors of held-out networks")
def trust(rows: pd.DataFrame):
    """Return the errors of held-out networks, a line a device and condition, the worst on top, a mark a kind; hollow: few."""
    import matplotlib.pyplot as plt

    networks, final, labels = (part.assign(case=held_out.case_of(part)) for part in (
        rows[rows["what"] == what] for what in (held_out.NETWORKS, held_out.FINAL, held_out.NOISE)))
    of_kinds = networks[(networks["kind"] != held_out.ALL) & (networks["n"] >= _MANY)]
    if of_kinds.empty:
        raise MissingError(f"kinds of {_MANY} networks or more")
    several = pd.concat([of_kinds, final[final["case"].isin(of_kinds["case"])]])
    order = several.groupby("case")["mape_pct"].max().sort_values().index
    places = dict(zip(order, range(len(order)), strict=True))
    figure, axis = plt.subplots(figsize=(9, 1.2 + 0.3 * len(order)))
    for kind, mark, colour in zip(kinds.KINDS, "os^D", SERIES, strict=False):
        part = networks[(networks["kind"] == kind) & networks["case"].isin(order)]
        for many, face in ((True, colour), (False, "white")):
            own = part[(part["n"] >= _MANY) == many]
            axis.scatter(own["mape_pct"], own["case"].map(places), marker=mark, s=34, facecolors=face, edgecolors=colour,
                         label=kind if many == bool((part["n"] >= _MANY).any()) else None, zorder=3)
    for name, part, mark, colour in (("final set", final, "x", "#111111"), ("labels", labels, "|", "#7a7a7a")):
        own = part[part["case"].isin(order)]
        axis.scatter(own["mape_pct"], own["case"].map(places), marker=mark, s=40, color=colour, zorder=4,
                     label=name if len(own) else None)
    axis.set(yticks=range(len(order)), yticklabels=order, xlabel="mean absolute error of held-out networks, %", xlim=(0, None))
    axis.tick_params(axis="y", labelsize=9)
    figure.legend(loc="outside upper center", ncols=6, fontsize=9)
    return figure


@needs("predictions")
def parity(predictions: pd.DataFrame, most: int = 6):
    """Return predicted over measured time, a panel a family; the band is 10 %."""
    import matplotlib.pyplot as plt

    families = predictions["family"].value_counts().index[:most]
    columns = min(3, len(families))
    rows = -(-len(families) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.9 * rows), squeeze=False)
    for axis, family in zip(axes.flat, families, strict=False):
        part = predictions[predictions["family"] == family]
        values = part[["latency_ms", "predicted_ms"]]
        _band(axis, values.to_numpy().min(), values.to_numpy().max())
        axis.scatter(part["latency_ms"], part["predicted_ms"], s=7, color=SERIES[0], alpha=0.5, linewidths=0)
        axis.set_title(family, fontsize=10)
    for axis in axes.flat[len(families):]:
        axis.set_visible(False)
    figure.supxlabel("measured, ms", fontsize=10)
    figure.supylabel("predicted on unseen shapes, ms", fontsize=10)
    return figure


@needs("scores")
def learners(scores: pd.DataFrame):
    """Return the MAPE of every learner by family, one colour a learner, on a logarithmic axis."""
    import matplotlib.pyplot as plt

    families, names = list(dict.fromkeys(scores["family"])), list(dict.fromkeys(scores["learner"]))
    figure, axis = plt.subplots(figsize=(8, 0.6 + 0.42 * len(families)))
    marks = "ovs^DP*"
    for number, name in enumerate(names):
        part = scores[scores["learner"] == name].set_index("family")["mape"].reindex(families)
        axis.plot(part, np.arange(len(families)), linestyle="", marker=marks[number % len(marks)], label=name,
                  markersize=9 if name == names[-1] else 6, color=(*SERIES, "#111111")[number % 7])
    axis.set(xscale="log", yticks=range(len(families)), yticklabels=families, xlabel="MAPE on unseen shapes, %")
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    return figure


@needs("predictions")
def by_size(table: pd.DataFrame, most: int = 6):
    """Return the median error against the measured time, a line a family."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3.4))
    families = list(dict.fromkeys(table["family"]))[:most]
    for colour, family in zip(SERIES, families, strict=False):
        part = table[table["family"] == family]
        axis.plot(np.sqrt(part["from_ms"] * part["to_ms"]), part["median"], "o-", color=colour, label=family, markersize=4)
    axis.set(xscale="log", xlabel="measured, ms", ylabel="median error, %", ylim=(0, None))
    axis.legend(fontsize=9, ncols=2)
    return figure


@needs("points of the learning curve")
def learning_curve(curve: pd.DataFrame):
    """Return MAPE and median error against the number of measured points."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.2))
    axis.fill_between(curve["points"], curve["mape_low"], curve["mape_high"], color=SERIES[0], alpha=0.2, linewidth=0)
    axis.plot(curve["points"], curve["mape"], "o-", label="MAPE, with its interval", color=SERIES[0])
    axis.plot(curve["points"], curve["median"], "s--", label="median", color=SERIES[1])
    axis.set(xscale="log", xlabel="measured points", ylabel="error on unseen shapes, %", ylim=(0, None))
    axis.legend(fontsize=9)
    return figure


@needs("features")
def effects(table: pd.DataFrame, most: int = 14):
    """Return how much each feature's shuffling adds to the error."""
    import matplotlib.pyplot as plt

    shown = table.head(most).iloc[::-1]
    figure, axis = plt.subplots(figsize=(7, 0.8 + 0.24 * len(shown)))
    axis.barh(shown["feature"], shown["added_mape"], color=SERIES[0])
    axis.set(xlabel="MAPE added when the feature is shuffled, percentage points")
    axis.grid(axis="y", visible=False)
    return figure


@needs("predicted networks")
def networks(table: pd.DataFrame):
    """Return predicted over measured time of whole networks, a panel a case; test networks are filled, tuning ones hollow."""
    import matplotlib.pyplot as plt

    cases = table.groupby(["mode", "batch_size"], sort=True)
    figure, axes = plt.subplots(1, len(cases), figsize=(3.1 * len(cases), 3.2), squeeze=False)
    for axis, ((mode, batch), part) in zip(axes.flat, cases, strict=True):
        values = part[["latency_ms", "predicted_ms"]].to_numpy()
        _band(axis, values.min() * 0.9, values.max() * 1.1)
        for tuning, face in ((True, "none"), (False, SERIES[0])):
            chosen = part[part["tuning"] == tuning]
            error = np.array([chosen["predicted_ms"] - chosen["low_ms"], chosen["high_ms"] - chosen["predicted_ms"]])
            axis.errorbar(chosen["latency_ms"], chosen["predicted_ms"], yerr=error, fmt="none", ecolor="#b8c7dd",
                          elinewidth=0.8)
            axis.scatter(chosen["latency_ms"], chosen["predicted_ms"], s=22, facecolors=face, edgecolors=SERIES[0], zorder=3,
                         label="tuning" if tuning else "test")
        axis.set_title(f"{mode}, batch {batch}", fontsize=10)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("measured, ms", fontsize=10)
    figure.supylabel("predicted, ms", fontsize=10)
    return figure


@needs("predicted networks")
def memory(table: pd.DataFrame):
    """Return predicted over measured memory by mode: the peak of tensors, and what a process grows by."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4))
    for axis, (measured, predicted, title) in zip(axes, _MEMORY, strict=True):
        rows = table[table[[measured, predicted]].notna().all(axis=1)]
        values = rows[[measured, predicted]].to_numpy()
        if len(rows):
            _band(axis, max(values.min(), 0.1) * 0.8, values.max() * 1.2)
        for colour, (mode, part) in zip(SERIES, rows.groupby("mode"), strict=False):
            axis.scatter(part[measured], part[predicted], s=18, color=colour, label=mode, alpha=0.8)
        axis.set_title(title, fontsize=10)
    axes[0].legend(fontsize=9)
    figure.supxlabel("measured, MB", fontsize=10)
    figure.supylabel("predicted, MB", fontsize=10)
    return figure


@needs("devices")
def devices(table: pd.DataFrame):
    """Return the predicted time of each device with its interval; hollow where it lies outside of the training ranges."""
    import matplotlib.pyplot as plt

    shown = table.sort_values("predicted_ms", ascending=False)
    figure, axis = plt.subplots(figsize=(7, 0.9 + 0.3 * len(shown)))
    for place, row in enumerate(shown.itertuples()):
        axis.plot([row.low_ms, row.high_ms], [place, place], color="#9fb6d3", linewidth=4, solid_capstyle="round")
        axis.plot([row.predicted_ms], [place], "o", color=SERIES[0], markerfacecolor="white" if row.out_of_range else SERIES[0])
        if row.measured_ms == row.measured_ms:  # noqa: PLR0124 - NaN: not measured
            axis.plot([row.measured_ms], [place], "x", color=SERIES[1])
    axis.set(xscale="log", yticks=range(len(shown)), yticklabels=shown["device"], xlabel="ms (x: measured)")
    axis.grid(axis="y", visible=False)
    return figure
