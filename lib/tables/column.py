"""One column of a table: its type, its meaning, and what it may hold."""

from dataclasses import dataclass
from functools import partial

_TAKES = {"str": "a text in one line", "bool": "True or False", "int64": "a whole number",
          "float64": "a finite number", "float32": "a finite number"}


@dataclass(frozen=True)
class Column:
    """A column by its pandas type and meaning. A cell may be empty only with ``empty``.

    ``least`` is the smallest number allowed, ``of`` are the only texts allowed. ``default`` fills
    a column that an older file lacks, and empty cells of tables that people write.
    """

    kind: str
    meaning: str
    least: float | None = None
    of: tuple[str, ...] = ()
    empty: bool = False
    default: float | str | None = None

    @property
    def dtype(self) -> str:
        """Return the pandas type of the column: int64 cannot be empty, Int64 can."""
        return "Int64" if self.kind == "int64" and self.empty else self.kind

    def takes(self, most: float) -> str:
        """Return in words what a cell may hold; ``most`` is the largest number allowed."""
        if self.of:
            return f"one of {', '.join(self.of)}"
        least = "" if self.least is None else f" of {self.least:g} or more"
        largest = "" if self.kind in ("str", "bool") else f", at most {most:g}"
        return f"{_TAKES[self.kind]}{least}{largest}{', or nothing' if self.empty else ''}"


text = partial(Column, "str")
number = partial(Column, "float64", least=0)
single = partial(Column, "float32", least=0)
whole = partial(Column, "int64", least=0)
count = partial(Column, "int64", least=1)
switch = partial(Column, "bool")


def choice(meaning: str, *of: str, default: str | None = None) -> Column:
    """Return a column of texts that are all among ``of``."""
    return Column("str", meaning, of=of, default=default)
