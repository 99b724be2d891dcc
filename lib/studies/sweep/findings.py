"""What an operator sweep says, in sentences and tables: rounds, families, work."""

import pandas as pd

from lib.measure.operators.aggregate import Sweep, pace
from lib.measure.timing import VERDICTS


def by_family(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a family and pass: configurations, verdicts, latency, spread and rates."""
    rows = []
    for (op, passes), part in table.groupby(["op", "pass"], sort=False):
        good = part[part["status"] == "ok"]
        counts = good["verdict"].value_counts()
        rows.append({"op": op, "pass": passes, "configurations": len(part),
                     **{name: int(counts.get(name, 0)) for name in VERDICTS},
                     "not ok": int((part["status"] != "ok").sum()), "median ms": good["latency_ms"].median(),
                     "IQR %": float((good["latency_iqr_ms"] / good["latency_ms"]).median() * 100),
                     "median GFLOP/s": good["gflops"].median(), "best GFLOP/s": good["gflops"].max(),
                     "median GB/s": good["gbps"].median()})
    return pd.DataFrame(rows)


def sweep_words(found: Sweep) -> str:
    """Say how the sweep went: points, verdicts, what was left out, pace."""
    table = found.table
    good = table[table["status"] == "ok"]
    counts = good["verdict"].value_counts()
    text = (f"**{len(good)} configurations** were measured: {counts.get('stable', 0)} stable, {counts.get('noisy', 0)} noisy, "
            f"{counts.get('unusable', 0)} unusable (kept in the file, left out of the figures).")
    for status, part in table[table["status"] != "ok"].groupby("status"):
        text += f" {len(part)} {status}, the first because: {part['reason'].iloc[0]}."
    if len(found.visits):
        rate = pace(found.visits)
        text += (f" With {int(good['n'].median())} rounds each, that is **{rate:.1f} configurations a second**; the "
                 f"convolution study of 2023 took 15 to 20 s a point, {15 * rate:.0f} to {20 * rate:.0f} times as long.")
    return text


def work_words(table: pd.DataFrame) -> str:
    """Say how much the achieved rates differ, and what the small operators cost."""
    computing = table[table["gflops"] > 0]
    small = table.nsmallest(max(1, len(table) // 10), "bytes")
    low, high = computing["gflops"].min(), computing["gflops"].max()
    return (f"Achieved rates run from {low:.2g} to {high:,.0f} GFLOP/s, a factor of {high / low:,.0f}: FLOPs alone say little "
            f"about time. The tenth with the fewest bytes takes {small['latency_ms'].median() * 1000:.1f} µs at the median: "
            "there the call itself is what costs.")
