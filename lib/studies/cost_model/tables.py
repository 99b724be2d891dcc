"""The tables of the cost model's study, as people read them, the numbers of its sentences, and its key numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.advice import advise_text
from lib.predict.advice.advise import Advice, advise
from lib.predict.advice.query import CHOICES, Query
from lib.predict.evaluation import evaluate, profiled_steps
from lib.predict.trust import errors
from lib.progress import watched
from lib.report.sentences import KeyNumbers, Numbers
from lib.report.style import renamed, table_html
from lib.studies.cost_model.study import ALLOCATORS, OURS, Evaluation, retained

_COVERED_PCT = 85  # of outsiders' labels that a range should hold
_COVERAGE = (88, 92)  # %, of intervals that are nominally 90 %
_RECOMPUTED = 1e-4  # relative: the published tables hold single precision
_RELEARNED = 0.15  # relative: trees and networks learned on another processor end elsewhere
_MANY, _FEW, _NAMED = 10, 5, 3  # networks of a kind; of a family; how many are named
_APART = 1.5  # times the mean error with a retained heap: the allocator matters
_ZERO = {"batch_size": "0: the usual one", "threads": "0: all", "power_limit_w": "0: none"}  # fields of a form that may be 0
_SHOWN = {"mape": "MAPE %", "mape_low": "from", "mape_high": "to", "median": "median %", "p90": "p90 %",
          "within_10": "within 10 %", "cover": "coverage %", "n": "n"}
_TRUST = {"device": "device", "kind": "kind", "mode": "mode", "condition": "condition", "mape_pct": "MAPE %",
          "median_pct": "median %", "bias_pct": "bias %", "coverage_pct": "coverage %", "n": "n", "left_out": "left out",
          "source": "source"}


def trust(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how wrong whole networks and steps are, the weakest first: of each device, kind and mode the worst condition."""
    table = errors.weakest_first(rows.query("what in (@errors.NETWORKS, @errors.NEW_CARDS, @errors.STEPS)"))
    kind = table["kind"].where(table["what"] == errors.NETWORKS, table["what"])
    return renamed(table.assign(kind=kind), {**_TRUST, "conditions": "of conditions"})


def _of(rows: pd.DataFrame, what: tuple[str, ...], without: tuple[str, ...], **names: str) -> pd.DataFrame:
    """Return the scores of some things under the names that people read, without some columns; ``names`` are other names."""
    return renamed(rows[rows["what"].isin(what)], {**_TRUST, **names}).drop(columns=[_TRUST[name] for name in without])


def final_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of the final set as they fell, beside those of the families left out under the same condition."""
    case = ["device", "mode", "condition"]
    families = rows.query("what == @errors.NETWORKS and kind == @errors.ALL")
    left_out = families[[*case, "mape_pct"]].rename(columns={"mape_pct": "families left out, MAPE %"})
    return _of(rows, (errors.FINAL,), ("kind", "source")).merge(left_out, how="left", on=case)


def every_row(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of networks on CPUs with the rows whose repeats were too far apart to be usable."""
    return _of(rows, (errors.EVERY_NETWORK,), ("kind", "left_out", "source"))


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how right the peak of memory is, as what tensors take and as what the process comes to occupy."""
    condition = rows["condition"].where(rows["kind"] == errors.ALL, rows["condition"] + ", " + rows["kind"])
    table = _of(rows.assign(kind=rows["what"], condition=condition), (errors.TENSORS, errors.RESIDENT),
                ("coverage_pct", "left_out", "source"), kind="judged on", condition="predicted")
    return table[["device", "predicted", "judged on", *table.columns.drop(["device", "predicted", "judged on"])]]


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how wrong the predicted factor of each change is, and how often its sign is right, beside a constant factor."""
    return _of(rows, (errors.GAINS,), ("kind", "source"), condition="from and to", mape_pct="MAPE of the factor %",
               baseline_pct="MAPE of a constant %", sign_pct="sign right %", always_pct="right if always %")


