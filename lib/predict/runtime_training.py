"""Learning how long networks take in each runtime, from a reference machine's networks; families left out score it."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError
from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict import held_out, network_training, registry
from lib.predict.network_training import Works
from lib.predict.networks import composition, fitting, runtimes
from lib.predict.networks.composition import Composition
from lib.predict.networks.runtimes import EAGER, FOLDER, TERMS, RuntimeCondition, Runtimes
from lib.predict.networks.sums import LEAST_NETWORKS, folds
from lib.predict.operators.validation import half_interval
from lib.predict.scores import score
from lib.work import networks

_CASE = ["network", "mode", "batch_size"]
_CAMPAIGN = "networks/runtimes/networks.parquet"


def campaigns() -> dict[str, Path]:
    """Return the tables of networks in several runtimes by machine, the largest first; InputError where there is none."""
    archive.machine_with(_CAMPAIGN, "networks in several runtimes")
    return dict(sorted(archive.machines_with(_CAMPAIGN).items(), key=lambda item: -len(store.read(item[1], "networks"))))


def with_terms(table: pd.DataFrame, items: Works) -> pd.DataFrame:
    """Return rows of a table ``networks`` with ``family``, ``way``, ``usable`` and TERMS, by the CPU model that ships."""
    model = registry.shipped_cpu("fp32")
    terms = {key: runtimes.terms(item, composition.predicted_operators(item, model)) for key, item in items.items()}
    rows = pd.DataFrame([terms[key] for key in table[_CASE].itertuples(index=False, name=None)], table.index)
    return table.assign(family=table["network"].map(networks.family), way=runtimes.words_of(table),
                        usable=table["verdict"] != VERDICTS[-1], **rows)


def _by_way(rows: pd.DataFrame, known: Collection[RuntimeCondition] = ()) -> dict[RuntimeCondition, pd.DataFrame]:
    """Return usable rows by condition, of those that enough networks ran in or that are ``known`` otherwise."""
    return {way: part for way, part in rows[rows["usable"]].groupby("way", sort=False)
            if way in known or part["network"].nunique() >= LEAST_NETWORKS}


def _learned(rows: pd.DataFrame, elsewhere: pd.DataFrame | None) -> dict[RuntimeCondition, dict[str, float]]:
    """Learn rates from usable rows; of another machine's rows ``elsewhere`` first, where there are some."""
    before = _learned(elsewhere, None) if elsewhere is not None else {}
    return runtimes.learn(_by_way(rows, before), before)


def left_out(rows: pd.DataFrame, elsewhere: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return rows ``with_terms`` of conditions that enough networks ran in, with ``fold`` and ``predicted``.

    Each is predicted by the families of other folds, of this machine and of another one (``elsewhere``). Only usable rows
    teach.
    """
    parts = []
    for number, test in enumerate(folds(rows)):
        others = elsewhere if elsewhere is None else elsewhere[~elsewhere["family"].isin(rows.loc[test, "family"])]
        rates = _learned(rows[~test], others)
        part = rows[test & rows["way"].isin(list(rates))]
        ms = [sum(rates[row["way"]][name] * row[name] for name in TERMS) for row in part.to_dict("records")]
        parts.append(part.assign(fold=number, predicted=ms))
    return pd.concat(parts, ignore_index=True)


def halves(predicted: pd.DataFrame) -> pd.Series:
    """Return half the interval in log time of each row of ``left_out``: of its condition's rows in other folds, usable ones."""
    error = np.log(predicted["latency_ms"] / predicted["predicted"])
    result = pd.Series(np.nan, predicted.index)
    for index, row in predicted.iterrows():
        other = predicted["usable"] & (predicted["way"] == row["way"]) & (predicted["fold"] != row["fold"])
        result[index] = half_interval(error[other].to_numpy()) if other.any() else np.nan
    return result


def preparations(table: pd.DataFrame, items: Works) -> dict[str, Composition]:
    """Learn the seconds that each kind of export or compilation took, from all that a table ``networks`` has of it."""
    made = table[table["prepare_s"] > 0]
    made = made.assign(made=[way.prepared for way in runtimes.words_of(made)])
    made = made[made["made"] != ""]
    made = made.groupby(["made", *_CASE], as_index=False)["prepare_s"].max()  # a second condition finds the first one's files
    terms = [runtimes.preparation_terms(items[key]) for key in made[_CASE].itertuples(index=False, name=None)]
    made = made.assign(family=made["network"].map(networks.family), **pd.DataFrame(terms, made.index))
    return {name: fitting.learn(runtimes._PREPARED_SUMS, runtimes.PREPARED, rows, rows["prepare_s"].to_numpy(float))
            for name, rows in made.groupby("made") if rows["network"].nunique() >= LEAST_NETWORKS}


def held_out_rows(machine: str, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return predictions (``left_out``) as rows ``held_out``, in ms of a pass over the number of processes side by side."""
    at_once, half = np.array([way.instances for way in predicted["way"]]), halves(predicted)
    ends = {"measured": predicted["latency_ms"], "predicted": predicted["predicted"],
            "low": predicted["predicted"] * np.exp(-half), "high": predicted["predicted"] * np.exp(half)}
    return held_out.frame(**{name: values / at_once for name, values in ends.items()}, device=machine, what=held_out.RUNTIMES,
                          mode=predicted["mode"], condition=[way.words for way in predicted["way"]], group=predicted["family"],
                          case=predicted["network"], batch_size=predicted["batch_size"], fold=predicted["fold"],
                          usable=predicted["usable"], left_out="families of networks", source=held_out.PROJECT)


def _fitted(rates: Mapping[str, float], usable: pd.DataFrame) -> Composition:
    times = usable["latency_ms"].to_numpy(), usable["predicted"].to_numpy()
    return Composition(dict(rates), half_interval(np.log(times[0] / times[1])), int(usable["network"].nunique()), score(*times))


def ship() -> pd.DataFrame:
    """Learn from each reference machine's networks, write the files that ship and held-out rows, and return the scores.

    The machine with the most networks is learned first; rates of the others are expected near its own.
    """
    scores, first = [], None
    for name, path in campaigns().items():
        rows, table = _ship(name, path, first)
        first = rows if first is None else first
        scores.append(table)
    return pd.concat(scores, ignore_index=True)


def _ship(name: str, path: Path, elsewhere: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Learn from one machine's networks and write its file; return its rows ``with_terms``, and the scores."""
    facts, table = store.read_json(path.with_name("networks.meta.json")), store.read(path, "networks")
    table = table[table["status"] == "ok"].reset_index(drop=True)
    items = network_training.works(table.assign(input_shape=""))
    rows = with_terms(table, items)
    predicted, rates = left_out(rows, elsewhere), _learned(rows, elsewhere)
    conditions = {way: _fitted(rates[way], part) for way, part in _by_way(predicted).items() if way in rates}
    predicted = predicted[predicted["way"].isin(list(conditions))]
    if EAGER not in conditions:
        raise InputError(f"{path} has too few networks that ran in eager torch")
    instructions = {dtype: tuple(facts.get(f"{dtype}_instructions", ())) for dtype in ("bf16", "int8")}
    model_path = FOLDER / f"cpu-{name}.json"
    Runtimes(name, int(table["threads"].max()), instructions, conditions, preparations(table, items)).save(model_path)
    held_out.save(held_out_rows(name, predicted), model_path)
    return rows, pd.DataFrame([{"machine": name, "condition": way.words, "networks": fitted.networks, **fitted.scores}
                               for way, fitted in conditions.items()])
