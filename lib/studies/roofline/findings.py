"""Numbers of a device's roofline, for the sentences of 05_roofline, and its key numbers."""

import numpy as np
import pandas as pd

from lib.predict.analytic.roofline import Roof
from lib.report.sentences import Numbers, extremes
from lib.studies.roofline.study import Study
from lib.studies.roofline.tables import percent


def ceilings(roof: Roof) -> Numbers:
    """Return what one roof asks for: its ceilings, ridge points by memory level, and the doubtful of them."""
    caches = [{"cache": level, "ridge": roof.ridge_point(level)} for level in roof.peak_gbps if level != roof.last]
    return {"dtype": roof.dtype, "gflops": roof.peak_gflops, "gbps": roof.gbps(), "level": roof.last, "caches": caches,
            "ridge_point": roof.ridge_point(), "doubtful": ", ".join(roof.doubtful)}


def above(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points above their roof: their bytes were moved less often, or from nearer, than was assumed."""
    return points[percent(points) > 100]


def bounds(points: pd.DataFrame, what: str) -> Numbers:
    """Return what bounds the points, the largest and the smallest share of attainable performance, and which exceed 100 %."""
    share, over = percent(points), above(points)
    return {"what": what, "n": len(points), "bounds": points["bound"].value_counts().rename_axis("bound").reset_index(),
            "over": ", ".join(over["label"]), "over_pct": share.max() - 100,
            **extremes(points.assign(share=share), "share")}


def operators(results: Study) -> Numbers:
    """Return how much of a network its operators explain, and the families: where the time goes and what share they attain."""
    rows = results.operators
    times_s = (rows["elapsed_sec"] * rows["occurrences"]).groupby(rows["family"]).sum()
    families = pd.DataFrame({"time_share": times_s / times_s.sum(), "attained": percent(rows).groupby(rows["family"]).median()})
    network = results.networks[results.networks["arch"].isin(rows["arch"])].head(1)
    network_s = network["elapsed_sec"].sum() or np.nan
    return {"operators_ms": times_s.sum() * 1e3, "network": next(iter(network["arch"]), None), "network_ms": network_s * 1e3,
            "network_share": times_s.sum() / network_s, **extremes(families.reset_index(), "attained"),
            **extremes(families.reset_index(), "time_share", "shortest_", "longest_")}


def compared(table: pd.DataFrame) -> Numbers:
    """Return how far steps and networks lie from one roof, and from the sum of their operators at theirs.

    ``table``: ``study.against_operators``. Medians split the distance into alternation between operators, and the rest.
    """
    gap, total = table["operators_roof_ms"] / table["roof_ms"], table["measured_ms"] / table["roof_ms"]
    over = table["over_operators"]
    return {"least_gap": gap.min(), "most_gap": gap.max(), "least_over": over.min(), "most_over": over.max(),
            "cached": over.min() < 1, "total": total.median(), "alternating": gap.median(), "rest": over.median(),
            **extremes(table, "memory_bound_pct")}


def against_vendor(results: Study, dtype: str) -> Numbers:
    """Return where steps and networks lie, and a vendor's ceilings over those measured here (None: no vendor)."""
    measured, points = results.roof(dtype), results.whole
    numbers = {"right": int((points["ai"] >= measured.ridge_point()).sum()), "points": len(points) or None,
               **dict.fromkeys(("stated", "vendor", "vendor_gflops", "vendor_gbps", "gflops_ratio", "gbps_ratio"))}
    if results.vendor:
        numbers |= {"stated": False, "vendor": results.vendor[0].device}
    for stated in results.vendor:
        if stated.dtype == dtype:
            numbers |= {"stated": True, "vendor_gflops": stated.peak_gflops, "vendor_gbps": stated.gbps(),
                        "gflops_ratio": stated.peak_gflops / measured.peak_gflops,
                        "gbps_ratio": stated.gbps() / measured.gbps()}
    return numbers


def key_numbers(results: Study, table: pd.DataFrame, dtype: str) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers: name to value, unit and tolerance; ``table`` as for ``compared``."""
    name, shares = results.roofs[0].device.replace(":", "-"), percent(results.steps)
    over = len(above(results.whole)) + len(above(results.operators))
    numbers = {f"{name} {dtype} ridge point": (results.roof(dtype).ridge_point(), "FLOP/byte"),
               f"{name} training steps": (len(results.steps), "points"),
               f"{name} points above their roof": (over, "points"),
               f"{name} largest share of attainable performance": (percent(results.whole).max(), "%"),
               f"{name} largest memory-bound share": (table["memory_bound_pct"].max(), "%")}
    numbers |= {f"{label}: share of attainable performance": (share, "%")
                for label, share in zip(results.steps["label"], shares, strict=True)}
    return {key: (*number, 0.001) for key, number in numbers.items()}
