"""The tables of the roofline study, as people read them, the numbers of its sentences, and its key numbers."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from lib.predict.analytic.roofline import Roof, roof_of
from lib.report.sentences import KeyNumbers, Numbers
from lib.studies.roofline.study import Study

POINT = ["label", "arch", "batch_size", "precision", "elapsed_ms", "ai", "attained_gflops", "attainable_gflops",
          "% of attainable", "bound", "bytes_source", "verdict"]
KERNEL = ["label", "calls", "elapsed_sec", "ai", "attained_gflops", "% of attainable", "bound"]


def percent(points: pd.DataFrame) -> pd.Series:
    """Return the performance of each point, % of what is attainable at its intensity; above 100: above its roof."""
    return 100 / points["below_roof"]


def roofs(roofs_: Iterable[Roof]) -> pd.DataFrame:
    """Return a row an element type and memory level: device, source, dtype, level, peaks and ridge point (FLOP/byte)."""
    return pd.DataFrame([(roof.device, roof.source, roof.dtype, level, roof.peak_gflops, rate, roof.ridge_point(level))
                         for roof in roofs_ for level, rate in roof.peak_gbps.items()],
                        columns="device source dtype level peak_gflops peak_gbps ridge_point".split())


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return points (a table of that name) with their time in ms and µs and their share of attainable performance."""
    seconds = frame["elapsed_sec"]
    return frame.assign(elapsed_ms=seconds * 1e3, elapsed_us=seconds * 1e6, **{"% of attainable": percent(frame)})


def by_level(frame: pd.DataFrame, measured: Sequence[Roof]) -> pd.DataFrame:
    """Return points with their time in µs and, a column each, the GFLOP/s that every memory level would allow."""
    levels = list(dict.fromkeys(name for roof in measured for name in roof.peak_gbps))
    judges = [roof_of(measured, row) for row in frame.itertuples(index=False)]
    allowed = [[roof.attainable(ai, name) for name in levels] for roof, ai in zip(judges, frame["ai"], strict=True)]
    table = points(frame).reset_index(drop=True)
    return pd.concat([table["label family occurrences elapsed_us ai level attained_gflops".split()],
                      pd.DataFrame(allowed, columns=levels), table[["% of attainable", "bound", "verdict"]]], axis=1)


def by_family(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a family: n, medians of intensity and share of attainable performance, total time, counts of bounds."""
    groups = frame.assign(share=percent(frame)).groupby("family", sort=False)
    table = groups.agg(n=("label", "size"), ai=("ai", "median"), share=("share", "median"),
                       elapsed_ms=("elapsed_sec", lambda seconds: seconds.sum() * 1e3)).reset_index()
    bounds = pd.crosstab(frame["family"], frame["bound"]).reindex(table["family"]).reset_index(drop=True)
    return pd.concat([table.rename(columns={"share": "% of attainable"}), bounds], axis=1)


# ------------------------------------------------------------------------------------------------- numbers of sentences

def ceilings(roof: Roof) -> Numbers:
    """Return one roof, and the memory levels that are nearer than the one that judges."""
    table = roofs([roof])
    return {"roof": roof, "caches": table[table["level"] != roof.last]}


def above(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the points above their roof: their bytes were moved less often, or from nearer, than was assumed."""
    return frame[percent(frame) > 100]


def bounds(frame: pd.DataFrame, what: str) -> Numbers:
    """Return points with their ``share`` of attainable performance, what bounds them, and which exceed 100 %."""
    over = above(frame)
    return {"what": what, "bounds": frame["bound"].value_counts().rename_axis("bound").reset_index(),
            "over": over.assign(excess=percent(over) - 100), "points": frame.assign(share=percent(frame))}


def operators(results: Study) -> Numbers:
    """Return how much of a network its operators explain, and the families: where the time goes and what share they attain."""
    rows = results.operators
    times_s = (rows["elapsed_sec"] * rows["occurrences"]).groupby(rows["family"]).sum()
    families = pd.DataFrame({"time_share": times_s / times_s.sum(), "attained": percent(rows).groupby(rows["family"]).median()})
    network = results.networks[results.networks["arch"].isin(rows["arch"])].head(1)
    network_s = network["elapsed_sec"].sum() or np.nan
    return {"operators_ms": times_s.sum() * 1e3, "network": next(iter(network["arch"]), None), "network_ms": network_s * 1e3,
            "network_share": times_s.sum() / network_s, "families": families.reset_index()}


def compared(table: pd.DataFrame) -> Numbers:
    """Return how far steps and networks lie from one roof, and from the sum of their operators at theirs.

    ``table``: ``study.against_operators``. Medians split the distance into alternation between operators, and the rest.
    """
    return {"distances": table.eval("gap = operators_roof_ms / roof_ms\ntotal = measured_ms / roof_ms"),
            "cached": table["over_operators"].min() < 1}


def against_vendor(results: Study, dtype: str) -> Numbers:
    """Return where steps and networks lie, and a vendor's ceilings over those measured here (None: no vendor)."""
    measured, stated = results.roof(dtype), next((roof for roof in results.vendor if roof.dtype == dtype), None)
    return {"right": (results.whole["ai"] >= measured.ridge_point()).sum(), "count": len(results.whole) or None,
            "dtype": dtype, "vendor": results.vendor[0].device if results.vendor else None, "stated": stated,
            "gflops_ratio": stated and stated.peak_gflops / measured.peak_gflops,
            "gbps_ratio": stated and stated.gbps() / measured.gbps()}


def key_numbers(results: Study, table: pd.DataFrame, dtype: str) -> KeyNumbers:
    """Return the key numbers: name to value, unit and tolerance; ``table`` as for ``compared``."""
    shares = _judged(results.whole, results.roofs)
    name, over = results.roofs[0].device.replace(":", "-"), len(above(results.whole)) + len(above(results.operators))
    return {f"{name} {dtype} ridge point": (results.roof(dtype).ridge_point(), "FLOP/byte"),
            f"{name} training steps": (len(results.steps), "points"),
            f"{name} points above their roof": (over, "points"),
            f"{name} largest share of attainable performance": (shares.max(), "%"),
            f"{name} largest memory-bound share": (table["memory_bound_pct"].max(), "%"),
            **{f"{label}: share of attainable performance": (share, "%")
               for label, share in zip(results.steps["label"], _judged(results.steps, results.roofs), strict=True)}}


def _judged(points: pd.DataFrame, candidates: Sequence[Roof]) -> pd.Series:
    """Return ``percent`` of points, NaN where the peak or the bandwidth of their roof was measured on a busy machine only."""
    judges = [roof_of(candidates, row) for row in points.itertuples(index=False)]
    return percent(points).mask(np.array([bool({roof.dtype, roof.last} & set(roof.doubtful)) for roof in judges], bool))
