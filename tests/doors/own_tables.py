"""The door of the project's own tables (``lib.store.read``): every schema, as CSV and as Parquet."""

import math

import pandas as pd
from hypothesis import strategies as st

from lib import store, tables
from tests.doors import ANY, SAME, Door, csv_texts, damaged, pass_through, pick

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)


def cell(column):
    """Return what a column may hold."""
    if column.kind == "bool":
        return st.booleans()
    if column.kind == "str":
        return st.sampled_from(column.of) if column.of else TEXT
    least = -1e6 if column.least is None else column.least
    value = st.integers(int(least), 10**9) if column.kind == "int64" else st.floats(least, 1e12)
    return value | st.just(None if column.kind == "int64" else math.nan) if column.empty else value


def wrong_cells(column):
    """Return texts that a column must not hold."""
    empty = [] if column.empty else [""]
    if column.kind == "str":
        return empty + ["neither of them"] * bool(column.of)
    texts = ["x", "1x", "--1", "0x10", *empty, *(["nan", "NA"] if empty else [])]
    if column.kind == "int64":
        texts += ["1.5", "1e400"]
    if column.least is not None and column.kind != "bool":
        texts += [str(column.least - 1), "inf", "-inf"]
    return texts


def _attempt(data, folder):
    table = pick(data, sorted(tables.TABLES), "table")
    columns = list(tables.TABLES[table].values())
    values = data.draw(st.lists(st.tuples(*map(cell, columns)), min_size=1, max_size=4), label="rows")
    frame = pd.DataFrame(values, columns=tables.columns(table)).astype(
        {name: one.dtype for name, one in tables.TABLES[table].items()})
    rows, path = csv_texts.parsed(store.encoded(frame, ".csv")), folder / "table.csv"
    column = pick(data, [number for number, one in enumerate(columns) if wrong_cells(one)], "column")

    def wrong_cell():
        pick(data, rows[1:], "row")[column] = pick(data, wrong_cells(columns[column]), "cell")
        return rows

    if data.draw(st.booleans(), "as Parquet"):
        how, kind, path, content = "parquet", SAME, path.with_suffix(".parquet"), store.encoded(frame, ".parquet")
        if data.draw(st.booleans(), "damaged"):
            kind, content = ANY, damaged(content, data)
    else:
        how, kind, content = csv_texts.drawn(rows, data, {
            "a wrong cell": wrong_cell, "a column less": lambda: csv_texts.without(rows, 0),
            "a column more": lambda: [[*row, "more" if row is rows[0] else "1"] for row in rows]})
    path.write_bytes(content)
    return pass_through(lambda: store.read(path, table), kind, f"{table} with {how}", frame)


DOOR = Door("own tables", _attempt)
