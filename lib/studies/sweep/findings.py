"""Numbers of an operator sweep, for the sentences of 03_sweep, and its key numbers."""

import pandas as pd

from lib.errors import choices
from lib.measure.operators.aggregate import Sweep, pace
from lib.report.sentences import Numbers, extremes, first
from lib.studies.sweep.tables import by_family, spread


def numbers(results: Sweep) -> Numbers:
    """Return how the sweep went: verdicts, failures, pace; how far its rounds agree; what its usable points reach."""
    table, usable = results.table, results.usable
    measured = table[table["status"] == "ok"]
    verdicts = measured["verdict"].value_counts().reindex(["stable", "noisy", "unusable"], fill_value=0)
    failed = table[table["status"] != "ok"].groupby("status")["reason"].agg(["size", "first"]).reset_index()
    rate = pace(results.visits) if len(results.visits) and len(measured) else float("nan")
    computing = usable[usable["gflops"] > 0]
    small = usable.nsmallest(max(1, len(usable) // 10), "bytes")
    return {"measured": len(measured), **verdicts, "failed": failed, "rounds": measured["n"].median(), "rate": rate,
            "slower_low": 15 * rate, "slower_high": 20 * rate, "usable": len(usable),
            "stable_share": (measured["verdict"] == "stable").mean(), "spread_median": spread(measured).median(),
            "spread_p90": spread(measured).quantile(0.9), "small_us": small["latency_ms"].median() * 1e3,
            "computes": len(computing) > 0, "factor": computing["gflops"].max() / computing["gflops"].min(),
            **extremes(computing, "gflops"),
            **first(by_family(measured).sort_values("IQR %", ascending=False), "worst_"), **_energy(measured)}


def _energy(measured: pd.DataFrame) -> Numbers:
    """Return the power that looped operators draw, and how far both ways to their energy differ; or why none was looped."""
    loops = measured[measured["energy_j"].notna()]
    above_w, apart = loops["power_w"] - loops["idle_w"], loops["energy_disagreement"].abs().dropna() * 100
    return {"looped": len(loops) or None, "meters": choices(sorted(set(loops["energy_method"]))),
            "low_w": loops["power_w"].min(), "high_w": loops["power_w"].max(),
            "above_low_w": above_w.min(), "above_high_w": above_w.max(),
            "apart_pct": apart.median(), "apart_n": len(apart), **first(measured[["energy_reason"]].mode())}


def key_numbers(results: Sweep, label: str) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers of a sweep: name to value, unit and tolerance."""
    measured = results.table[results.table["status"] == "ok"]
    return {f"{label} configurations": (len(results.table), "", 0.0),
            f"{label} usable configurations": (len(results.usable), "", 0.0),
            f"{label} median spread of the rounds": (spread(measured).median(), "%", 0.001),
            f"{label} best rate": (results.usable["gflops"].max(), "GFLOP/s", 0.001)}
