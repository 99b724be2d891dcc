"""The door of the project's own tables (``lib.store.read``): every schema, as CSV and as Parquet."""

import math
from pathlib import Path

import pandas as pd
from hypothesis import strategies as st

from lib import store
from lib.columns import DTYPES, Column
from lib.tables import TABLES
from tests.doors import ANY, SAME, WRONG, Door, csv_texts, pass_through

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)


def cell(column: Column) -> st.SearchStrategy:
    """Return what a column may hold."""
    if column.kind == "bool":
        return st.booleans()
    if column.kind == "text":
        return st.sampled_from(column.of) if column.of else TEXT
    least = -1e6 if column.least is None else column.least
    value = st.integers(int(least), 10**9) if column.kind in ("int", "count") else st.floats(least, 1e12)
    return value | st.just(None if column.kind == "count" else math.nan) if column.empty else value


def frames(table: str) -> st.SearchStrategy[pd.DataFrame]:
    """Return tables of one to four rows that fit a schema."""
    columns = TABLES[table]
    rows = st.lists(st.tuples(*map(cell, columns)), min_size=1, max_size=4)
    return rows.map(
        lambda values: pd.DataFrame(values, columns=[column.name for column in columns]).astype(
            {column.name: DTYPES[column.kind] for column in columns}
        )
    )


def wrong_cells(column: Column) -> list[str]:
    """Return texts that a column must not hold."""
    if column.kind == "text":
        return [*(["neither of them"] if column.of else []), *([] if column.empty else [""])]
    texts = ["x", "1x", "--1", "0x10"] + ([] if column.empty else ["", "nan", "NA"])
    if column.kind in ("int", "count"):
        texts += ["1.5", "1e400"]
    if column.least is not None and column.kind != "bool":
        texts += [str(column.least - 1), "inf", "-inf"]
    return texts


def _rows(frame: pd.DataFrame) -> csv_texts.Rows:
    lines = store.encoded(frame, ".csv").decode()
    import csv
    import io

    return list(csv.reader(io.StringIO(lines, newline="")))


def _attempt(data: st.DataObject, folder: Path) -> str:
    table = data.draw(st.sampled_from(sorted(TABLES)), label="table")
    frame = data.draw(frames(table), label="rows")
    how = data.draw(
        st.sampled_from(
            [
                *csv_texts.SHAPES,
                "a wrong cell",
                "a column less",
                "a column more",
                "parquet",
                "damaged parquet",
                "parquet with a column more",
            ]
        ),
        label="how",
    )
    path, kind = folder / "table.csv", WRONG
    if "parquet" in how:
        path, kind, content = _parquet(frame, folder, how, data)
    else:
        rows = _rows(frame)
        if how in csv_texts.SHAPES:
            kind, change = csv_texts.SHAPES[how]
            content = change(rows, data)
        else:
            content = csv_texts.written(_changed(rows, table, how, data))
    path.write_bytes(content)
    return pass_through(lambda: store.read(path, table), kind, f"{table} with {how}", frame if kind == SAME else None)


def _parquet(frame: pd.DataFrame, folder: Path, how: str, data: st.DataObject) -> tuple[Path, str, bytes]:
    path = folder / "table.parquet"
    if how == "parquet with a column more":
        return path, WRONG, store.encoded(frame.assign(more=1), ".parquet")
    content = store.encoded(frame, ".parquet")
    if how == "parquet":
        return path, SAME, content
    damaged = bytearray(content)
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3), label="at"):
        damaged[at] ^= data.draw(st.integers(1, 255))
    return path, ANY, bytes(damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) // 2, 4, 0]))])


def _changed(rows: csv_texts.Rows, table: str, how: str, data: st.DataObject) -> csv_texts.Rows:
    if how == "a column more":
        return [[*row, "more" if number == 0 else "1"] for number, row in enumerate(rows)]
    column = data.draw(
        st.sampled_from([number for number, one in enumerate(TABLES[table]) if wrong_cells(one)]), label="column"
    )
    if how == "a column less":
        return [row[:column] + row[column + 1 :] for row in rows]
    row = data.draw(st.integers(1, len(rows) - 1), label="row")
    rows[row][column] = data.draw(st.sampled_from(wrong_cells(TABLES[table][column])), label="cell")
    return rows


DOOR = Door("own tables", _attempt)
