"""What ``03_sweep`` shows of operators: latency over work, rates by family, how well the rounds agree, energy, key numbers."""

import numpy as np
import pandas as pd

from lib.measure.operators.aggregate import Sweep, pace
from lib.measure.statistics import VERDICTS
from lib.missing import MissingError, needs
from lib.report.plots import axes, legend, panel, points
from lib.report.sentences import KeyNumbers, Numbers
from lib.report.style import SERIES

_COLOURS = dict(zip(VERDICTS, (SERIES[2], SERIES[4], SERIES[1]), strict=True))
_LEAST_SPREAD = 0.05  # %, on a logarithmic axis


def spread(table: pd.DataFrame) -> pd.Series:
    """Return the IQR over the rounds of each measured configuration, % of its median."""
    return table["latency_iqr_ms"] / table["latency_ms"] * 100


# ------------------------------------------------------------------------------------------------- figures

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
        named = table.assign(group=_groups(table), **{column: table[column].where(table[column] > 0)}).sort_values("op")
        points(axis, named, column, "latency_ms", "group", s=16, linewidths=0, alpha=0.7)
    left.set(xscale="log", yscale="log", xlabel="FLOPs of one call", ylabel="latency, ms")
    right.set(xscale="log", xlabel="compulsory bytes of one call")
    legend(figure, 6, markerscale=1.6)
    return figure


@needs("usable configurations")
def rates(table: pd.DataFrame):
    """Return the achieved GFLOP/s of each group as boxes with its points, best group first."""
    import seaborn as sns

    named = table.query("gflops > 0").assign(group=_groups(table, most=20 if len(set(table["op"])) > 1 else 6))
    if named.empty:
        raise MissingError("configurations that compute")
    order = named.groupby("group")["gflops"].median().sort_values(ascending=False).index
    figure, axis = panel(height=1.2 + 0.36 * len(order))
    common = {"data": named, "x": "gflops", "y": "group", "order": order, "ax": axis, "log_scale": True}
    sns.boxplot(**common, color="#dbe6f4", fliersize=0, linewidth=1)
    sns.stripplot(**common, color=SERIES[0], size=2.5, alpha=0.5, jitter=False)
    axis.set(xlabel="GFLOP/s", ylabel="")
    axis.grid(axis="y", visible=False)
    return figure


@needs("measured configurations")
def agreement(table: pd.DataFrame):
    """Return the spread of the rounds (IQR in % of the median) over latency, coloured by verdict, and its distribution."""
    figure, (left, right) = axes(2, 9, 3.4)
    percent = spread(table).clip(lower=_LEAST_SPREAD)
    counts = table["verdict"].value_counts()
    names = {verdict: f"{verdict} ({counts.get(verdict, 0)})" for verdict in VERDICTS}
    points(left, table.assign(percent=percent, name=table["verdict"].map(names)), "latency_ms", "percent", "name",
           {names[verdict]: colour for verdict, colour in _COLOURS.items()}, s=14, alpha=0.7, linewidths=0, marker="o")
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


# ------------------------------------------------------------------------------------------------- tables

def by_family(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a family and pass: configurations, verdicts, latency, spread and rates."""
    ok = table["status"] == "ok"
    counted = table.assign(**{"not ok": ~ok}, **{name: ok & (table["verdict"] == name) for name in VERDICTS})
    rated = ["latency_ms", "gflops", "gbps"]
    counted[[*rated, "spread"]] = table[rated].assign(spread=spread(table)).where(ok)
    groups = counted.groupby(["op", "pass"], sort=False)
    return groups.agg(configurations=("op", "size"), **{name: (name, "sum") for name in (*VERDICTS, "not ok")},
                      **{"median ms": ("latency_ms", "median"), "IQR %": ("spread", "median"),
                         "median GFLOP/s": ("gflops", "median"), "best GFLOP/s": ("gflops", "max"),
                         "median GB/s": ("gbps", "median")}).reset_index()


def by_device(table: pd.DataFrame) -> pd.DataFrame:
    """Return the median latency (ms) by family and pass, a column a device, of configurations that all of them measured."""
    same = ["op", "pass", "dtype", "latency_type", "cache"]
    wide = table.pivot_table(index=[*same, "config"], columns="device", values="latency_ms").dropna()
    groups = wide.groupby(same, sort=False)
    return groups.median().assign(configurations=groups.size()).reset_index() if wide.shape[1] > 1 else wide.iloc[:0]


def energy(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a family, pass and meter of the configurations that have an energy; medians, per call.

    Above idle is what exceeds the idle power of the same session; the last column is how far integrated power is from the
    counter where there are both.
    """
    loops = table.dropna(subset="energy_j").rename(columns={"energy_method": "meter"})
    shown = pd.DataFrame({"mJ/call": loops["energy_j"] * 1e3,
                          "mJ/call above idle": loops["energy_j"] * 1e3 * (1 - loops["idle_w"] / loops["power_w"]),
                          "mean W": loops["power_w"], "idle W": loops["idle_w"],
                          "integral to counter, %": loops["energy_disagreement"].abs() * 100})
    groups = shown.groupby([loops[name] for name in ("op", "pass", "meter")], sort=False)
    medians = groups.median()
    medians.insert(0, "configurations", groups.size())
    return medians.reset_index()


# ------------------------------------------------------------------------------------------------- numbers of sentences

def numbers(results: Sweep) -> Numbers:
    """Return how the sweep went: verdicts, failures, pace; how far its rounds agree; what its usable points reach.

    Also the power that looped operators draw, and how far both ways to their energy differ; or why none was looped.
    """
    usable, measured = results.usable, results.table.query("status == 'ok'")
    failed = results.table.query("status != 'ok'").groupby("status")["reason"].agg(["size", "first"]).reset_index()
    rate = pace(results.visits) if len(results.visits) and len(measured) else np.nan
    computing = usable.query("gflops > 0")
    loops = measured.dropna(subset="energy_j").eval("""
        above_w = power_w - idle_w
        apart = abs(energy_disagreement) * 100""")
    return {"measured": measured.assign(spread=spread(measured)), "failed": failed, "rate": rate,
            "verdicts": measured["verdict"].value_counts().reindex(VERDICTS, fill_value=0),
            "slower_low": 15 * rate, "slower_high": 20 * rate, "usable": usable,
            "stable_share": (measured["verdict"] == "stable").mean(), "spread_p90": spread(measured).quantile(0.9),
            "small_us": usable.nsmallest(max(1, len(usable) // 10), "bytes")["latency_ms"].median() * 1e3,
            "computing": computing, "factor": computing["gflops"].max() / computing["gflops"].min(),
            "families": by_family(measured), "loops": loops, "meters": sorted(set(loops["energy_method"])),
            "energy_reason": next(iter(measured["energy_reason"].mode()), None)}


def key_numbers(results: Sweep, label: str) -> KeyNumbers:
    """Return the key numbers of a sweep: name to value, unit and tolerance."""
    measured = results.table.query("status == 'ok'")
    return {f"{label} configurations": (len(results.table), "", 0.0),
            f"{label} usable configurations": (len(results.usable), "", 0.0),
            f"{label} median spread of the rounds": (spread(measured).median(), "%", 0.001),
            f"{label} best rate": (results.usable["gflops"].max(), "GFLOP/s", 0.001)}
