"""Numbers of the cost model's evaluation, for the sentences of 06_cost_model, and its key numbers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.predict.evaluation import evaluate, profiled_steps
from lib.predict.trust import errors
from lib.report.sentences import Numbers, extremes, first
from lib.studies.cost_model.study import ALLOCATORS, OURS, Evaluation
from lib.studies.cost_model.tables import case_name

_COVERAGE = (88, 92)  # %, of intervals that are nominally 90 %
_RECOMPUTED = 1e-4  # relative: the published tables hold single precision
_RELEARNED = 0.15  # relative: trees and networks learned on another processor end elsewhere
_MANY, _FEW, _NAMED = 10, 5, 3  # networks of a kind; of a family; how many are named
_APART = 1.5  # times the mean error with a retained heap: the allocator matters


def trust(rows: pd.DataFrame) -> Numbers:
    """Return the answers to trust least and most, the intervals that hold too little, and the final set.

    ``rows``: ``errors.table``.
    """
    rows = rows.assign(case=errors.case_of(rows))
    networks, families, final = (rows[rows["what"] == what] for what in (errors.NETWORKS, errors.FAMILIES, errors.FINAL))
    weakest = errors.weakest_first(networks).query("n >= @_MANY")
    cases = networks[(networks["kind"] != errors.ALL) & (networks["n"] >= _MANY)]
    short = cases[cases["coverage_pct"] < _COVERAGE[0]].sort_values("coverage_pct")
    means = families[families["n"] >= _FEW].groupby("kind")[["mape_pct", "bias_pct"]].mean()
    modes = final.groupby("mode").agg(low=("mape_pct", "min"), high=("mape_pct", "max"), covered_low=("coverage_pct", "min"),
                                      covered_high=("coverage_pct", "max"))
    return {"many": _MANY, "least": weakest.head(_NAMED), **first(weakest.iloc[::-1], "most_"), "short": len(short) or None,
            "cases": len(cases), "nominal": _COVERAGE[0], **first(short, "short_"), "flagged": _flagged(rows),
            "families": means.nlargest(_NAMED + 2, "mape_pct").reset_index(), "modes": modes.reset_index(),
            "opened": final.groupby(["device", "condition"]).size().max(), **extremes(final, "mape_pct", "final_", "worst_")}


def _flagged(rows: pd.DataFrame) -> list[Numbers]:
    """Return coverage and error of the answers that were flagged as out of range, of operators and of networks."""
    parts = ((what, rows[(rows["what"] == name) & (rows["n"] > 0)]) for what, name in errors.FLAGGED.items())
    names = ("coverage_pct", "mape_pct")
    return [{"what": what, "n": part["n"].sum(), **{name: np.average(part[name], weights=part["n"]) for name in names}}
            for what, part in parts if len(part)]


def operators(scores: pd.DataFrame, predicted: pd.DataFrame) -> Numbers:
    """Return the errors on operators beside the best other learner, the coverage, and the share that is off by more than half.

    ``scores``: of every learner, ``predicted``: the operators of the evaluation.
    """
    ours = scores[scores["learner"] == OURS]
    best_other = scores[scores["learner"] != OURS].groupby("family")["mape"].min().reindex(ours["family"])
    far = predicted[predicted["relative_error"].abs() > 0.5]
    return {"families": len(ours) or None, "better": int((ours["mape"].to_numpy() < best_other.to_numpy()).sum()),
            "low": _COVERAGE[0], "high": _COVERAGE[1], "inside": int(ours["cover"].between(*_COVERAGE).sum()),
            "cover_low": ours["cover"].min(), "cover_high": ours["cover"].max(), "far": len(far),
            "far_pct": len(far) / max(1, len(predicted)) * 100, **extremes(ours, "mape"),
            **first(far["family"].value_counts().reset_index(), "far_")}


def curve(table: pd.DataFrame) -> Numbers:
    """Return the error of the first and the last point of a learning curve, and what the last step saved."""
    saved = 1 - table["mape"].iloc[-1] / table["mape"].iloc[-2] if len(table) > 1 else np.nan
    return {**first(table, "first_"), **first(table.iloc[::-1], "last_"), "saved": saved, "falling": saved > 0.05}


def networks(study: Evaluation) -> Numbers:
    """Return how whole networks and their memory are predicted, and what the allocator and measurement noise change."""
    scores = study.scores[study.scores["kind"] == "network"]
    kept, default = (scores[scores["family"].str.endswith(evaluate.with_memory(memory))] for memory in ALLOCATORS)
    every = pd.concat([study.with_allocator(memory) for memory in ALLOCATORS])
    times = every[every["replayed_mb"] == 0].pivot_table(index=["network", "mode", "batch_size"], columns="memory",
                                                         values="latency_ms").reindex(columns=list(ALLOCATORS)).dropna()
    worst = first(default.assign(case=default["family"].map(case_name)).sort_values("mape", ascending=False), "default_")
    matters = bool(len(default) and worst["default_mape"] > _APART * kept["mape"].mean())
    return {"cases": scores.assign(case=scores["family"].map(case_name)), "kept_pct": kept["mape"].max(), **worst,
            "page_faults": matters, "pairs": len(times) or None,
            "apart_pct": np.log(times["default"] / times["kept"]).abs().mean() * 100, **_memory(study.unseen)}


def _memory(unseen: pd.DataFrame) -> Numbers:
    """Return how far the peak of tensors is off, and how far that and the learned size are off resident memory, %."""
    rows = unseen[unseen["memory"] == "default"]
    tensors = (rows["memory_mb"] / (rows["memory_mb"] - rows["peak_mb"] + rows["tensors_mb"]) - 1) * 100
    of_tensors, resident = ((rows[name] / rows["rss_mb"] - 1).abs() * 100 for name in ("memory_mb", "rss_predicted_mb"))
    inside = rows["rss_mb"].between(rows["rss_low_mb"], rows["rss_high_mb"])[resident.notna()]
    return {"tensors_pct": tensors.abs().mean(), "tensors_low": tensors.min(), "tensors_high": tensors.max(),
            "tensors_only_pct": of_tensors.mean(), "resident_pct": resident.mean(), "resident_median": resident.median(),
            "resident_inside": inside.mean() * 100}


def steps(whole: pd.DataFrame) -> Numbers:
    """Return how whole steps whose architecture was left out are predicted by each learner (``profiled_steps``)."""
    left_out = whole[whole["split"] == "arch"] if len(whole) else whole
    table = profiled_steps.scores(left_out).sort_values("mape") if len(left_out) else pd.DataFrame(columns=["n"])
    return {"whole": table, "runs": table["n"].max(),
            "architectures": left_out["arch"].nunique() if len(left_out) else None}


def shipped(repeated: pd.DataFrame) -> Numbers:
    """Return whether the shipped model still gives its published predictions; ``repeated``: ``study.reproduced``."""
    off = (repeated["shipped_ms"] / repeated["published_ms"] - 1).abs()
    return {"asked": len(repeated) or None, "same": int(repeated["same"].sum()), "differs": not repeated["same"].all(),
            **first(repeated.assign(off=off).sort_values("off", ascending=False), "farthest_")}


def key_numbers(study: Evaluation, relearned: pd.DataFrame, repeated: pd.DataFrame) -> \
        Mapping[str, tuple[float, str, float | None]]:
    """Return the key numbers, each computed here: errors, coverage, errors of what was trained again."""
    numbers = {f"{row.kind}, {case_name(row.family)}, MAPE": (row.mape, "%", _RECOMPUTED)
               for row in study.scores[study.scores["learner"] == OURS].itertuples()}
    networks, operators = (study.scores[(study.scores["kind"] == kind) & (study.scores["learner"] == OURS)]
                           for kind in ("network", "operator"))
    numbers |= {f"network, {case_name(row.family)}, coverage": (row.cover, "%", 0.0) for row in networks.itertuples()}
    numbers |= {"operator, least coverage": (operators["cover"].min(), "%", 0.0),
                "operator, most coverage": (operators["cover"].max(), "%", 0.0)}
    if len(study.whole_steps):
        whole = profiled_steps.scores(study.whole_steps)
        numbers |= {f"{row.family}, MAPE": (row.mape, "%", _RECOMPUTED)
                    for row in whole[whole["learner"] == profiled_steps.OURS].itertuples()}
    numbers["published predictions that the shipped model gives"] = (int(repeated["same"].sum()), f"of {len(repeated)}", 0.0)
    return numbers | {f"relearned, {row.family}, MAPE": (row.mape, "%", _RELEARNED)
                      for row in relearned[relearned["learner"] == OURS].itertuples()}
