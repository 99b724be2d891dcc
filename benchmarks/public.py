"""Models of published data against the published figures: convolutions on four GPUs.

Those of GEMMs are in data/reference/models/kernels_*_scores.csv, which ``python -m lib models --train`` writes.
"""

from functools import partial

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from lib import paths
from lib.config.definitions import load_devices
from lib.measure import importers
from lib.predict.operators import fitting, inputs
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import shapes_of, usable
from lib.predict.scores import score

SHARED = paths.ROOT.parent / "shared" / "data"
MOST = 1_000_000  # rows of a table
TOY = {"MOST": 100}


def _words(found: dict[str, float]) -> str:
    return (f"MAPE {found['mape']:.2f} % ({found['mape_low']:.2f} to {found['mape_high']:.2f}), median {found['median']:.2f}, "
            f"p90 {found['p90']:.1f}, within 10 % {found['within_10']:.1f} %, n {found['n']}")


def unseen(rows: pd.DataFrame, chip: Chip, groups: pd.Series) -> np.ndarray:
    """Return what five folds say of groups that they had not seen."""
    frames = partial(inputs.frames, chip=chip)
    terms, x = frames(rows)
    said = np.full(len(rows), np.nan)
    for train, test in GroupKFold(5, shuffle=True, random_state=0).split(x, groups=groups):
        regressor = fitting.without_intervals(rows.iloc[train], frames, form="boosted").regressor
        said[test] = regressor.predict(terms.iloc[test].to_numpy(), x.iloc[test][regressor.names].to_numpy(),
                                       np.zeros(len(test), bool))
    return said


def convolutions(tables: dict[str, pd.DataFrame]) -> None:
    """Print the error on unseen shapes of fp32 convolutions."""
    found = []
    for device, table in tables.items():
        rows = usable(table[table["op"] == "conv2d"]).reset_index(drop=True).head(MOST)
        if len(rows) < fitting.LEAST_ROWS:
            continue
        said = unseen(rows, Chip.of(load_devices()[device], "fp32"), shapes_of(rows))
        own = score(rows["latency_ms"].to_numpy(), said)
        found.append(own["mape"])
        print(f"   fp32 convolutions, {device:16} unseen shapes: {_words(own)}", flush=True)
    print(f"   mean of {len(found)}: {np.mean(found):.1f} %")


def main() -> None:
    """Print what can be judged with the data that are here."""
    if (SHARED / "neusight").is_dir():
        convolutions(importers.neusight(SHARED / "neusight"))
    else:
        print(f"   skipped: {SHARED / 'neusight'} is not there")
