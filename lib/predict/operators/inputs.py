"""What a model is given of operators: the part that answers for them, the terms of their time, and their features.

One operator (plain numbers) and the columns of a table take the same way, on a CPU and, relative to a chip, on a GPU.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import choices
from lib.predict.operators import features, features_gpu
from lib.predict.operators.features import Row
from lib.predict.operators.features_gpu import Chip

_KIND = ("op", "kind", "layout")  # texts that a model must have been trained on to answer in range


def groups(row: Row, chip: Chip | None) -> Any:
    """Return the group of families of one operator, or of each row."""
    return features.groups(row) if chip is None else features_gpu.groups(row, chip)


def by_part(table: pd.DataFrame, chip: Chip | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each part with its name, group and pass; InputError for families without features."""
    names = pd.Series(groups(features.columns(table), chip), index=table.index) + " " + table["pass"]
    yield from table.groupby(names, sort=False)


def arrays(row: Row, group: str, chip: Chip | None) -> tuple[np.ndarray, np.ndarray]:
    """Return terms (n, terms) and features (n, features) of operators that ``group`` answers for; n is 1 for plain numbers."""
    return tuple(_stacked(values, row) for values in _values(row, group, chip))


def frames(rows: pd.DataFrame, chip: Chip | None, group: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms and features of the rows of one part as tables aligned with it; ``group`` empty is their own."""
    row = features.columns(rows)
    several = _values(row, group or str(groups(row, chip)[0]), chip)
    return tuple(pd.DataFrame(_stacked(values, row), columns=list(values), index=rows.index) for values in several)


def names(group: str, chip: Chip | None) -> tuple[list[str], list[str]]:
    """Return the names of the terms and of the features of a group; ValueError where there is no such group."""
    several = features.GROUPS if chip is None else features_gpu.GROUPS
    if group not in several:
        raise ValueError(f"there is no group {group!r}; there are: {choices(several)}")
    row = features.one(several[group][0], {}, 1.0, 1.0)
    return tuple(list(values) for values in _values(row, group, chip))


def _values(row: Row, group: str, chip: Chip | None) -> tuple[Row, Row]:
    if chip is None:
        return features.terms(row, group), features.features(row, group)
    return features_gpu.terms(row, group, chip), features_gpu.features(row, group, chip)


def _stacked(values: Row, row: Row) -> np.ndarray:
    stacked = np.empty((np.size(row["flops"]), len(values)))
    for number, value in enumerate(values.values()):
        stacked[:, number] = value
    return stacked


def kinds(rows: pd.DataFrame) -> list[list[str]]:
    """Return the families, kinds and layouts in a table."""
    texts = [rows[name].fillna("") if name in rows else pd.Series("", index=rows.index) for name in _KIND]
    return [list(kind) for kind in sorted(set(zip(*texts, strict=True)))]


def codes(row: Row) -> np.ndarray:
    """Return family, kind and layout of one operator, or of each row, as one number."""
    op, kind, layout = (features.code(name, row[name]) for name in _KIND)
    return np.asarray((op * 100 + kind + 1) * 100 + layout + 1)


def code_of(kind: list[str]) -> float:
    """Return the number of a family, kind and layout."""
    return float(codes(dict(zip(_KIND, kind, strict=True))))
