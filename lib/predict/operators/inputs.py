"""What a model is given of operators: the part that answers for them, the terms of their time, and their features.

A CPU (``chip`` None) and, relative to a chip, a GPU take the same way.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import entry
from lib.predict.operators import features, features_gpu
from lib.predict.operators.chip import Chip
from lib.predict.operators.features import Columns, Row

KIND = ["op", "kind", "layout"]  # texts that a model must have been trained on to answer in range


def groups(row: Row, chip: Chip | None) -> np.ndarray:
    """Return the group of families of each operator."""
    return features.groups(row) if chip is None else features_gpu.groups(row, chip)


def by_part(table: pd.DataFrame, chip: Chip | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each part with its name, group and pass; InputError for families without features."""
    names = pd.Series(groups(features.columns(table), chip), index=table.index) + " " + table["pass"]
    yield from table.groupby(names, sort=False)


def _values(row: Row, group: str, chip: Chip | None) -> tuple[Columns, Columns]:
    """Return terms and features by name of operators that ``group`` answers for."""
    return features.values(row, group) if chip is None else features_gpu.values(row, group, chip)


def arrays(row: Row, group: str, chip: Chip | None) -> list[np.ndarray]:
    """Return terms (n, terms) and features (n, features) of operators that ``group`` answers for."""
    stacked = []
    for columns in _values(row, group, chip):
        stacked.append(np.empty((len(row.flops), len(columns))))
        for number, value in enumerate(columns.values()):
            stacked[-1][:, number] = value
    return stacked


def frames(rows: pd.DataFrame, chip: Chip | None) -> list[pd.DataFrame]:
    """Return terms and features of the rows of one part as tables aligned with it."""
    row = features.columns(rows)
    return [pd.DataFrame(columns, index=rows.index, dtype=float)
            for columns in _values(row, str(groups(row, chip)[0]), chip)]


def names(part: str, chip: Chip | None) -> list[list[str]]:
    """Return the names of the terms and of the features of a part (group and pass); InputError where there is no such part."""
    group, _, passes = part.partition(" ")
    families = entry(features.GROUPS if chip is None else features_gpu.GROUPS, group, "group")
    entry(("forward", "backward"), passes, "pass")
    return [list(columns) for columns in _values(features.example(families[0]), group, chip)]


def kinds(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the families, kinds and layouts in a table."""
    return sorted(set(rows.reindex(columns=KIND).fillna("").itertuples(index=False, name=None)))


def codes(row: Mapping[str, Any]) -> np.ndarray:
    """Return family, kind and layout of each operator as one number."""
    op, kind, layout = (features.code(name, row[name]) for name in KIND)
    return (op * 100 + kind + 1) * 100 + layout + 1
