"""The tables of this project: each maps the names of its columns to their types and meanings.

A column is one line in the file of its table, or in ``shared`` if several tables have it. A new
column stands last and has a default, which it gets where an older file is read.
"""

from collections.abc import Mapping

from lib.errors import choices, entry
from lib.tables import networks, operators, scheduling, training
from lib.tables.check import checked
from lib.tables.column import Column
from lib.tables.operators import PARAMETERS
from lib.tables.shared import NO_ENERGY

__all__ = ["NO_ENERGY", "PARAMETERS", "SCHEMA_VERSION", "TABLES", "columns", "dictionary",
           "validate", "with_defaults", "with_dictionary"]

SCHEMA_VERSION = "6"
TABLES: dict[str, Mapping[str, Column]] = {
    "profile": training.PROFILE, "runs": training.RUNS, "cells": training.CELLS,
    "matrix": training.MATRIX, "steps": training.STEPS, "history": training.HISTORY,
    "ceilings": operators.CEILINGS, "overheads": operators.OVERHEADS,
    "configs": operators.CONFIGS, "repeats": operators.REPEATS, "energies": operators.ENERGIES,
    "sweep": operators.SWEEP, "points": operators.POINTS,
    "complexity": networks.COMPLEXITY, "networks": networks.NETWORKS,
    "whole_networks": networks.WHOLE_NETWORKS, "scores": networks.SCORES,
    "held_out": networks.HELD_OUT, "jobs": scheduling.JOBS, "devices": scheduling.DEVICES,
    "schedule": scheduling.SCHEDULE, "durations": scheduling.DURATIONS}


def columns(table: str) -> list[str]:
    """Return the column names of ``table`` in order; InputError lists the tables."""
    return list(entry(TABLES, table, "table"))


def validate(frame, table: str, where: str):
    """Return ``frame`` with the types of ``table``.

    Raises InputError naming ``where``, the column, the row and the first wrong value.
    """
    return checked(frame, TABLES[table], f"{where} is no {table} table")


def with_defaults(frame, table: str):
    """Return a table of an older version with the columns that it lacks at their defaults."""
    return frame.assign(**{name: column.default for name, column in TABLES[table].items()
                           if name not in frame and column.default is not None})


def dictionary() -> str:
    """Return every table's columns as Markdown: the end of data/README.md."""
    parts = []
    for table, content in TABLES.items():
        parts.append(f"### `{table}`\n\n| column | type | meaning |\n|---|---|---|")
        parts += [f"| `{name}` | {column.dtype} | {column.meaning}"
                  f"{f' ({choices(column.of)})' if column.of else ''} |"
                  for name, column in content.items()]
        parts[-1] += "\n"
    return "\n".join(parts)


def with_dictionary(page: str) -> str:
    """Return a page (data/README.md) that ends in the dictionary, from its first table on."""
    return page.partition("### `")[0] + dictionary()
