"""The resident memory that a process grows by as it runs a network: tensors, libraries, and freed blocks that are not reused.

Libraries load code and allocate workspaces at first use; a freed block cannot hold a larger one. The cost of each is learned,
for each heap, from networks whose resident memory was measured.
"""

import numpy as np
import pandas as pd

from lib.predict.networks.composition import Composition
from lib.predict.networks.fitting import enough, learn
from lib.predict.networks.sums import Range, Sum, interval
from lib.predict.networks.work import Work

# first use of libraries (1 or 0), weights and inputs, peak of tensors by mode, all blocks of a pass
TERMS = ("first_use", "weights_mb", "infer_peak_mb", "train_peak_mb", "blocks_mb")
PREDICTED = ("rss_predicted_mb", "rss_low_mb", "rss_high_mb")
_SUM = Sum(np.eye(len(TERMS)), expected=np.array([0.5, 0.05, 0.5, 0.5, 1.0]), noise=0.1,
           usual=np.array([150.0, 1.0, 1.0, 1.0, 0.05]))  # MB


def parts_of(work: Work) -> dict[str, float]:
    """Return ``memory_mb, peak_mb`` of a network, and ``blocks_mb``, the sum of all blocks of a pass."""
    return {"memory_mb": work.memory_mb, "peak_mb": work.peak_bytes / 1e6, "blocks_mb": sum(work.plan.blocks) / 1e6}


def _terms(table: pd.DataFrame) -> pd.DataFrame:
    """Return TERMS of rows with ``mode, first_use, memory_mb, peak_mb, blocks_mb``."""
    peak, trains = table["peak_mb"], table["mode"] == "train"
    return table.assign(weights_mb=table["memory_mb"] - peak, infer_peak_mb=peak * ~trains,
                        train_peak_mb=peak * trains)[list(TERMS)].astype(float)


def learned(table: pd.DataFrame, without: str = "") -> dict[str, Composition]:
    """Learn rates of TERMS by heap from networks with ``rss_mb``; ``without`` names a family to leave out.

    Intervals come from families left out. Heaps with too few networks are skipped (``enough``).
    """
    heaps = enough(table[table["rss_mb"] > 0], "memory", without)
    return {heap: learn([_SUM], TERMS, rows.assign(**_terms(rows)), rows["rss_mb"].to_numpy(float)) for heap, rows in heaps}


def predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Return networks with PREDICTED: their resident memory, learned without each network's family."""
    without = {family: learned(table, family) for family in sorted(set(table["family"]))}
    cases = zip(_terms(table).to_dict("records"), table["family"], table["memory"], strict=True)
    answers = [without[family][memory].predict(row) if memory in without[family] else (np.nan,) * len(PREDICTED)
               for row, family, memory in cases]
    return table.assign(**pd.DataFrame(answers, table.index, PREDICTED, float))


def answer(fitted: Composition, work: Work, beside_mb: float = 0.0) -> Range:
    """Return predicted, low and high MB that a fresh process grows by; ``beside_mb``: tensors beside those of the passes."""
    (terms,) = _terms(pd.DataFrame([{"mode": work.mode, "first_use": True, **parts_of(work)}])).to_dict("records")
    return interval(fitted.total(terms) + beside_mb, fitted.half)
