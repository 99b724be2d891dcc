"""What the evaluation of the cost model says, in words whose numbers are put in, and its key numbers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.predict.evaluation import evaluate, profiled_steps
from lib.predict.trust import held_out
from lib.studies.cost_model.study import ALLOCATORS, OURS, Evaluation
from lib.studies.cost_model.tables import case_name

_COVERAGE = (88, 92)  # %, of intervals that are nominally 90 %
_RECOMPUTED = 1e-4  # relative: the published tables hold single precision
_RELEARNED = 0.15  # relative: trees and networks learned on another processor end elsewhere
_MANY, _FEW, _NAMED = 10, 5, 3  # networks of a kind; of a family; how many are named
_SEVERAL = 1.5  # times the mean error of one case: another matter


@needs("errors of held-out networks")
def trust_words(rows: pd.DataFrame) -> str:
    """Say which answers are to be trusted least and most, and whose intervals hold too little; ``rows``: ``held_out.table``."""
    networks = held_out.weakest_first(rows[rows["what"] == held_out.NETWORKS])
    networks = networks[networks["n"] >= _MANY]
    if networks.empty:
        raise MissingError(f"kinds of {_MANY} networks or more")
    networks = networks.assign(case=networks["kind"] + " networks on " + held_out.case_of(networks))
    *least, most = [*networks.head(_NAMED).to_dict("records"), networks.iloc[-1].to_dict()]
    text = (f"To be trusted least, of the kinds with {_MANY} networks or more: "
            + "; ".join(f"{row['case']}: mean error {row['mape_pct']:.0f} %, bias {row['bias_pct']:+.0f} %" for row in least)
            + f". Most: {most['case']}: {most['mape_pct']:.0f} %.")
    cases = rows[(rows["what"] == held_out.NETWORKS) & (rows["kind"] != held_out.ALL) & (rows["n"] >= _MANY)]
    short = cases[cases["coverage_pct"] < _COVERAGE[0]].sort_values("coverage_pct")
    if len(short):
        first = short.iloc[0]
        text += (f" Nominal 90 % intervals hold less than {_COVERAGE[0]} % in {len(short)} of {len(cases)} cases, least for "
                 f"{first['kind']} networks on {held_out.case_of(first)}: {first['coverage_pct']:.0f} %.")
    return text


@needs("errors of families")
def far_families_words(rows: pd.DataFrame) -> str:
    """Say which families of networks are farthest off when they are left out; ``rows``: ``held_out.table``."""
    rows = rows[(rows["what"] == held_out.FAMILIES) & (rows["n"] >= _FEW)]
    if rows.empty:
        raise MissingError(f"families of {_FEW} networks or more")
    means = rows.groupby("kind")[["mape_pct", "bias_pct"]].mean().sort_values("mape_pct", ascending=False).head(_NAMED + 2)
    listed = ", ".join(f"{row.Index} ({row.mape_pct:.0f} %, bias {row.bias_pct:+.0f} %)" for row in means.itertuples())
    return f"On cards the families farthest off, means over all cards and conditions: {listed}."


@needs("answers that were flagged")
def flagged_words(rows: pd.DataFrame) -> str:
    """Say whether the intervals of answers that were flagged as out of range hold; ``rows``: ``held_out.table``."""
    parts = []
    for what in (held_out.OPERATORS, held_out.NETWORKS):
        part = rows[rows["what"] == held_out.FLAGGED[what]]
        if part["n"].sum():
            coverage, error = (np.average(part[name], weights=part["n"]) for name in ("coverage_pct", "mape_pct"))
            parts.append(f"{coverage:.0f} % of {int(part['n'].sum()):,} {what} (mean error {error:.0f} %)")
    if not parts:
        raise MissingError("answers that were flagged")
    return f"Of answers flagged as out of range nominal 90 % intervals hold {' and '.join(parts)}."


@needs("scores of the final set")
def final_words(rows: pd.DataFrame) -> str:
    """Say how often the final set was opened, and what it gave; ``rows``: ``held_out.table``."""
    final = rows[rows["what"] == held_out.FINAL]
    if final.empty:
        raise MissingError("scores of the final set")
    times = int(final.groupby(["device", "condition"]).size().max())
    several = "; ".join(f"{mode} {part['mape_pct'].min():.0f} to {part['mape_pct'].max():.0f} %, intervals hold "
                        f"{part['coverage_pct'].min():.0f} to {part['coverage_pct'].max():.0f} %"
                        for mode, part in final.groupby("mode"))
    worst = final.loc[final["mape_pct"].idxmax()]
    return (f"The final set of families, which no fit and no choice saw, was opened "
            f"{'once' if times == 1 else f'{times} times'}: mean errors by condition: {several}; worst of all "
            f"{held_out.case_of(worst)}, bias {worst['bias_pct']:+.0f} %.")


@needs("scores")
def family_words(scores: pd.DataFrame) -> str:
    """Say how the model does on operators against the best other learner, and whether its intervals hold."""
    own = scores[scores["learner"] == OURS].set_index("family")
    if own.empty:
        raise MissingError("scores of this model")
    others = scores[scores["learner"] != OURS].groupby("family")["mape"].min().reindex(own.index)
    better = int((own["mape"] < others).sum())
    best, worst = own["mape"].idxmin(), own["mape"].idxmax()
    text = (f"On unseen shapes the mean error runs from {own['mape'][best]:.1f} % ({best}) to {own['mape'][worst]:.1f} % "
            f"({worst}); in {better} of {len(own)} families this model is nearer than the best of the other learners.")
    if own["cover"].notna().any():
        inside = own["cover"].between(*_COVERAGE)
        text += (f" The empirical coverage of nominal 90 % intervals is {own['cover'].min():.0f} to "
                 f"{own['cover'].max():.0f} %, within {_COVERAGE[0]} to {_COVERAGE[1]} % in "
                 f"{int(inside.sum())} of {len(own)} families.")
    return text


@needs("predicted operators")
def weak_words(operators: pd.DataFrame) -> str:
    """Say where the operator models are weakest; ``operators`` are those of the evaluation."""
    far = operators[operators["relative_error"].abs() > 0.5]
    families = far["family"].value_counts()
    return (f"{len(far) / len(operators) * 100:.1f} % of the operators are off by more than half"
            + (f", most of them {families.index[0]} ({families.iloc[0]} of {len(far)})." if len(far) else "."))


@needs("points of the learning curve")
def curve_words(curve: pd.DataFrame, family: str) -> str:
    """Say what more points gave, and whether still more would help."""
    first, last = curve.iloc[0], curve.iloc[-1]
    text = (f"{family}: MAPE {first['mape']:.1f} % from {int(first['points'])} points, {last['mape']:.1f} % from "
            f"{int(last['points'])}.")
    if len(curve) > 1:
        saved = 1 - last["mape"] / curve.iloc[-2]["mape"]
        text += (f" The last step still saved {saved:.0%} of the error: more points would help." if saved > 0.05 else
                 " The curve is flat at its end: more points of the same kind would not help.")
    return text


@needs("predicted networks")
def network_words(study: Evaluation) -> str:
    """Say how whole networks are predicted."""
    rows = study.scores[study.scores["kind"] == "network"]
    if rows.empty:
        raise MissingError("predicted networks")
    parts = [f"{case_name(row.family)}: {row.mape:.1f} % (median {row.median:.1f} %, {row.n} networks, "
             f"coverage {row.cover:.0f} %)"
             for row in rows.itertuples()]
    return "Networks that were never learned from, mean error: " + "; ".join(parts) + "."


@needs("predicted networks")
def composition_words(study: Evaluation) -> str:
    """Say what the errors of whole networks mean: whether operators or memory are what is not understood."""
    rows = study.scores[study.scores["kind"] == "network"]
    keeping, default = (rows[rows["family"].str.endswith(evaluate.with_memory(memory))] for memory in ALLOCATORS)
    if keeping.empty or default.empty:
        raise MissingError("networks measured with both allocators")
    worst = default.loc[default["mape"].idxmax()]
    text = "Where freed memory stays in the process, a network is the sum of its operators to within " \
           f"{keeping['mape'].max():.0f} %. "
    if worst["mape"] > _SEVERAL * keeping["mape"].mean():
        text += (f"With the default allocator the error reaches {worst['mape']:.0f} % ({case_name(worst['family'])}): what "
                 "remains to be predicted is page faults, not arithmetic.")
    else:
        text += "The default allocator changes that little."
    return text + _noise_words(study)


def _noise_words(study: Evaluation) -> str:
    """Say how far two processes differ that run a network which takes no fresh memory: heaps are no reason then."""
    rows = pd.concat([study.with_allocator(memory) for memory in ALLOCATORS])
    rows = rows[rows["replayed_mb"] == 0]
    times = rows.pivot_table(index=["network", "mode", "batch_size"], columns="memory", values="latency_ms").dropna()
    if times.empty or set(times) != set(ALLOCATORS):
        return ""
    apart = np.abs(np.log(times["default"] / times["kept"])).mean() * 100
    return (f" Networks that take no fresh memory took times {apart:.0f} % apart with the two ({len(times)} pairs): "
            "an error below that is the measurements'.")


@needs("predicted networks")
def memory_words(study: Evaluation) -> str:
    """Say how the peak of tensors is predicted, and what a process needs beyond it."""
    rows = study.unseen[study.unseen["memory"] == "default"]
    if rows.empty:
        raise MissingError("predicted networks")
    ratio = rows["memory_mb"] / (rows["memory_mb"] - rows["peak_mb"] + rows["tensors_mb"])
    tensors, resident = ((rows[name] / rows["rss_mb"] - 1).abs() * 100 for name in ("memory_mb", "rss_predicted_mb"))
    inside = rows["rss_mb"].between(rows["rss_low_mb"], rows["rss_high_mb"])[resident.notna()].mean() * 100
    return (f"Weights and the peak of tensors are off by {np.abs(ratio - 1).mean() * 100:.1f} % at the mean and at worst "
            f"{(ratio.min() - 1) * 100:+.1f} % and {(ratio.max() - 1) * 100:+.1f} %. A process grows by more: libraries "
            "take memory of their own, and a heap does not reuse all that is freed. From that the tensors alone are "
            f"off by {tensors.mean():.0f} %, what was learned from other families by {resident.mean():.1f} % (median "
            f"{resident.median():.1f} %; {inside:.0f} % inside the nominal 90 % interval).")


@needs("workloads at several batch sizes")
def step_words(scores: pd.DataFrame) -> str:
    """Say how forward and backward of workloads are predicted by each learner."""
    rows = scores[scores["kind"] == "step"].sort_values("mape")
    if not len(rows):
        raise MissingError("workloads at several batch sizes")
    best = rows.iloc[0]
    rest = ", ".join(f"{row.learner} {row.mape:.0f} %" for row in rows.iloc[1:].itertuples())
    return f"Forward and backward of workloads, each left out: best is {best['learner']} with {best['mape']:.1f} %; {rest}."


@needs("profiled steps")
def whole_step_words(predictions: pd.DataFrame) -> str:
    """Say how whole steps are predicted where their architecture was left out; ``predictions``: of ``profiled_steps``."""
    rows = predictions[predictions["split"] == "arch"]
    if rows.empty:
        raise MissingError("steps whose architecture was left out")
    scores = profiled_steps.scores(rows).sort_values("mape")
    several = "; ".join(f"{row.learner} {row.mape:.0f} % ({row.mape_low:.0f} to {row.mape_high:.0f})"
                        for row in scores.itertuples())
    return (f"Whole steps with loader, copy and optimizer, their architecture left out, mean error with its 95 % interval: "
            f"{several}. They are {scores['n'].iloc[0]} runs of {rows['arch'].nunique()} architectures: too few to tell "
            "the best apart.")


@needs("predictions of the shipped model")
def shipped_words(repeated: pd.DataFrame) -> str:
    """Say whether the shipped model still gives its published predictions; ``repeated`` as ``study.reproduced`` gives it."""
    same = int(repeated["same"].sum())
    text = f"The shipped model was asked again about {len(repeated)} cases and gives {same} published predictions again"
    if same == len(repeated):
        return text + "."
    off = (repeated["shipped_ms"] / repeated["published_ms"] - 1).abs()
    return f"{text}; the farthest is {repeated.loc[off.idxmax(), 'network']}, off by {off.max():.1%}."


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
    steps = study.scores[study.scores["kind"] == "step"]
    numbers |= {f"step, {row.learner}, MAPE": (row.mape, "%", _RECOMPUTED) for row in steps.itertuples()
                if row.learner == "sum of operators"}
    if len(study.whole_steps):
        own = profiled_steps.scores(study.whole_steps)
        numbers |= {f"{row.family}, MAPE": (row.mape, "%", _RECOMPUTED)
                    for row in own[own["learner"] == profiled_steps.OURS].itertuples()}
    numbers["published predictions that the shipped model gives"] = (int(repeated["same"].sum()), f"of {len(repeated)}", 0.0)
    return numbers | {f"relearned, {row.family}, MAPE": (row.mape, "%", _RELEARNED)
                      for row in relearned[relearned["learner"] == OURS].itertuples()}
