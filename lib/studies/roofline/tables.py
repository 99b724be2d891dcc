"""The tables of the roofline study, as people read them."""

from collections.abc import Iterable, Sequence

import pandas as pd

from lib.predict.analytic.roofline import Roof, roof_of

_POINT = ["label", "arch", "batch_size", "precision", "elapsed_ms", "ai", "attained_gflops", "attainable_gflops",
          "% of attainable", "bound", "bytes_source", "verdict"]


def percent(points: pd.DataFrame) -> pd.Series:
    """Return the performance of each point, % of what is attainable at its intensity; above 100: above its roof."""
    return 100 / points["below_roof"]


def roofs(roofs_: Iterable[Roof]) -> pd.DataFrame:
    """Return a row an element type and memory level: device, source, dtype, level, peaks and ridge point (FLOP/byte)."""
    return pd.DataFrame([{"device": roof.device, "source": roof.source, "dtype": roof.dtype, "level": level,
                          "peak_gflops": roof.peak_gflops, "peak_gbps": rate, "ridge_point": roof.ridge_point(level)}
                         for roof in roofs_ for level, rate in roof.peak_gbps.items()],
                        columns=["device", "source", "dtype", "level", "peak_gflops", "peak_gbps", "ridge_point"])


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return points (a table of that name) with their time in ms and their share of attainable performance."""
    return frame.assign(elapsed_ms=frame["elapsed_sec"] * 1e3, **{"% of attainable": percent(frame)})[_POINT]


def kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return points whose operations and bytes hardware counted."""
    shown = ["label", "calls", "elapsed_sec", "ai", "attained_gflops", "% of attainable", "bound"]
    return frame.assign(**{"% of attainable": percent(frame)})[shown]


def by_level(frame: pd.DataFrame, measured: Sequence[Roof]) -> pd.DataFrame:
    """Return points with their time in µs and, a column each, the GFLOP/s that every memory level would allow."""
    levels = list(dict.fromkeys(name for roof in measured for name in roof.peak_gbps))
    judges = [roof_of(measured, row) for row in frame.itertuples(index=False)]
    allowed = [[roof.attainable(ai, name) for name in levels] for roof, ai in zip(judges, frame["ai"], strict=True)]
    shown = ["label", "family", "occurrences", "elapsed_us", "ai", "level", "attained_gflops"]
    own = frame.assign(elapsed_us=frame["elapsed_sec"] * 1e6, **{"% of attainable": percent(frame)}).reset_index(drop=True)
    return pd.concat([own[shown], pd.DataFrame(allowed, columns=levels), own[["% of attainable", "bound", "verdict"]]], axis=1)


def by_family(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a family: n, medians of intensity and share of attainable performance, total time, counts of bounds."""
    groups = frame.assign(share=percent(frame)).groupby("family", sort=False)
    table = groups.agg(n=("label", "size"), ai=("ai", "median"), share=("share", "median"),
                       elapsed_ms=("elapsed_sec", lambda seconds: seconds.sum() * 1e3)).reset_index()
    bounds = pd.crosstab(frame["family"], frame["bound"]).reindex(table["family"]).reset_index(drop=True)
    return pd.concat([table.rename(columns={"share": "% of attainable"}), bounds], axis=1)
