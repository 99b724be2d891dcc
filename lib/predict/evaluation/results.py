"""The evaluation of a reference machine read back, and a part of it done again: what 06 shows."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.predict import registry, training
from lib.predict.evaluation import baselines
from lib.predict.operators import cost_model
from lib.predict.operators.cost_model import CostModel

_SHOWN = {"mape": "MAPE %", "mape_low": "from", "mape_high": "to", "median": "median %", "p90": "p90 %",
          "within_10": "within 10 %", "cover": "cover %", "n": "n"}
_CURVE = (60, 120, 250, 500, 1000, 2000, 4000)
_QUICK_ROWS = 1500
_JUDGED_PASSES = ("network", "mode", "batch_size", "memory", "latency_ms", "predicted_ms", "low_ms", "high_ms", "outside")


@dataclass(frozen=True)
class Evaluated:
    """Scores and predictions of a machine's models as they were evaluated in full."""

    folder: Path
    scores: pd.DataFrame
    predictions: pd.DataFrame
    networks: pd.DataFrame
    note: str

    @property
    def operators(self) -> pd.DataFrame:
        """Return the scores of operators, every learner."""
        return self.scores[self.scores["kind"] == "operator"]

    @property
    def judged(self) -> pd.DataFrame:
        """Return the networks that judge: measured, and never learned from."""
        table = pd.concat([self.whole(memory) for memory in ("kept", "default")])
        return table[~table["tuning"]]

    def whole(self, memory: str) -> pd.DataFrame:
        """Return torchvision's networks, those learned from included, measured with one way of the allocator."""
        table = self.networks[~self.networks["network"].str.fullmatch(r"W\d+")]
        return table[(table["memory"] == memory) & (table["status"] == "ok") & (table["verdict"] != "unusable")]


@dataclass(frozen=True)
class Again:
    """Some families learned again: scores, predictions, errors by size, a learning curve and the effect of features."""

    scores: pd.DataFrame
    predictions: pd.DataFrame
    sizes: pd.DataFrame
    curve: pd.DataFrame
    curve_of: str
    effects: pd.DataFrame
    effects_of: str


def read(reference: str = "") -> Evaluated:
    """Read the evaluation of a reference machine (empty: the first that has one); InputError lists those that have one."""
    known = {path.parent.parent.name: path.parent for path in sorted(paths.REFERENCE.glob("*/predictions/scores.parquet"))}
    if not known or (reference and reference not in known):
        raise InputError(f"no evaluation of {reference or 'any machine'} in {paths.REFERENCE}; there are: {choices(known)}; "
                         "run: python -m lib models --train cpu")
    folder = known[reference] if reference else next(iter(known.values()))
    meta = store.read_json(folder / "scores.meta.json")
    note = (f"REPLAY of the models of {folder.parent.name}, trained {meta['written_utc'][:10]} from "
            f"{', '.join(name.rpartition('/')[2] for name in meta['sweeps'])}.")
    return Evaluated(folder, store.read(folder / "scores.parquet", "scores"),
                     store.read(folder / "predictions.parquet", "predictions"), pd.read_csv(folder / "networks.csv"), note)


def ours(scores: pd.DataFrame) -> pd.DataFrame:
    """Return this model's scores as people read them, with the best other learner beside."""
    mine = scores[scores["learner"] == "this model"]
    others = scores[scores["learner"] != "this model"].sort_values("mape").drop_duplicates("family").set_index("family")
    table = mine[["family", *_SHOWN]].rename(columns=_SHOWN).reset_index(drop=True)
    if len(others):
        best = others.reindex(table["family"])
        table["next best"] = [f"{name} {value:.1f}" for name, value in zip(best["learner"], best["mape"], strict=True)]
    return table


def again(held: Evaluated, families: list[str], quick: bool) -> Again:
    """Learn some families again from the machine's sweeps; InputError lists the families."""
    unknown = [name for name in families if name not in baselines.FAMILIES]
    if unknown or not families:
        raise InputError(f"no family {choices(unknown) or '(none named)'}; there are: {choices(baselines.FAMILIES)}")
    table, _ = training.reference_sweeps(held.folder.parent)
    roof = training.roof_of(held.folder.parent)
    wanted = {name: baselines.FAMILIES[name] for name in families}
    asked = pd.concat([_some(table[table["op"].isin(ops) & (table["pass"] == passes)], quick)
                       for ops, passes in wanted.values()])
    model = cost_model.fit(asked, quick=quick)
    scores, predictions = baselines.compare(asked, roof.peak_gflops, roof.gbps(), model, families=wanted, baselines=not quick)
    ops, passes = wanted[families[0]]
    rows = asked[asked["op"].isin(ops) & (asked["pass"] == passes)].reset_index(drop=True)
    curve = baselines.learning_curve(rows, _CURVE[1::2] if quick else _CURVE, quick=quick)
    return Again(scores, predictions, baselines.by_size(predictions), curve, families[0],
                 baselines.effects(model, rows.sample(min(len(rows), 400), random_state=0)), families[0])


def _some(rows: pd.DataFrame, quick: bool) -> pd.DataFrame:
    """Return the rows, or no more of them than are learned from in a moment."""
    return rows.sample(min(len(rows), _QUICK_ROWS), random_state=0) if quick else rows


def network_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of whole networks as people read them."""
    return scores[scores["kind"] == "network"][["family", *_SHOWN]].rename(columns={**_SHOWN, "family": "case"})


def worst_networks(networks: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the predictions of judging networks that are farthest off."""
    judged = networks[~networks["tuning"] & (networks["memory"] == "kept") & (networks["status"] == "ok")]
    table = judged[list(_JUDGED_PASSES)].assign(error_pct=(judged["predicted_ms"] / judged["latency_ms"] - 1) * 100)
    return table.sort_values("error_pct", key=abs, ascending=False).head(most)


def step_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of workload steps by learner."""
    names = {name: shown for name, shown in _SHOWN.items() if name != "cover"}
    return scores[scores["kind"] == "step"][["learner", *names]].rename(columns=names)


def shelf_table() -> pd.DataFrame:
    """Return every model at hand, part by part, with its scores."""
    return training.summary([(device, dtype, CostModel.load(path)) for (device, dtype), path in registry.shelved().items()])
