"""The tables of the cost model's study, as people read them."""

import pandas as pd

from lib.predict.evaluation import evaluate, models_at_hand, profiled_steps
from lib.predict.trust import errors
from lib.studies.cost_model.study import ALLOCATORS, OURS, retained

_SHOWN = {"mape": "MAPE %", "mape_low": "from", "mape_high": "to", "median": "median %", "p90": "p90 %",
          "within_10": "within 10 %", "cover": "coverage %", "n": "n"}
_TRUST = {"device": "device", "kind": "kind", "mode": "mode", "condition": "condition", "mape_pct": "MAPE %",
          "median_pct": "median %", "bias_pct": "bias %", "coverage_pct": "coverage %", "n": "n", "left_out": "left out",
          "source": "source"}
_CASE = ["network", "mode", "batch_size", "memory"]


def trust(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how wrong whole networks and steps are, the weakest first: of each device, kind and mode the worst condition."""
    table = errors.weakest_first(rows[rows["what"].isin((errors.NETWORKS, errors.NEW_CARDS, errors.STEPS))])
    table["kind"] = table["kind"].where(table["what"] == errors.NETWORKS, table["what"])
    return table[[*_TRUST, "conditions"]].rename(columns={**_TRUST, "conditions": "of conditions"})


def _of(rows: pd.DataFrame, what: tuple[str, ...], without: tuple[str, ...], **names: str) -> pd.DataFrame:
    """Return the scores of some things under the names that people read, without some columns; ``names`` are other names."""
    shown = {name: names.get(name, title) for name, title in _TRUST.items() if name not in without}
    return rows[rows["what"].isin(what)][list(shown)].rename(columns=shown)


def final_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of the final set as they fell, beside those of the families left out under the same condition."""
    case = ["device", "mode", "condition"]
    families = rows[(rows["what"] == errors.NETWORKS) & (rows["kind"] == errors.ALL)]
    left_out = families[[*case, "mape_pct"]].rename(columns={"mape_pct": "families left out, MAPE %"})
    return _of(rows, (errors.FINAL,), ("kind", "source")).merge(left_out, how="left", on=case)


def every_row(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of networks on CPUs with the rows whose repeats were too far apart to be usable."""
    return _of(rows, (errors.EVERY_NETWORK,), ("kind", "left_out", "source"))


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how right the peak of memory is, as what tensors take and as what the process comes to occupy."""
    table = _of(rows.assign(kind=rows["what"]), (errors.TENSORS, errors.RESIDENT), ("coverage_pct", "left_out", "source"),
                kind="judged on", condition="predicted")
    return table[["device", "predicted", "judged on", *table.columns.drop(["device", "predicted", "judged on"])]]


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how wrong the predicted factor of each change is: channels_last, compiling, bf16."""
    return _of(rows, (errors.GAINS,), ("kind", "source"), condition="from and to", mape_pct="MAPE of the factor %")


def ours(scores: pd.DataFrame) -> pd.DataFrame:
    """Return this model's scores, with the best other learner beside."""
    own = scores[scores["learner"] == OURS]
    others = scores[scores["learner"] != OURS].sort_values("mape").drop_duplicates("family").set_index("family")
    table = own[["family", *_SHOWN]].rename(columns=_SHOWN).reset_index(drop=True)
    if len(others):
        best = others.reindex(table["family"])
        table["next best"] = [f"{name} {value:.1f}" for name, value in zip(best["learner"], best["mape"], strict=True)]
    return table


def by_case(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of whole networks by mode, batch size and allocator."""
    table = scores[scores["kind"] == "network"][["family", *_SHOWN]].rename(columns={**_SHOWN, "family": "case"})
    return table.assign(case=table["case"].map(case_name))


def case_name(family: str) -> str:
    """Return the name of a case of whole networks in the field's words: ``kept memory`` is a retained heap."""
    for memory, name in ALLOCATORS.items():
        family = family.replace(evaluate.with_memory(memory), name)
    return family


def worst(networks: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the predictions of unseen networks, on a CPU those with retained heap, that are farthest off."""
    table = retained(networks)
    table = table[[*_CASE[:-1], "latency_ms", "predicted_ms", "low_ms", "high_ms", "outside"]].assign(
        error_pct=(table["predicted_ms"] / table["latency_ms"] - 1) * 100)
    return table.sort_values("error_pct", key=abs, ascending=False).head(most)


def whole_steps(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of profiled steps that were left out, by what was left out and learner."""
    if predictions.empty:
        return pd.DataFrame(columns=["left out", "learner", *_SHOWN.values()])
    table = profiled_steps.scores(predictions)
    table["family"] = table["family"].str.removeprefix("whole step, ").str.removesuffix(" left out")
    return table[["family", "learner", *_SHOWN]].rename(columns={**_SHOWN, "family": "left out"})


def models() -> pd.DataFrame:
    """Return every registered model, part by part, with its scores."""
    return models_at_hand.summary()
