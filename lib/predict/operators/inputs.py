"""What a model is given of operators: the part that answers for them, the terms of their time, and their features.

A CPU (``chip`` None) and, relative to a chip, a GPU take the same way.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from lib.errors import choices
from lib.predict.operators import features, features_gpu
from lib.predict.operators.chip import Chip
from lib.predict.operators.features import Row

_PASSES = ("forward", "backward")
_KIND = ("op", "kind", "layout")  # texts that a model must have been trained on to answer in range


def groups(row: Row, chip: Chip | None) -> np.ndarray:
    """Return the group of families of each operator."""
    return features.groups(row) if chip is None else features_gpu.groups(row, chip)


def by_part(table: pd.DataFrame, chip: Chip | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each part with its name, group and pass; InputError for families without features."""
    names = pd.Series(groups(features.columns(table), chip), index=table.index) + " " + table["pass"]
    yield from table.groupby(names, sort=False)


def _values(row: Row, group: str, chip: Chip | None) -> tuple[Row, Row]:
    """Return terms and features by name of operators that ``group`` answers for."""
    if chip is None:
        return features.terms(row, group), features.features(row, group)
    return features_gpu.terms(row, group, chip), features_gpu.features(row, group, chip)


def _stacked(values: Row, row: Row) -> np.ndarray:
    stacked = np.empty((len(row["flops"]), len(values)))
    for number, value in enumerate(values.values()):
        stacked[:, number] = value
    return stacked


def arrays(row: Row, group: str, chip: Chip | None) -> tuple[np.ndarray, np.ndarray]:
    """Return terms (n, terms) and features (n, features) of operators that ``group`` answers for."""
    return tuple(_stacked(values, row) for values in _values(row, group, chip))


def frames(rows: pd.DataFrame, chip: Chip | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms and features of the rows of one part as tables aligned with it."""
    row = features.columns(rows)
    return tuple(pd.DataFrame(_stacked(values, row), columns=list(values), index=rows.index)
                 for values in _values(row, str(groups(row, chip)[0]), chip))


def names(part: str, chip: Chip | None) -> tuple[list[str], list[str]]:
    """Return the names of the terms and of the features of a part (group and pass); ValueError where there is no such part."""
    group, _, passes = part.partition(" ")
    all_groups = features.GROUPS if chip is None else features_gpu.GROUPS
    for noun, name, known in (("group", group, all_groups), ("pass", passes, _PASSES)):
        if name not in known:
            raise ValueError(f"there is no {noun} {name!r}; there are: {choices(known)}")
    return tuple(map(list, _values(features.one(all_groups[group][0], {}, 1.0, 1.0), group, chip)))


def kinds(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the families, kinds and layouts in a table."""
    return sorted(set(zip(*(rows[name].fillna("") if name in rows else [""] * len(rows) for name in _KIND), strict=True)))


def codes(row: Row) -> np.ndarray:
    """Return family, kind and layout of each operator as one number."""
    op, kind, layout = (features.code(name, row[name]) for name in _KIND)
    return (op * 100 + kind + 1) * 100 + layout + 1


def codes_of(kinds: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Return the numbers of families, kinds and layouts."""
    return codes(dict(zip(_KIND, zip(*kinds, strict=True), strict=True))) if kinds else np.zeros(0)
