"""The resident memory that a process grows by as it runs a network: tensors, libraries, and freed blocks that are not reused.

Libraries load code and allocate workspaces at first use; a freed block cannot hold a larger one. The cost of each is learned,
for each heap, from networks whose resident memory was measured.
"""

import numpy as np
import pandas as pd

from lib.predict.networks.composition import Composition
from lib.predict.networks.fitting import WORKLOADS
from lib.predict.networks.sums import LEAST_NETWORKS, Sum
from lib.predict.networks.work import Work
from lib.predict.operators.validation import half_interval
from lib.predict.scores import score

# first use of libraries (1 or 0), weights and inputs, peak of tensors by mode, all blocks of a pass
TERMS = ("first_use", "weights_mb", "infer_peak_mb", "train_peak_mb", "blocks_mb")
PREDICTED = ("rss_predicted_mb", "rss_low_mb", "rss_high_mb")
_SUM = Sum(np.eye(len(TERMS)), expected=np.array([0.5, 0.05, 0.5, 0.5, 1.0]), noise=0.1,
           usual=np.array([150.0, 1.0, 1.0, 1.0, 0.05]))  # MB


def parts_of(work: Work) -> dict[str, float]:
    """Return ``memory_mb, peak_mb`` of a network, and ``blocks_mb``, the sum of all blocks of a pass."""
    return {"memory_mb": work.memory_mb, "peak_mb": work.peak_bytes / 1e6, "blocks_mb": work.blocks_bytes / 1e6}


def _terms(table: pd.DataFrame) -> np.ndarray:
    """Return TERMS of rows with ``mode, first_use, memory_mb, peak_mb, blocks_mb`` (n, 5)."""
    trains = (table["mode"] == "train").to_numpy()
    peak = table["peak_mb"].to_numpy(float)
    return np.stack([table["first_use"], table["memory_mb"] - peak, peak * ~trains, peak * trains, table["blocks_mb"]],
                    1).astype(float)


def learned(table: pd.DataFrame, without: str = "") -> dict[str, Composition]:
    """Learn rates of TERMS by heap from networks with ``rss_mb``; ``without`` names a family to leave out.

    Intervals come from families left out. Heaps with fewer than LEAST_NETWORKS networks are skipped.
    """
    compositions = {}
    usable = (table["rss_mb"] > 0).to_numpy() & ~table["network"].str.fullmatch(WORKLOADS).to_numpy()
    terms, used = _terms(table), usable & (table["family"] != without).to_numpy()
    for heap in sorted(set(table["memory"][used])):
        of_heap = used & (table["memory"] == heap).to_numpy()
        rows, parts, measured_mb = table[of_heap], terms[of_heap], table["rss_mb"].to_numpy(float)[of_heap]
        if rows["network"].nunique() < LEAST_NETWORKS:
            continue
        predicted = _SUM.held_out(rows, parts, measured_mb)
        rates = dict(zip(TERMS, map(float, _SUM.rates(_SUM.logs(parts, measured_mb))), strict=True))
        compositions[heap] = Composition(rates, half_interval(np.log(measured_mb / predicted)), int(rows["network"].nunique()),
                                         score(measured_mb, predicted))
    return compositions


def predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Return networks with PREDICTED: their resident memory, learned without each network's family."""
    terms, answers = _terms(table), np.full((len(table), len(PREDICTED)), np.nan)
    for family in sorted(set(table["family"])):
        compositions = learned(table, family)
        for row in np.flatnonzero(table["family"] == family):
            if fitted := compositions.get(table["memory"].iloc[row]):
                mb = float(terms[row] @ [fitted.rates[name] for name in TERMS])
                answers[row] = mb, mb * np.exp(-fitted.half), mb * np.exp(fitted.half)
    return table.assign(**dict(zip(PREDICTED, answers.T, strict=True)))


def answer(fitted: Composition, work: Work, beside_mb: float = 0.0) -> tuple[float, float, float]:
    """Return predicted, low and high MB that a fresh process grows by; ``beside_mb``: tensors beside those of the passes."""
    row = pd.DataFrame([{"mode": work.mode, "first_use": True, **parts_of(work)}])
    mb = float(_terms(row)[0] @ [fitted.rates[name] for name in TERMS]) + beside_mb
    return mb, mb * np.exp(-fitted.half), mb * np.exp(fitted.half)
