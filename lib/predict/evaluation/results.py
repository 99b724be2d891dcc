"""The evaluation of a reference machine read back, and a part of it trained again: what 06 shows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.predict import network_training, registry, training
from lib.predict.evaluation import baselines, learning
from lib.predict.evaluation.evaluate import network_scores
from lib.predict.network_training import WORKLOADS
from lib.predict.operators import fitting
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.validation import score

_SHOWN = {"mape": "MAPE %", "mape_low": "from", "mape_high": "to", "median": "median %", "p90": "p90 %",
          "within_10": "within 10 %", "cover": "cover %", "n": "n"}
_CURVE = (60, 120, 250, 500, 1000, 2000, 4000)
_QUICK_ROWS, _EFFECT_ROWS = 1500, 400
_NETWORK_COLUMNS = ("network", "mode", "batch_size", "memory", "latency_ms", "predicted_ms", "low_ms", "high_ms", "outside")


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
    def validating(self) -> pd.DataFrame:
        """Return the networks that validate: measured, and none that a composition was fitted to."""
        table = pd.concat([self.end_to_end(memory) for memory in ("kept", "default")])
        return table[~table["tuning"]]

    def end_to_end(self, memory: str) -> pd.DataFrame:
        """Return torchvision's networks, tuning ones included, measured with one way of the allocator (kept, default)."""
        table = self.networks[~self.networks["network"].str.fullmatch(WORKLOADS)]
        return table[(table["memory"] == memory) & (table["status"] == "ok") & (table["verdict"] != "unusable")]


@dataclass(frozen=True)
class Retrained:
    """Some families trained again: scores, predictions, errors by size, a learning curve and the effect of features."""

    scores: pd.DataFrame
    predictions: pd.DataFrame
    sizes: pd.DataFrame
    curve: pd.DataFrame
    curve_of: str
    effects: pd.DataFrame
    effects_of: str


def read(reference: str = "") -> Evaluated:
    """Read the evaluation of a reference machine (empty: the first that has one); InputError lists those that have one."""
    folders = {path.parent.parent.name: path.parent for path in sorted(paths.REFERENCE.glob("*/predictions/scores.parquet"))}
    if not folders or (reference and reference not in folders):
        raise InputError(f"no evaluation of {reference or 'any machine'} in {paths.REFERENCE}; there are: {choices(folders)}; "
                         "run: python -m lib models --train cpu")
    folder = folders[reference] if reference else next(iter(folders.values()))
    meta = store.read_json(folder / "scores.meta.json")
    note = (f"REPLAY of the models of {folder.parent.name}, trained {meta['written_utc'][:10]} from "
            f"{', '.join(name.rpartition('/')[2] for name in meta['sweeps'])}.")
    return Evaluated(folder, store.read(folder / "scores.parquet", "scores"),
                     store.read(folder / "predictions.parquet", "predictions"), pd.read_csv(folder / "networks.csv"), note)


def recomputed(evaluated: Evaluated) -> pd.DataFrame:
    """Return this model's scores (``kind, family``, what ``score`` gives) from the published predictions and measured times.

    Networks are composed again from their published terms, see ``network_training``.
    """
    rows = evaluated.predictions
    own = rows[(rows["model"] == "this model") & (rows["kind"] == "operator")]
    operators = [{"kind": "operator", "family": family,
                  **score(part["measured_ms"].to_numpy(), part["predicted_ms"].to_numpy())}
                 for family, part in own.groupby("family", sort=False)]
    networks = network_scores(network_training.composed(evaluated.networks))
    return pd.concat([pd.DataFrame(operators), networks], ignore_index=True)


def own_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return this model's scores as people read them, with the best other learner beside."""
    own = scores[scores["learner"] == "this model"]
    others = scores[scores["learner"] != "this model"].sort_values("mape").drop_duplicates("family").set_index("family")
    table = own[["family", *_SHOWN]].rename(columns=_SHOWN).reset_index(drop=True)
    if len(others):
        best = others.reindex(table["family"])
        table["next best"] = [f"{name} {value:.1f}" for name, value in zip(best["learner"], best["mape"], strict=True)]
    return table


def retrained(evaluated: Evaluated, families: list[str], quick: bool) -> Retrained:
    """Train some families again on the machine's sweeps; InputError lists the families."""
    unknown = [name for name in families if name not in baselines.FAMILIES]
    if unknown or not families:
        raise InputError(f"no family {choices(unknown) or '(none named)'}; there are: {choices(baselines.FAMILIES)}")
    machine = evaluated.folder.parent
    table, _ = training.reference_sweeps(machine)
    chosen = {name: baselines.FAMILIES[name] for name in families}
    rows = {name: _some(table[table["op"].isin(ops) & (table["pass"] == passes)], quick)
            for name, (ops, passes) in chosen.items()}
    joined = pd.concat(rows.values())
    model = fitting.fit(joined, quick=quick)
    scores, predictions = baselines.compare(joined, training.roof_of(machine), model, chosen, baselines=not quick)
    first = rows[families[0]].reset_index(drop=True)
    curve = learning.learning_curve(first, _CURVE[1::2] if quick else _CURVE, quick)
    effects = learning.effects(model, first.sample(min(len(first), _EFFECT_ROWS), random_state=0))
    return Retrained(scores, predictions, learning.by_size(predictions), curve, families[0], effects, families[0])


def _some(rows: pd.DataFrame, quick: bool) -> pd.DataFrame:
    """Return the rows, or no more of them than train a model in a moment."""
    return rows.sample(min(len(rows), _QUICK_ROWS), random_state=0) if quick else rows


def network_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of whole networks as people read them."""
    return scores[scores["kind"] == "network"][["family", *_SHOWN]].rename(columns={**_SHOWN, "family": "case"})


def worst_networks(networks: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the predictions of validating networks that are farthest off."""
    rows = networks[~networks["tuning"] & (networks["memory"] == "kept") & (networks["status"] == "ok")]
    table = rows[list(_NETWORK_COLUMNS)].assign(error_pct=(rows["predicted_ms"] / rows["latency_ms"] - 1) * 100)
    return table.sort_values("error_pct", key=abs, ascending=False).head(most)


def step_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of workload steps by learner."""
    names = {name: shown for name, shown in _SHOWN.items() if name != "cover"}
    return scores[scores["kind"] == "step"][["learner", *names]].rename(columns=names)


def model_table() -> pd.DataFrame:
    """Return a row a part of every model at hand: device, dtype, part, rows, scores on held-out groups, source, licence."""
    rows = []
    for (device, dtype), path in registry.model_files().items():
        model = CostModel.load(path)
        for name, part in model.parts.items():
            rows.append({"device": device, "dtype": dtype, "part": name, "rows": part.rows, "MAPE %": part.scores.get("mape"),
                         "median %": part.scores.get("median"), "within 10 %": part.scores.get("within_10"),
                         "interval ±%": (np.exp(np.mean(part.halves)) - 1) * 100, "source": model.facts.get("source", ""),
                         "licence": model.facts.get("licence", "")})
    return pd.DataFrame(rows)
