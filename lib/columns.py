"""Columns of tables: definition, validation of a table, and migration of files of older schema versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lib.errors import InputError, choices

_TAKES = {"int": "a whole number", "count": "a whole number or nothing", "float": "a number", "single": "a number",
          "bool": "True or False"}
_TRUTHS = (True, False, "True", "False")
DTYPES = {"text": "str", "int": "int64", "count": "Int64", "float": "float64", "single": "float32", "bool": "bool"}


@dataclass(frozen=True)
class Column:
    """One column: its kind, what it means, and what values it may hold.

    Kinds: text, int, count (an int or empty), float, single (32 bits), bool.
    ``least`` is the smallest value allowed; ``of`` the only texts allowed; ``empty`` says that NaN means "not measured".
    ``default`` stands for empty cells, and for the column where it is left out, in tables that people write (``input_tables``).
    A column added later has ``since``, its schema version, and a ``default``, its value in files of older versions.
    Such files are not rewritten.
    """

    name: str
    kind: str
    meaning: str
    least: float | None = None
    of: tuple[str, ...] = ()
    empty: bool = False
    default: float | str | None = None
    since: int = 1


Columns = tuple[Column, ...]


@cache
def older_versions(columns: Columns) -> tuple[tuple[str, ...], ...]:
    """Return the column names of each older version of a table, the oldest first."""
    versions = sorted({column.since for column in columns})[:-1]
    return tuple(tuple(column.name for column in columns if column.since <= version) for version in versions)


def migrated(frame, columns: Columns):
    """Return a table of an older schema version with the later columns at their defaults; any other table unchanged."""
    if tuple(frame) not in older_versions(columns):
        return frame
    return frame.assign(**{column.name: column.default for column in columns if column.name not in frame})


@cache
def schema(columns: Columns, table: str):
    """Return the strict pandera schema of a table with these columns."""
    import pandera.pandas as pa

    def pandera_column(column: Column):
        checks = []
        if column.least is not None:
            checks.append(pa.Check.in_range(column.least, float("inf"), include_max=False))
        if column.of:
            checks.append(pa.Check.isin(column.of))
        elif column.kind == "text":  # a line of a CSV is a row: a line break within one is a quote that did not end
            checks.append(pa.Check(lambda texts: ~texts.str.contains(r"[\r\n]", na=False), name="one_line", error="one line"))
        return pa.Column(DTYPES[column.kind], checks, nullable=column.empty, description=column.meaning)

    return pa.DataFrameSchema({c.name: pandera_column(c) for c in columns}, strict=True, ordered=True, name=table)


def validated(frame, columns: Columns, table: str, where: str):
    """Return ``frame`` with the types of the columns.

    Raises InputError naming ``where``, the column and the first wrong values.
    """
    import pandera.errors

    names = [column.name for column in columns]
    missing = [name for name in names if name not in frame]
    extra = [name for name in frame if name not in names]
    if missing or extra:
        raise InputError(f"{where} is no {table} table: missing columns [{choices(missing)}], unknown [{choices(extra)}]")
    try:
        return schema(columns, table).validate(_typed(frame, columns), lazy=True)
    except pandera.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        raise InputError(f"{where} does not fit the {table} table: column {first['column']!r}, "
                         f"value {first['failure_case']!r} fails {first['check']}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where} does not fit the {table} table: {error}") from None


def _typed(frame, columns: Sequence[Column]):
    """Return a table with the types of its columns; ValueError where that would change a value (1.5 to 1, text to true)."""
    for column in columns:
        values = frame[column.name]
        wrong = values[_of_another_type(values, column.kind)]
        if len(wrong):
            raise ValueError(f"column {column.name!r} holds {wrong.iloc[0]!r}, it takes {_TAKES[column.kind]} (at index "
                             f"{wrong.index[0]} of its rows)")
    return frame.astype({column.name: DTYPES[column.kind] for column in columns})


def _of_another_type(values, kind: str):
    """Return which values cannot be stored in a column of this kind without changing them."""
    import pandas as pd

    stored = values.dtype.kind
    if kind != "text" and stored not in "biuf":  # texts, because one cell is no number: that is the one to name
        texts = values.map(lambda value: isinstance(value, str | bytes | list | dict)).astype(bool)
        readable = values.isin(_TRUTHS) if kind == "bool" else pd.to_numeric(values, errors="coerce").notna()
        empty = values.isna() & (kind == "bool")
        return empty | (texts & ~readable if (texts & ~readable).any() or empty.any() else texts)
    if kind == "bool" or (kind != "text" and stored == "b"):
        return values.notna() & ((stored == "b") != (kind == "bool"))
    if kind in ("int", "count") and stored == "f":
        return values.notna() & (values % 1 != 0)
    return values.isna() & False


# What others published as it is: throughputs of job types, and of whole networks.
THROUGHPUTS = (
    Column("job_type", "text", "model and batch size, as published"),
    Column("devices", "int", "devices that the job uses at once", 1), Column("device", "text", "device type"),
    Column("steps_per_s", "float", "measured training steps a second, without others; 0: does not fit", 0))

WHOLE_NETWORKS = (
    Column("device", "text", "the card, as in params/devices.yaml, or the CPU"),
    Column("network", "text", "its name in timm"), Column("module", "text", "the file of timm that defines it: its family"),
    Column("image_size", "int", "height and width of an image", 1), Column("batch_size", "int", "images a step", 1),
    Column("mode", "text", "a forward pass, or a step of training", of=("infer", "train")),
    Column("precision", "text", "element type, or that of automatic mixed precision (amp)",
           of=("fp32", "bf16", "amp_fp16", "amp_bf16")),
    Column("layout", "text", "order of an image's axes in memory", of=("nchw", "nhwc")),
    Column("compiled", "bool", "whether torch.compile compiled it"), Column("torch", "text", "version of torch, such as 2.4.0"),
    Column("images_per_sec", "float", "measured", 0),
    Column("latency_ms", "float", "a step's time: batch size over images/s", 0),
    Column("parameters_m", "float", "millions of parameters; empty: not stated", 0, empty=True),
    Column("gmacs", "float", "10^9 multiply-adds an image; empty: not stated", 0, empty=True),
    Column("mactivations", "float", "millions of activations an image; empty: not stated", 0, empty=True))

HELD_OUT = (
    Column("device", "text", "what it was measured on"),
    Column("what", "text", "what was predicted, and what was held out for it"),
    Column("kind", "text", "kind of network, or family of operators; empty: not told apart"),
    Column("mode", "text", "a forward pass, or a step of training; of operators which pass",
           of=("infer", "train", "forward", "backward")),
    Column("condition", "text", "how it ran: a condition of a card, the allocator of a CPU, an element type"),
    Column("group", "text", "what no fold splits, such as the family of the network; empty: not recorded"),
    Column("case", "text", "the network (and its image size), the run, or the configuration"),
    Column("batch_size", "count", "samples a batch; empty: no batch", 1, empty=True),
    Column("fold", "count", "the fold in which it was held out; empty: each group was held out by itself", 0, empty=True),
    Column("left_out", "text", "what the model that predicted it had not seen"),
    Column("measured", "single", "ms of a network, a step or an operator; MB of memory; a factor of gains", 0),
    Column("predicted", "single", "in the same unit", 0),
    Column("low", "single", "90 % interval, low end; empty: none", 0, empty=True),
    Column("high", "single", "90 % interval, high end; empty: none", 0, empty=True),
    Column("out_of_range", "bool", "whether the answer was flagged as outside of the training ranges"),
    Column("usable", "bool", "whether repeats of the measurement agree; scores without and with the others are both given"),
    Column("networks", "count", "networks of the device that corrected the model; empty: none was to", 0, empty=True),
    Column("draw", "int", "which of several random choices of these networks", 0),
    Column("source", "text", "who measured it"), Column("licence", "text", "under which licence it was published"))
