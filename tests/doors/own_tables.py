"""The door of the project's own tables (``lib.store.read``): every schema, as CSV and as Parquet."""

import math

import pandas as pd
from hypothesis import strategies as st

from lib import store, tables
from lib.columns import DTYPES
from tests.doors import ANY, SAME, WRONG, Door, csv_texts, damaged, pass_through, pick

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)


def cell(column):
    """Return what a column may hold."""
    if column.kind == "bool":
        return st.booleans()
    if column.kind == "text":
        return st.sampled_from(column.of) if column.of else TEXT
    least = -1e6 if column.least is None else column.least
    value = st.integers(int(least), 10**9) if column.kind in ("int", "count") else st.floats(least, 1e12)
    return value | st.just(None if column.kind == "count" else math.nan) if column.empty else value


def wrong_cells(column):
    """Return texts that a column must not hold."""
    empty = [] if column.empty else [""]
    if column.kind == "text":
        return empty + ["neither of them"] * bool(column.of)
    texts = ["x", "1x", "--1", "0x10", *empty, *(["nan", "NA"] if empty else [])]
    if column.kind in ("int", "count"):
        texts += ["1.5", "1e400"]
    if column.least is not None and column.kind != "bool":
        texts += [str(column.least - 1), "inf", "-inf"]
    return texts


def _attempt(data, folder):
    table = pick(data, sorted(tables.TABLES), "table")
    columns = tables.TABLES[table]
    values = data.draw(st.lists(st.tuples(*map(cell, columns)), min_size=1, max_size=4), label="rows")
    frame = pd.DataFrame(values, columns=tables.columns(table)).astype({one.name: DTYPES[one.kind] for one in columns})
    hows = [*csv_texts.SHAPES, "a wrong cell", "a column less", "a column more", "parquet", "parquet, damaged"]
    how = pick(data, hows, "how")
    path, kind = folder / "table.csv", WRONG
    rows = csv_texts.parsed(store.encoded(frame, ".csv"))
    if "parquet" in how:
        kind, path, content = SAME, path.with_suffix(".parquet"), store.encoded(frame, ".parquet")
        if how == "parquet, damaged":
            kind, content = ANY, damaged(content, data)
    elif how in csv_texts.SHAPES:
        kind, change = csv_texts.SHAPES[how]
        content = change(rows, data)
    else:
        content = csv_texts.written(_changed(rows, columns, how, data))
    path.write_bytes(content)
    return pass_through(lambda: store.read(path, table), kind, f"{table} with {how}", frame)


def _changed(rows, columns, how, data):
    if how == "a column more":
        return [[*row, "more" if number == 0 else "1"] for number, row in enumerate(rows)]
    column = pick(data, [number for number, one in enumerate(columns) if wrong_cells(one)], "column")
    if how == "a column less":
        return csv_texts.without(rows, column)
    pick(data, rows[1:], "row")[column] = pick(data, wrong_cells(columns[column]), "cell")
    return rows


DOOR = Door("own tables", _attempt)
