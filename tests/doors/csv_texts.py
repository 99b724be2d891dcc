"""CSV as text, made wrong in ways that any reader of tables has to notice, or written in another way that says the same."""

import csv
import io
from collections.abc import Callable

from hypothesis import strategies as st

from tests.doors import SAME, WRONG

Rows = list[list[str]]  # the header first
Change = Callable[[Rows, st.DataObject], bytes]


def written(rows: Rows, **how) -> bytes:
    """Return rows as the bytes of a CSV."""
    text = io.StringIO()
    csv.writer(text, **{"lineterminator": "\n", **how}).writerows(rows)
    return text.getvalue().encode()


def _row(rows: Rows, data: st.DataObject) -> list[str]:
    return data.draw(st.sampled_from(rows[1:]), label="row")


def _wider(rows: Rows, data: st.DataObject) -> bytes:
    _row(rows, data).append(data.draw(st.sampled_from(["", "1", "x"])))
    return written(rows)


def _all_wider(rows: Rows, data: st.DataObject) -> bytes:
    for row in rows[1:]:
        row.insert(data.draw(st.integers(0, len(row))), "1")
    return written(rows)


def _narrower(rows: Rows, data: st.DataObject) -> bytes:
    row = _row(rows, data)
    del row[data.draw(st.integers(0, len(row) - 1))]
    return written(rows) if len(rows[0]) > 1 else b"\xff"


def _doubled(rows: Rows, data: st.DataObject) -> bytes:
    column = data.draw(st.integers(0, len(rows[0]) - 1))
    for row in rows:
        row.append(row[column])
    return written(rows)


def _nameless(rows: Rows, data: st.DataObject) -> bytes:
    for number, row in enumerate(rows):
        row.append("" if number == 0 else "1")
    return written(rows)


def _zero_byte(rows: Rows, data: st.DataObject) -> bytes:
    text = written(rows)
    at = data.draw(st.integers(0, len(text) - 1))  # what follows the last line's end is a killed writer's
    return text[:at] + b"\0" + text[at:]


def _no_utf8(rows: Rows, data: st.DataObject) -> bytes:
    text = written(rows)
    at = data.draw(st.integers(0, len(text) - 1))
    return text[:at] + b"\xff" + text[at:]


def _open_quote(rows: Rows, data: st.DataObject) -> bytes:
    lines = written(rows).split(b"\n")
    at = data.draw(st.integers(1, len(lines) - 2))
    lines[at] = b'"' + lines[at].replace(b'"', b"")
    return b"\n".join(lines)


def _header_alone_is_missing(rows: Rows, data: st.DataObject) -> bytes:
    return data.draw(st.sampled_from([b"", b"\n", b"\n\n", b" \n", b"\xef\xbb\xbf"]))


SHAPES: dict[str, tuple[str, Change]] = {
    "one row has a field more": (WRONG, _wider),
    "every row has a field more": (WRONG, _all_wider),
    "one row has a field less": (WRONG, _narrower),
    "a column is there twice": (WRONG, _doubled),
    "a column has no name": (WRONG, _nameless),
    "a zero byte": (WRONG, _zero_byte),
    "a byte that is no UTF-8": (WRONG, _no_utf8),
    "a quote that does not end": (WRONG, _open_quote),
    "no header": (WRONG, _header_alone_is_missing),
    "as it is": (SAME, lambda rows, data: written(rows)),
    "lines end in CR LF": (SAME, lambda rows, data: written(rows, lineterminator="\r\n")),
    "every field is quoted": (SAME, lambda rows, data: written(rows, quoting=csv.QUOTE_ALL)),
    "it begins with a byte order mark": (SAME, lambda rows, data: b"\xef\xbb\xbf" + written(rows)),
}
