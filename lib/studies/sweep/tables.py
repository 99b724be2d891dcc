"""The tables of an operator sweep: by family, by device, and energy."""

import pandas as pd

from lib.measure.statistics import VERDICTS


def spread(table: pd.DataFrame) -> pd.Series:
    """Return the IQR over the rounds of each measured configuration, % of its median."""
    return table["latency_iqr_ms"] / table["latency_ms"] * 100


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
    loops = table[table["energy_j"].notna()].rename(columns={"energy_method": "meter"})
    named = loops.assign(**{"mJ/call": loops["energy_j"] * 1e3, "mean W": loops["power_w"], "idle W": loops["idle_w"],
                            "mJ/call above idle": loops["energy_j"] * 1e3 * (1 - loops["idle_w"] / loops["power_w"]),
                            "integral to counter, %": loops["energy_disagreement"].abs() * 100})
    groups = named.groupby(["op", "pass", "meter"], sort=False)
    medians = groups[["mJ/call", "mJ/call above idle", "mean W", "idle W", "integral to counter, %"]].median()
    medians.insert(0, "configurations", groups.size())
    return medians.reset_index()
