"""How wrong predictions were on what outsiders measured: the predictions that ship, and their scores by source and device."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.predict import boards, held_out
from lib.predict.gpu import scores
from lib.predict.scores import score_draws
from lib.work.run_config import RunConfig

KERNELS, NETWORKS = "kernels, measured by others", "networks, measured by others"
SMALL_MS = 0.2  # mean of a kernel's measured and predicted time below which it is mostly its launch
SMALL = f", under {SMALL_MS} ms"  # end of the kind of such kernels
LAUNCHES = "bound by launches"  # kind of networks whose time is that of their host
KEYS = "source device what kind mode condition".split()
NUMBERS = {"n": "n", "mape": "mape_pct", "median": "median_pct", "bias": "bias_pct", "cover": "inside_pct",
           "range_width": "range_width",
           "family_n": "families", "family_mape": "family_mape_pct",
           "family_cover": "family_inside_pct"}


def scoreboard(rows: pd.DataFrame, keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """Return a line for rows ``held_out`` that are alike in ``keys``: errors in %, the share inside the ranges, their width.

    ``range_width``: the median of high over low. Families have one vote each in ``family_...``: networks of one architecture,
    kernels of one layer.
    """
    keys = list(keys)
    width = (rows["high"] / rows["low"]).groupby([rows[key] for key in keys], sort=False).median().rename("range_width")
    both = score_draws(rows, keys).merge(width.reset_index(), on=keys)
    return both[[*keys, *NUMBERS]].rename(columns=NUMBERS)


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
    """Return rows ``held_out`` of what others measured: kernels, and networks on cards that were left out."""
    networks = scores.rows()
    others = ~networks["source"].str.startswith((scores.TIMM, "this project"))
    networks = networks[(networks["what"] == held_out.NEW_CARDS) & others]
    is_operator = networks["source"].str.startswith(("NeuSight", "DeepBench"))  # kernels have their own rows
    kernels = held_out.load(boards.PATH)
    return pd.concat([kernels, networks[~is_operator].assign(what=NETWORKS, kind=held_out.ALL)], ignore_index=True)