def runtime_numbers(chosen: pd.DataFrame, fp32: pd.DataFrame) -> Numbers:
    """Return what the choice of a runtime costs (``runtime_choices.choices``; and in fp32 alone), and what was best."""
    best = chosen["best"].value_counts(normalize=True).mul(100).rename_axis("condition").rename("pct").reset_index()
    numbers = {"chosen": chosen, "fp32": fp32, "best": best.head(_NAMED)}
    for dtype, costs in (("int8", chosen), ("fp32", fp32)):  # a rule and the prediction in the same cases
        rule = costs[f"always openvino {dtype}"]
        numbers |= {f"always_{dtype}": rule, f"beside_{dtype}": costs.loc[rule.notna(), "regret_pct"]}
    return numbers | {f"{name}_hit": (numbers[name]["regret_pct"] == 0).mean() * 100 for name in ("chosen", "fp32")}


def ours(scores: pd.DataFrame) -> pd.DataFrame:
    """Return this model's scores, with the best other learner beside."""
    table = renamed(scores.query("learner == @OURS"), {"family": "family", **_SHOWN}).reset_index(drop=True)
    best = scores.query("learner != @OURS").sort_values("mape").drop_duplicates("family").set_index("family")
    if len(best):
        table["next best"] = [f"{row.learner} {row.mape:.1f}" for row in best.reindex(table["family"]).itertuples()]
    return table


