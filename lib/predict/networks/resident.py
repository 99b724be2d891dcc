"""The resident memory that a process grows by as it runs a network: beside tensors, what libraries take and heaps do not reuse.

Libraries load code and take workspaces as a process first uses them; blocks that are freed between others cannot serve a larger
one. What each of these costs is learned from networks whose resident memory was measured, heap by heap, through their sums.
"""

import numpy as np
import pandas as pd

from lib.predict.networks.composition import Composition
from lib.predict.networks.fitting import WORKLOADS
from lib.predict.networks.sums import LEAST_NETWORKS, Sum
from lib.predict.networks.work import Work
from lib.predict.operators.validation import half_interval, score

# first use of libraries by a process (1 or 0), weights and inputs, the peak of tensors by mode, all that a pass takes in turn
TERMS = ("first_use", "weights_mb", "infer_peak_mb", "train_peak_mb", "blocks_mb")
PREDICTED = ("rss_predicted_mb", "rss_low_mb", "rss_high_mb")
_SUM = Sum(np.eye(len(TERMS)), expected=np.array([0.5, 0.05, 0.5, 0.5, 1.0]), noise=0.1,
           usual=np.array([150.0, 1.0, 1.0, 1.0, 0.05]))  # MB


def parts_of(work: Work) -> dict[str, float]:
    """Return ``memory_mb, peak_mb`` of a network, and ``blocks_mb``: all that a pass takes in turn."""
    return {"memory_mb": work.memory_mb, "peak_mb": work.peak_bytes / 1e6, "blocks_mb": work.blocks_bytes / 1e6}


def _terms(table: pd.DataFrame) -> np.ndarray:
    """Return TERMS of rows with ``mode, first_use, memory_mb, peak_mb, blocks_mb`` (n, 5)."""
    trains = (table["mode"] == "train").to_numpy()
    peak = table["peak_mb"].to_numpy(float)
    return np.stack([table["first_use"], table["memory_mb"] - peak, peak * ~trains, peak * trains, table["blocks_mb"]],
                    1).astype(float)


def learned(table: pd.DataFrame, without: str = "") -> dict[str, Composition]:
    """Learn rates of TERMS by heap from a table of networks with ``rss_mb``; ``without`` names a family that is left out.

    Intervals come from families left out. Heaps of fewer than LEAST_NETWORKS networks have none.
    """
    several = {}
    usable = (table["rss_mb"] > 0).to_numpy() & ~table["network"].str.fullmatch(WORKLOADS).to_numpy()
    terms, used = _terms(table), usable & (table["family"] != without).to_numpy()
    for heap in sorted(set(table["memory"][used])):
        own = used & (table["memory"] == heap).to_numpy()
        rows, own_terms, measured_mb = table[own], terms[own], table["rss_mb"].to_numpy(float)[own]
        if rows["network"].nunique() < LEAST_NETWORKS:
            continue
        predicted = _SUM.held_out(rows, own_terms, measured_mb)
        rates = dict(zip(TERMS, map(float, _SUM.rates(_SUM.logs(own_terms, measured_mb))), strict=True))
        several[heap] = Composition(rates, half_interval(np.log(measured_mb / predicted)), int(rows["network"].nunique()),
                                    score(measured_mb, predicted))
    return several


def predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of networks with PREDICTED: resident memory by what was learned without each network's family."""
    terms, answers = _terms(table), np.full((len(table), len(PREDICTED)), np.nan)
    for family in sorted(set(table["family"])):
        several = learned(table, family)
        for row in np.flatnonzero(table["family"] == family):
            if one := several.get(table["memory"].iloc[row]):
                mb = float(terms[row] @ [one.rates[name] for name in TERMS])
                answers[row] = mb, mb * np.exp(-one.half), mb * np.exp(one.half)
    return table.assign(**dict(zip(PREDICTED, answers.T, strict=True)))


def answer(fitted: Composition, work: Work, beside_mb: float = 0.0) -> tuple[float, float, float]:
    """Return predicted, low and high MB that a fresh process grows by; ``beside_mb`` are tensors beside those of the passes."""
    row = pd.DataFrame([{"mode": work.mode, "first_use": True, **parts_of(work)}])
    mb = float(_terms(row)[0] @ [fitted.rates[name] for name in TERMS]) + beside_mb
    return mb, mb * np.exp(-fitted.half), mb * np.exp(fitted.half)
