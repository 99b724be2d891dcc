"""The table ``held_out``: one row per prediction that no fold of its model had seen, in a file beside the model."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from lib import files, store
from lib.tables import columns

NETWORKS, OPERATORS, STEPS = "networks", "operators", "training steps"
TENSORS, RESIDENT = "memory of tensors", "resident memory"
NEW_CARDS, GAINS = "networks, card left out", "gains of a change"
FINAL = "networks, final set"  # families of timm that no fit and no choice saw
RULE = "networks, simple rule"  # a soft roofline at 70 % of the stated peaks, and 27.6 us a launch
RUNTIMES, NEW_CPUS = "networks in a runtime", "networks in a runtime, CPU left out"
JOULES, JOULES_TIMED, CLOCK = "joules", "joules, time measured", "time at a stated clock"
LIMITS = {"time": "time under a power limit", "energy": "energy under a power limit"}
ALL = "all"  # kinds together
PROJECT = "measured by this project"
_USUAL = {"kind": "", "group": "", "batch_size": None, "fold": None, "low": np.nan, "high": np.nan, "out_of_range": False,
          "usable": True, "networks": None, "draw": 0, "licence": "MIT"}


def frame(**values) -> pd.DataFrame:
    """Return rows of the table; a column that is not given is empty, or says what most rows do."""
    return pd.DataFrame({**_USUAL, **values})[columns("held_out")]


def path_of(model: Path) -> Path:
    """Return where the rows lie that belong to the file of a model."""
    return model.with_suffix(".parquet")


def save(rows: pd.DataFrame, model: Path) -> Path:
    """Write the rows of a model beside its file."""
    return store.write(rows, path_of(model), "held_out", derived=True)


_load = files.until_changed(partial(store.read_own, table="held_out"))


def load(model: Path) -> pd.DataFrame:
    """Return the rows beside the file of a model, none where it has no such file; InputError for a damaged one."""
    path = path_of(model)
    return _load(path) if path.is_file() else pd.DataFrame(columns=columns("held_out"))
