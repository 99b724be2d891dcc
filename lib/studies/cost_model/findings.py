"""What the evaluation of the cost model says, in words whose numbers are put in."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.predict.evaluation.results import Evaluated

_COVER = (88, 92)


@needs("scores")
def family_words(scores: pd.DataFrame) -> str:
    """Say how the model does on operators against the best other learner, and whether its intervals hold."""
    mine = scores[scores["learner"] == "this model"].set_index("family")
    if mine.empty:
        raise MissingError("scores of this model")
    others = scores[scores["learner"] != "this model"].groupby("family")["mape"].min().reindex(mine.index)
    better = int((mine["mape"] < others).sum())
    best, worst = mine["mape"].idxmin(), mine["mape"].idxmax()
    text = (f"On unseen shapes the mean error runs from {mine['mape'][best]:.1f} % ({best}) to {mine['mape'][worst]:.1f} % "
            f"({worst}); in {better} of {len(mine)} families this model is nearer than the best of the other learners.")
    if mine["cover"].notna().any():
        held = mine["cover"].between(*_COVER)
        text += f" The 90 % interval covers {mine['cover'].min():.0f} to {mine['cover'].max():.0f} %"
        text += f", within {_COVER[0]} to {_COVER[1]} % in {int(held.sum())} of {len(mine)} families."
    return text


@needs("predicted operators")
def weak_words(held: Evaluated) -> str:
    """Say where the operator models are weakest."""
    rows = held.predictions[held.predictions["kind"] == "operator"]
    if rows.empty:
        raise MissingError("predicted operators")
    error = rows["relative_error"].abs()
    far = rows[error > 0.5]
    families = far["family"].value_counts()
    share = len(far) / len(rows) * 100
    return (f"{share:.1f} % of the operators are off by more than half"
            + (f", most of them {families.index[0]} ({families.iloc[0]} of {len(far)})." if len(far) else "."))


@needs("points of the learning curve")
def curve_words(curve: pd.DataFrame, family: str) -> str:
    """Say what more points gave."""
    first, last = curve.iloc[0], curve.iloc[-1]
    return (f"{family}: MAPE {first['mape']:.1f} % from {int(first['points'])} points, {last['mape']:.1f} % from "
            f"{int(last['points'])}.")


@needs("predicted networks")
def network_words(held: Evaluated) -> str:
    """Say how whole networks are predicted."""
    rows = held.scores[held.scores["kind"] == "network"]
    if rows.empty:
        raise MissingError("predicted networks")
    parts = [f"{row.family}: {row.mape:.1f} % (median {row.median:.1f} %, {row.n} networks, interval covers {row.cover:.0f} %)"
             for row in rows.itertuples()]
    return "Whole networks that were never learned from, mean error: " + "; ".join(parts) + "."


@needs("predicted networks")
def memory_words(held: Evaluated) -> str:
    """Say how the peak of tensors is predicted, and what a process needs beyond it."""
    judged = held.judged[held.judged["memory"] == "default"]
    if judged.empty:
        raise MissingError("predicted networks")
    ratio = judged["memory_mb"] / (judged["memory_mb"] - judged["peak_mb"] + judged["tensors_mb"])
    beyond = (judged["rss_mb"] / judged["memory_mb"]).median()
    return (f"Weights and the peak of tensors are off by {np.abs(ratio - 1).mean() * 100:.1f} % at the mean and at worst "
            f"{(ratio.min() - 1) * 100:+.1f} % and {(ratio.max() - 1) * 100:+.1f} %. A process's resident memory grows by "
            f"{beyond:.2f} times weights and peak at the median: the libraries work in memory of their own.")


@needs("workloads at several batch sizes")
def step_words(scores: pd.DataFrame) -> str:
    """Say how workload steps are predicted by each learner."""
    rows = scores[scores["kind"] == "step"].sort_values("mape")
    if not len(rows):
        return "No workload was measured at several batch sizes."
    best = rows.iloc[0]
    rest = ", ".join(f"{row.learner} {row.mape:.0f} %" for row in rows.iloc[1:].itertuples())
    return f"Workload steps, each workload left out: best is {best['learner']} with {best['mape']:.1f} %; {rest}."


def key_numbers(held: Evaluated, again: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the errors of this model by what was predicted; what is learned again here is reported and never compared."""
    mine = held.scores[held.scores["learner"] == "this model"]
    found = {f"{row.kind}, {row.family}, MAPE": (row.mape, "%", 0.0) for row in mine.itertuples()}
    return found | {f"learned again, {row.family}, MAPE": (row.mape, "%", None)
                    for row in again[again["learner"] == "this model"].itertuples()}
