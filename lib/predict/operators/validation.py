"""Which rows train a model, which no fold may split, and how errors on held-out groups become scores and intervals."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.measure.statistics import is_usable
from lib.predict.operators import features
from lib.predict.scores import half_interval

FOLDS = 5
_BINS = 4  # of predicted time: small kernels err otherwise than large ones


def usable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a ``sweep`` table that may train a model.

    Raises InputError for times that are not positive numbers, and for a mixture of machines, devices, threads, element types or
    ways of timing, which one model cannot answer for.
    """
    good = table[is_usable(table)].copy()
    bad = good[~(good["latency_ms"] > 0) | ~np.isfinite(good["latency_ms"])]
    if len(bad):
        raise InputError(f"{len(bad)} rows have no positive time, the first is {bad['op'].iloc[0]} {bad['config'].iloc[0]}: "
                         f"{bad['latency_ms'].iloc[0]} ms")
    for column in "hardware_id device threads dtype latency_type cache".split():
        if len(set(good[column])) > 1:
            raise InputError(f"one model answers for one value of {column}, the table has "
                             f"{choices(sorted(good[column].unique()))}")
    return good


def shapes_of(table: pd.DataFrame) -> pd.Series:
    """Return for each row the group that may not be split: the same family and shape, whatever its pass, bias or kind."""
    sizes = table.reindex(columns=features.SIZES).astype(float).fillna(-1).itertuples(index=False, name=None)
    return table["op"].astype(str) + " " + pd.Series(map(str, sizes), table.index, dtype=str)


def matrices_of(table: pd.DataFrame) -> pd.Series:
    """Return for each row of GEMMs on a grid the group that may not be split: all M of one N and K are near one another."""
    return table[["op", "gemm_n", "gemm_k"]].astype(str).agg(" ".join, axis=1)


def sizes_of(table: pd.DataFrame) -> pd.Series:
    """Return ``shapes_of``; memory-bound rows of as many elements are one group, whatever their family."""
    elements = table.reindex(columns=features.SIZES).astype(float).fillna(1).prod(axis=1)
    return shapes_of(table).mask(table["op"].isin(features.GROUPS["memory"]), elements.astype(str))


def folds(groups: pd.Series, count: int = FOLDS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (train, test) row numbers of ``count`` folds, fewer where there are fewer groups; none splits a group."""
    from sklearn.model_selection import GroupKFold

    return list(GroupKFold(min(count, groups.nunique()), shuffle=True, random_state=0).split(groups, groups=groups))


def conformal(error: np.ndarray, size: np.ndarray, bins: int = _BINS) -> tuple[list[float], list[float]]:
    """Return bin edges of ``size`` and the ``half_interval`` in each, from errors on unseen groups."""
    bins = max(1, min(bins, len(error) // 60))
    edges = list(map(float, np.quantile(size, np.arange(1, bins) / bins)))
    place = np.searchsorted(edges, size)
    return edges, [half_interval(error[place == number]) for number in range(bins)]


def worse(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return whether answers have become worse: their mean error and their median error are both larger."""
    return all(after[name] > before[name] for name in ("mape", "median"))
