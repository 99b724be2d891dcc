"""CSV as text, made wrong in ways that any reader of tables has to notice, or written in another way that says the same.

Rows are lists of texts, the header first.
"""

import csv
import io

from tests.doors import SAME, WRONG, pick


def written(rows, **how):
    """Return rows as the bytes of a CSV."""
    text = io.StringIO()
    csv.writer(text, **{"lineterminator": "\n", **how}).writerows(rows)
    return text.getvalue().encode()


def parsed(content):
    """Return the rows of a CSV."""
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def without(rows, column):
    """Return rows with a column less."""
    return [row[:column] + row[column + 1:] for row in rows]


def _wider(rows, data):
    pick(data, rows[1:], "row").append(pick(data, ["", "1", "x"]))
    return written(rows)


def _narrower(rows, data):
    row = pick(data, rows[1:], "row")
    del row[pick(data, range(len(row)))]
    return written(rows) if len(rows[0]) > 1 else b"\xff"


def _doubled(rows, data):
    column = pick(data, range(len(rows[0])))
    return written([[*row, row[column]] for row in rows])


def _no_text(rows, data):
    text = written(rows)
    at = pick(data, range(len(text)))  # what follows the last line's end is a killed writer's
    return text[:at] + b"\xff" + text[at:]


def _open_quote(rows, data):
    lines = written(rows).split(b"\n")
    at = pick(data, range(1, len(lines) - 1))
    lines[at] = b'"' + lines[at].replace(b'"', b"")
    return b"\n".join(lines)


def drawn(rows, data, wrong):
    """Draw a way to write rows, perhaps one of those that are ``wrong``, which change them; return it, its kind, and bytes."""
    how = pick(data, [*SHAPES, *wrong], "how")
    if how in SHAPES:
        kind, change = SHAPES[how]
        return how, kind, change(rows, data)
    return how, WRONG, written(wrong[how]())


SHAPES = {
    "one row has a field more": (WRONG, _wider),
    "one row has a field less": (WRONG, _narrower),
    "a column is there twice": (WRONG, _doubled),
    "a byte that is no UTF-8": (WRONG, _no_text),
    "a quote that does not end": (WRONG, _open_quote),
    "no header": (WRONG, lambda rows, data: pick(data, [b"", b"\n\n", b" \n", b"\xef\xbb\xbf"])),
    "as it is": (SAME, lambda rows, data: written(rows)),
    "lines end in CR LF": (SAME, lambda rows, data: written(rows, lineterminator="\r\n")),
    "it begins with a byte order mark": (SAME, lambda rows, data: b"\xef\xbb\xbf" + written(rows)),
}
