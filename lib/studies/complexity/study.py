"""The complexity study of some networks at some batch sizes: their rows, totals and cross-checks."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from lib.config.definitions import workloads
from lib.config.notebooks import ComplexityParams
from lib.errors import InputError
from lib.predict.analytic.complexity import analyse, rows_of, save, shape_for, sums_of
from lib.progress import track


@dataclass(frozen=True)
class Study:
    """Several networks at several batch sizes, as a notebook shows them; ``detail`` is the one shown layer by layer."""

    names: list[str]
    detail: str
    table: pd.DataFrame
    totals: pd.DataFrame
    files: list[Path]
    note: str

    def at(self, name: str, batch_size: int) -> pd.DataFrame:
        """Return the ``complexity`` table of one network at one batch size."""
        return self.table[(self.table["network"] == name) & (self.table["batch_size"] == batch_size)]


def study(p: ComplexityParams) -> Study:
    """Count every model of ``p`` at every batch size and save the results; a replay counts the same anew.

    Raises InputError for an unknown model, for none, and when ``detail`` is not among them.
    """
    names = p.names
    detail = p.detail or next((name for name in names if name not in workloads()), names[0])
    if detail not in names:
        raise InputError(f"detail = {detail!r} is not among the models {p.models}")
    work = [(name, batch, shape_for(name, p.input_shape)) for name in names for batch in p.sizes]
    steps = [analyse(*item) for item in track(work, "counting")]
    tables = [rows_of(step) for step in steps]
    sums = pd.DataFrame([sums_of(step, rows) for step, rows in zip(steps, tables, strict=True)])
    rows = pd.concat(tables, ignore_index=True)
    files = save(rows, sums, notebook="04_complexity", parameters=p.model_dump())
    note = (f"{'REPLAY, which here counts anew. ' if p.source == 'replay' else ''}Counted from shapes under torch "
            f"{torch.__version__}: nothing is timed, and no machine changes the counts.")
    return Study(names, detail, rows, sums, files, note)