def by_case(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of whole networks by mode, batch size and allocator."""
    return renamed(_with_cases(scores), {"case": "case", **_SHOWN})


def _with_cases(scores: pd.DataFrame) -> pd.DataFrame:
    networks = scores.query("kind == 'network'")
    return networks.assign(case=networks["family"].map(case_name))


def case_name(family: str) -> str:
    """Return the name of a case of whole networks in the field's words: ``kept memory`` is a retained heap."""
    for memory, name in ALLOCATORS.items():
        family = family.replace(evaluate.with_memory(memory), name)
    return family


def worst(networks: pd.DataFrame) -> pd.DataFrame:
    """Return the ten predictions of unseen networks, on a CPU those with retained heap, that are farthest off."""
    table = retained(networks)["network mode batch_size latency_ms predicted_ms low_ms high_ms outside".split()]
    return table.eval("error_pct = (predicted_ms / latency_ms - 1) * 100").sort_values(
        "error_pct", key=abs, ascending=False).head(10)


def whole_steps(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of profiled steps that were left out, by what was left out and learner."""
    if predictions.empty:
        return predictions
    table = profiled_steps.scores(predictions)
    left_out = table["family"].str.removeprefix("whole step, ").str.removesuffix(" left out")
    return renamed(table.assign(family=left_out), {"family": "left out", "learner": "learner", **_SHOWN})


# ------------------------------------------------------------------------------------------------- numbers of sentences

def outsiders(board: pd.DataFrame) -> Numbers:
    """Return the scoreboard's extremes and means; ``board``: ``scoreboard.summary``."""
    is_network = board["question"].str.startswith("networks")
    networks = board[is_network]
    return {"board": board, "kernels": board[~is_network], "networks": networks, "worst": networks.nlargest(1, "mape_pct"),
            "covered": (board["inside_pct"] >= _COVERED_PCT).sum(), "least": _COVERED_PCT}


def trust_numbers(rows: pd.DataFrame) -> Numbers:
    """Return the answers to trust least and most, the intervals that hold too little, and the final set.

    ``rows``: ``errors.table``.
    """
    rows = rows.assign(case=errors.case_of(rows))
    networks, families, final = (rows[rows["what"] == what] for what in (errors.NETWORKS, errors.FAMILIES, errors.FINAL))
    weakest = errors.weakest_first(networks).query("n >= @_MANY")
    cases = networks.query("kind != @errors.ALL and n >= @_MANY")
    means = families.query("n >= @_FEW").groupby("kind")[["mape_pct", "bias_pct"]].mean()
    modes = final.groupby("mode").agg(low=("mape_pct", "min"), high=("mape_pct", "max"), covered_low=("coverage_pct", "min"),
                                      covered_high=("coverage_pct", "max"))
    return {"many": _MANY, "least": weakest.head(_NAMED), "weakest": weakest, "cases": cases, "nominal": _COVERAGE[0],
            "short": cases[cases["coverage_pct"] < _COVERAGE[0]], "flagged": flagged(rows),
            "families": means.nlargest(_NAMED + 2, "mape_pct").reset_index(), "modes": modes.reset_index(),
            "opened": final.groupby(["device", "condition"]).size().max(), "final": final}


def flagged(rows: pd.DataFrame) -> list[Numbers]:
    """Return coverage and error of the answers that were flagged as out of range, of operators and of networks."""
    parts = ((noun, rows.query("what == @what and n > 0")) for noun, what in errors.FLAGGED.items())
    return [{"what": noun, "n": part["n"].sum(), **{name: np.average(part[name], weights=part["n"])
                                                    for name in ("coverage_pct", "mape_pct")}}
            for noun, part in parts if len(part)]


def operators(scores: pd.DataFrame, predicted: pd.DataFrame) -> Numbers:
    """Return the errors on operators beside the best other learner, the coverage, and those that are off by more than half.

    ``scores``: of every learner, ``predicted``: the operators of the evaluation.
    """
    ours = scores.query("learner == @OURS")
    best_other = scores.query("learner != @OURS").groupby("family")["mape"].min().reindex(ours["family"])
    far = predicted.query("abs(relative_error) > 0.5")
    return {"ours": ours.assign(better=ours["mape"].to_numpy() < best_other.to_numpy(),
                                inside=ours["cover"].between(*_COVERAGE)),
            "low": _COVERAGE[0], "high": _COVERAGE[1], "far": far, "far_pct": len(far) / max(1, len(predicted)) * 100,
            "far_families": far["family"].value_counts().reset_index()}


def curve(table: pd.DataFrame) -> Numbers:
    """Return a learning curve, and what its last step saved."""
    saved = 1 - table["mape"].iloc[-1] / table["mape"].iloc[-2] if len(table) > 1 else np.nan
    return {"curve": table, "saved": saved, "falling": saved > 0.05}


def networks(study: Evaluation) -> Numbers:
    """Return how whole networks and their memory are predicted, and what the allocator and measurement noise change."""
    scores = _with_cases(study.scores)
    kept, default = (scores[scores["case"].str.endswith(name)] for name in ALLOCATORS.values())
    every = pd.concat([study.with_allocator(memory) for memory in ALLOCATORS])
    times = every.query("replayed_mb == 0").pivot_table(index=["network", "mode", "batch_size"], columns="memory",
                                                        values="latency_ms").reindex(columns=list(ALLOCATORS)).dropna()
    memory = _memory(study.unseen)
    first = memory["first_use"].astype(bool)
    return {"cases": scores, "kept": kept, "default": default, "pairs": len(times) or None,
            "page_faults": default["mape"].max() > _APART * kept["mape"].mean(),
            "apart_pct": np.log(times["default"] / times["kept"]).abs().mean() * 100, "memory": memory, "first": memory[first],
            "later": memory[~first]}


def _memory(unseen: pd.DataFrame) -> pd.DataFrame:
    """Return networks with how far the peak of tensors is off, and that and the learned size from resident memory, %."""
    rows = unseen.query("memory == 'default'").eval("""
        tensors = 100 * (memory_mb / (memory_mb - peak_mb + tensors_mb) - 1)
        off = abs(tensors)
        tensors_only = 100 * abs(memory_mb / rss_mb - 1)
        resident = 100 * abs(rss_predicted_mb / rss_mb - 1)
        inside = 100 * (rss_low_mb <= rss_mb <= rss_high_mb)""")
    return rows.assign(inside=rows["inside"].where(rows["resident"].notna()))


def steps(whole: pd.DataFrame) -> Numbers:
    """Return how whole steps whose architecture was left out are predicted by each learner (``profiled_steps``)."""
    left_out = whole.query("split == 'arch'") if len(whole) else whole
    table = profiled_steps.scores(left_out).sort_values("mape") if len(left_out) else pd.DataFrame(columns=["n"])
    return {"whole": table.to_dict("records"), "runs": table["n"].max(),
            "architectures": left_out["arch"].nunique() if len(left_out) else None}


def shipped(repeated: pd.DataFrame) -> Numbers:
    """Return whether the shipped model still gives its published predictions; ``repeated``: ``study.reproduced``."""
    return {"cases": repeated.eval("off = abs(shipped_ms / published_ms - 1)"), "differs": not repeated["same"].all()}


def key_numbers(study: Evaluation, relearned: pd.DataFrame, repeated: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers, each computed here: errors, coverage, errors of what was trained again."""
    def errors_of(scores: pd.DataFrame, kinds: pd.Series | str, tolerance: float) -> KeyNumbers:
        names = kinds + scores["family"].map(case_name) + ", MAPE"
        return {name: (value, "%", tolerance) for name, value in zip(names, scores["mape"], strict=True)}

    ours = study.scores[study.scores["learner"] == OURS]
    networks, operators = (ours[ours["kind"] == kind] for kind in ("network", "operator"))
    whole = profiled_steps.scores(study.whole_steps) if len(study.whole_steps) else pd.DataFrame(
        columns=["learner", "family", "mape"], dtype=str)
    return {**errors_of(ours, ours["kind"] + ", ", _RECOMPUTED),
            **{f"network, {case_name(row.family)}, coverage": (row.cover, "%", 0.0) for row in networks.itertuples()},
            "operator, least coverage": (operators["cover"].min(), "%", 0.0),
            "operator, most coverage": (operators["cover"].max(), "%", 0.0),
            **errors_of(whole[whole["learner"] == profiled_steps.OURS], "", _RECOMPUTED),
            "published predictions that the shipped model gives": (int(repeated["same"].sum()), f"of {len(repeated)}", 0.0),
            **errors_of(relearned.query("learner == @OURS"), "relearned, ", _RELEARNED)}


# ------------------------------------------------------------------------------------------------- another question

def controls(advice: Advice, devices: Sequence[str]) -> None:
    """Show a form filled with the question of ``advice``; its button shows the answer on one device, or on all ``devices``.

    Shows nothing in a batch run or a report.
    """
    if not watched():
        return
    from IPython.display import HTML, display
    from ipywidgets import BoundedFloatText, BoundedIntText, Dropdown, interact_manual

    def respond(device: str, **values: Any) -> None:
        try:
            answer = advise(Query(**values), devices if device == "all" else [device], crossovers=False)
            display(HTML(table_html(advise_text.table(answer), f"{advise_text.heading(answer)}. {answer.reason}.")))
        except InputError as error:
            print(error)

    fields = {"device": Dropdown(options=list(dict.fromkeys(["all", *advice.table["device"], *load_devices()])))}
    for name in Query.__dataclass_fields__:
        value = getattr(advice.captured.query, name)
        fields[name] = value  # a text field, or a checkbox for a boolean
        if name in CHOICES:
            fields[name] = Dropdown(options=CHOICES[name], value=value)
        elif type(value) in (int, float):
            kind, label = BoundedIntText if type(value) is int else BoundedFloatText, _ZERO.get(name)
            fields[name] = kind(value, min=0 if label else 1, max=1_000_000, description=f"{name} ({label})" if label else name)
    interact_manual.options(manual_name="advise")(respond, **fields)
