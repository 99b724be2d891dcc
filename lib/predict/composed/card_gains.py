"""How right predicted gains were, of channels_last and of compiling, on networks whose family no model saw."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, files
from lib.predict import gain_scores
from lib.predict.composed import model_file
from lib.predict.composed.features import Condition, version

FILE = "gains.csv"
COLUMNS = ("device", "before", "after", "torch", *gain_scores.SCORES)
_AUTOCAST = ("amp_fp16", "amp_bf16")
_NETWORK = ["device", "network", "image_size", "module"]


def changes(conditions: Iterable[Condition]) -> Iterator[tuple[Condition, Condition]]:
    """Yield the conditions that differ by one change, to channels_last or to compiled; both of one torch, under autocast."""
    for before, after in permutations(conditions, 2):
        alike = (before.mode, before.torch) == (after.mode, after.torch) and {before.precision, after.precision} <= {*_AUTOCAST}
        layouts, compiled = (before.layout, after.layout), (before.compiled, after.compiled)
        to_channels_last = layouts == ("nchw", "nhwc") and len({*compiled}) == 1
        to_compiled = compiled == (False, True) and len({*layouts}) == 1
        if alike and (to_channels_last or to_compiled):
            yield before, after


def table(device: str, several: Mapping[Condition, pd.DataFrame], fold: Mapping[str, int]) -> pd.DataFrame:
    """Return COLUMNS: the scores of each change, on the networks that were measured before and after it.

    ``several``: networks (``device, network, image_size, module, batch_size, log_ms``) under each condition with
    ``log_predicted``, without their families, ``fold`` the number of each family. A gain is that of an image: the batch shrinks
    where a network would not fit.
    """
    lines = []
    for before, after in changes(several):
        both = several[before].merge(several[after], on=_NETWORK, suffixes=("_before", "_after"))
        if both.empty:
            continue
        predicted, measured = (_log_gain(both, name) for name in ("log_predicted", "log_ms"))
        constant = gain_scores.constants(measured, both["module"].map(fold).to_numpy())
        lines.append({"device": device, "before": before.how, "after": after.how, "torch": before.torch,
                      **gain_scores.scores(predicted, measured, constant)})
    return pd.DataFrame(lines, columns=COLUMNS)


def _log_gain(both: pd.DataFrame, name: str) -> np.ndarray:
    before, after = (both[f"{name}_{when}"] - np.log(both[f"batch_size_{when}"]) for when in ("before", "after"))
    return (before - after).to_numpy()


def save(several: pd.DataFrame, folder: Path | None = None) -> Path:
    """Write gains beside the models, in place of those of the same devices, rounded."""
    path = (folder or model_file.FOLDER) / FILE
    others = read(folder)
    others = others[~others["device"].isin(several["device"])]
    joined = pd.concat([one for one in (others, several) if len(one)] or [several], ignore_index=True)
    return files.replace(path, joined.round(2).to_csv(index=False).encode())


def read(folder: Path | None = None) -> pd.DataFrame:
    """Return all gains that were held out (COLUMNS); none where no file is."""
    return csv_files.with_columns((folder or model_file.FOLDER) / FILE, COLUMNS, model_file.RETRAIN, dtype={"torch": str})


def of_change(device: str, before: Condition, after: Condition, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the scores of a change on a card, of the same torch or else the newest; None where none was held out."""
    path = (folder or model_file.FOLDER) / FILE
    several = _by_change(path, path.stat().st_mtime_ns).get((device, before.how, after.how), []) if path.is_file() else []
    return max(several, key=lambda one: (one["torch"] == before.torch, version(one["torch"])), default=None)


@cache
def _by_change(path: Path, _: int) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    several = csv_files.with_columns(path, COLUMNS, model_file.RETRAIN, dtype={"torch": str})
    return {change: rows.to_dict("records") for change, rows in several.groupby(["device", "before", "after"])}


def words(scored: Mapping[str, Any]) -> str:
    """Say how right gains of a change were, and under which torch; a case is a network on a card."""
    large = f" ({scored['sign_large']:.0f} % where it is more than 5 %)" if scored["n_large"] else ""
    return (f"whether it is faster was right in {scored['sign']:.0f} % of {scored['n']:,} cases with torch {scored['torch']}"
            f"{large}, its factor off by {scored['mape']:.1f} % (median {scored['median']:.1f} %; "
            f"{scored['constant_mape']:.1f} % were it one for all)")
