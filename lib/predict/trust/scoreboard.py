"""How wrong predictions were on what outsiders measured: the predictions that ship, and their scores by source and device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files
from lib.errors import choices
from lib.predict import boards, held_out
from lib.predict.scores import score_draws
from lib.work.run_config import RunConfig

KERNELS, NETWORKS = "kernels, measured by others", "networks, measured by others"
SMALL_MS = 0.2  # mean of a kernel's measured and predicted time below which it is mostly its launch
SMALL = f", under {SMALL_MS} ms"  # end of the kind of such kernels
LAUNCHES = "bound by launches"  # kind of networks whose time is that of their host
NOTHING = "nothing"  # left out: the answers that advise gives
KEYS = "source device what kind mode condition".split()
NUMBERS = {"n": "n", "mape": "mape_pct", "median": "median_pct", "bias": "bias_pct", "cover": "inside_pct",
           "range_width": "range_width", "shipped_mape": "shipped_mape_pct", "shipped_cover": "shipped_inside_pct",
           "family_n": "families", "family_mape": "family_mape_pct",
           "family_cover": "family_inside_pct"}


def scoreboard(rows: pd.DataFrame, keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """Return a line for rows ``held_out`` that are alike in ``keys``: errors in %, the share inside the ranges, their width.

    ``range_width``: the median of high over low; ``shipped_...``: of the answers that ``advise`` gives, which some of these
    labels taught. Families have one vote each in ``family_...``: networks of one architecture, kernels of one layer.
    """
    keys = list(keys)
    part, answered = without(rows), rows[rows["left_out"] == NOTHING]
    width = (part["high"] / part["low"]).groupby([part[key] for key in keys], sort=False).median().rename("range_width")
    answered = score_draws(answered, keys)[[*keys, "mape", "cover"]].rename(
        columns={"mape": "shipped_mape", "cover": "shipped_cover"})
    both = score_draws(part, keys).merge(width.reset_index(), on=keys).merge(answered, how="left", on=keys)
    return both[[*keys, *NUMBERS]].rename(columns=NUMBERS)


def without(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose range rests on no label of their device."""
    return rows[rows["left_out"] != NOTHING]


def condition_of(config: RunConfig) -> str:
    """Return how a network ran, as the column ``condition`` says it."""
    words = [config.dtype]
    if config.layout != "contiguous":
        words.append(config.layout)
    if config.compiled:
        words.append("compiled")
    return ", ".join(words)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ``scoreboard`` by source, device and question, without kernels so small that launches are compared."""
    rows = rows[~rows["kind"].str.endswith(SMALL)]  # networks bound by launches are what a user may ask about
    if rows.empty:
        return pd.DataFrame()
    asked = rows["what"].str.partition(",")[0] + ", " + rows["mode"] + np.where(
        rows["what"] != KERNELS, ", " + rows["condition"], "")
    return scoreboard(rows.assign(question=asked), ("source", "device", "question"))


def shipped() -> pd.DataFrame:
    """Return the predictions that ship, two rows ``held_out`` a label (see ``without``); none where none ship."""
    return held_out.load(boards.PATH)


def of_networks(device: str, mode: str, condition: str) -> dict[str, Any]:
    """Return the scores of networks that outsiders ran on a card so, and their ``sources``; empty without any."""
    path = held_out.path_of(boards.PATH)
    return _of_networks(path, device, mode, condition) if path.is_file() else {}


@files.until_changed
def _of_networks(_: Path, device: str, mode: str, condition: str) -> dict[str, Any]:
    rows, same = without(shipped()), {"what": NETWORKS, "device": device, "mode": mode, "condition": condition}
    part = rows[np.logical_and.reduce([rows[name] == value for name, value in same.items()])]
    return {**score_draws(part, ["device"]).iloc[0], "sources": choices(sorted(set(part["source"])))} if len(part) else {}
