"""What an operator sweep says, in sentences and tables: rounds, families, work."""

import pandas as pd

from lib.errors import choices
from lib.measure.operators.aggregate import Sweep, pace
from lib.measure.statistics import VERDICTS
from lib.missing import needs


def by_family(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a family and pass: configurations, verdicts, latency, spread and rates."""
    rows, names = [], ["op", "pass", "configurations", *VERDICTS, "not ok", "median ms", "IQR %", "median GFLOP/s",
                       "best GFLOP/s", "median GB/s"]
    for (op, passes), part in table.groupby(["op", "pass"], sort=False):
        good = part[part["status"] == "ok"]
        counts = good["verdict"].value_counts()
        rows.append({"op": op, "pass": passes, "configurations": len(part),
                     **{name: int(counts.get(name, 0)) for name in VERDICTS},
                     "not ok": int((part["status"] != "ok").sum()), "median ms": good["latency_ms"].median(),
                     "IQR %": float((good["latency_iqr_ms"] / good["latency_ms"]).median() * 100),
                     "median GFLOP/s": good["gflops"].median(), "best GFLOP/s": good["gflops"].max(),
                     "median GB/s": good["gbps"].median()})
    return pd.DataFrame(rows, columns=names)


def by_device(table: pd.DataFrame) -> pd.DataFrame:
    """Return the median latency (ms) by family and pass, a column a device, of configurations that all of them measured."""
    same = ["op", "pass", "dtype", "latency_type", "cache"]
    wide = table.pivot_table(index=[*same, "config"], columns="device", values="latency_ms").dropna()
    groups = wide.groupby(same, sort=False)
    return groups.median().assign(configurations=groups.size()).reset_index() if wide.shape[1] > 1 else wide.iloc[:0]


def sweep_words(results: Sweep) -> str:
    """Say how the sweep went: points, verdicts, what was left out, pace."""
    table = results.table
    good = table[table["status"] == "ok"]
    counts = good["verdict"].value_counts()
    text = (f"**{len(good)} configurations** were measured: {counts.get('stable', 0)} stable, {counts.get('noisy', 0)} noisy, "
            f"{counts.get('unusable', 0)} unusable (in the file, but left out of the figures).")
    for status, part in table[table["status"] != "ok"].groupby("status"):
        text += f" {len(part)} {status}, the first because: {part['reason'].iloc[0]}."
    if len(results.visits) and len(good):
        rate = pace(results.visits)
        text += (f" With {int(good['n'].median())} rounds each, that is **{rate:.1f} configurations a second**; the "
                 f"convolution study of 2023 took 15 to 20 s a point, {15 * rate:.0f} to {20 * rate:.0f} times as long.")
    return text


@needs("usable configurations")
def work_words(table: pd.DataFrame) -> str:
    """Say how much the achieved rates differ, and what the small operators cost."""
    computing = table[table["gflops"] > 0]
    small = table.nsmallest(max(1, len(table) // 10), "bytes")
    text = (f"The tenth with the fewest bytes takes {small['latency_ms'].median() * 1000:.1f} µs at the median: there the call "
            "itself is what costs.")
    if computing.empty:
        return f"None of these operators computes. {text}"
    low, high = computing["gflops"].min(), computing["gflops"].max()
    return (f"Achieved rates run from {low:.2g} to {high:,.0f} GFLOP/s, a factor of {high / low:,.0f}: FLOPs alone say little "
            f"about time. {text}")


def energy(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a family, pass and meter of the configurations that have an energy; medians, per call.

    Above idle is what exceeds the idle power of the same session; the last column is how far integrated power is from the
    counter where there are both.
    """
    loops = table[table["energy_j"].notna()]
    named = loops.assign(**{"mJ/call": loops["energy_j"] * 1e3, "mean W": loops["power_w"], "idle W": loops["idle_w"],
                            "mJ/call above idle": loops["energy_j"] * 1e3 * (1 - loops["idle_w"] / loops["power_w"]),
                            "integral to counter, %": loops["energy_disagreement"].abs() * 100})
    groups = named.groupby(["op", "pass", "energy_method"], sort=False)
    medians = groups[["mJ/call", "mJ/call above idle", "mean W", "idle W", "integral to counter, %"]].median()
    return medians.assign(configurations=groups.size()).reset_index().rename(columns={"energy_method": "meter"})[
        ["op", "pass", "meter", "configurations", *medians]]


@needs("measured configurations")
def energy_words(table: pd.DataFrame) -> str:
    """Say what power the looped operators draw, and how far both ways to their energy differ; or why none was looped."""
    loops = table[table["energy_j"].notna()]
    if loops.empty:
        return f"Energy was not measured: {table['energy_reason'].value_counts().index[0]}."
    ways = choices(sorted(set(loops["energy_method"])))
    text = f"The energy of {len(loops)} of {len(table)} points was measured ({ways}): they draw {_range(loops['power_w'])} W"
    if loops["idle_w"].notna().any():
        text += f", {_range(loops['power_w'] - loops['idle_w'])} W above idle"
    both = loops["energy_disagreement"].abs().dropna() * 100
    if len(both):
        text += f"; integrated power and the counter differ by {both.median():.1f} % at the median of {len(both)}"
    return f"{text}."


def _range(watts: pd.Series) -> str:
    return f"{watts.min():.1f} to {watts.max():.1f}"


def spread(table: pd.DataFrame) -> pd.Series:
    """Return the IQR over the rounds of each measured configuration, % of its median."""
    return table["latency_iqr_ms"] / table["latency_ms"] * 100


@needs("measured configurations")
def spread_words(table: pd.DataFrame) -> str:
    """Say how well the rounds of the measured configurations agree."""
    percent = spread(table)
    return (f"Half of the points repeat within **{percent.median():.1f} %**, nine tenths within "
            f"**{percent.quantile(0.9):.1f} %**.")


@needs("measured configurations", "usable")
def learned_words(measured: pd.DataFrame, usable: pd.DataFrame) -> str:
    """Say what to keep of a sweep: how many points are usable, the fastest, and the kind that repeats worst."""
    lines, worst_kind = [], by_family(measured).sort_values("IQR %").iloc[-1]
    computing = usable[usable["gflops"] > 0]
    if len(computing):
        best = computing.loc[computing["gflops"].idxmax()]
        lines.append(f"The fastest point reaches **{best['gflops']:,.0f} GFLOP/s** ({best['op']}, {best['pass']}).")
    lines += [f"{len(usable)} of {len(measured)} measured points are usable, {(measured['verdict'] == VERDICTS[0]).mean():.0%} "
              "are stable; the others are marked, not hidden.",
              f"The kind that repeats worst is {worst_kind['op']} {worst_kind['pass']}: its rounds spread by "
              f"{worst_kind['IQR %']:.1f} % at the median."]
    lines += [energy_words(measured)] if measured["energy_j"].notna().any() else []
    return "\n".join(f"- {line}" for line in lines)


def key_numbers(results: Sweep, label: str, exact: bool) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers of a sweep, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce."""
    counted, rated = (0.0, 0.001) if exact else (None, None)
    measured = results.table[results.table["status"] == "ok"]
    return {f"{label} configurations": (len(results.table), "", counted),
            f"{label} usable configurations": (len(results.usable), "", counted),
            f"{label} median spread of the rounds": (spread(measured).median(), "%", rated),
            f"{label} best rate": (results.usable["gflops"].max(), "GFLOP/s", rated)}
