"""Learning what layouts and element types gain, from the networks that a reference machine ran each way."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.config.definitions import RUNTIMES
from lib.errors import InputError, choices
from lib.measure import archive
from lib.measure.networks import visits_file
from lib.measure.statistics import VERDICTS
from lib.predict import held_out, network_training, registry
from lib.predict.network_training import Works
from lib.predict.networks import composition, gains
from lib.predict.networks.composition import Composition
from lib.predict.networks.gains import FOLDER, GainCondition, Gains
from lib.predict.networks.sums import LEAST_NETWORKS
from lib.predict.scores import score_gains
from lib.work import networks

_CASE = ["network", "mode", "batch_size"]
_WAY = [field.name for field in fields(GainCondition)]
_CAMPAIGNS = ("conditions", "runtimes")
_USUAL = {"dtype": "fp32", "layout": "contiguous", "compiled": False, "runtime": RUNTIMES[0], "threads": 0, "instances": 1}


def campaigns() -> dict[Path, str]:
    """Return the tables of networks that ran in several conditions, with the names of their machines; InputError without."""
    tables = {folder / "networks" / name / "networks.parquet": machine for machine, folder in archive.machines().items()
              for name in _CAMPAIGNS}
    found = {path: machine for path, machine in tables.items() if path.is_file()}
    if not found:
        raise InputError(f"no reference machine ran networks in several conditions; there are: {choices(archive.machines())}")
    return found


def _paired(table: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return what ran another way than the usual one (eager fp32, contiguous) with ``ratio``, its time by the usual one's."""
    table = table.assign(layout=np.where(table["channels_last"].astype(bool), "channels_last", "contiguous"))
    usual = np.logical_and.reduce([table[name] == value for name, value in _USUAL.items()])
    both = table[~usual].merge(table.loc[usual, [*key, "latency_ms", "usable"]], on=key, suffixes=("", "_usual"))
    return both.assign(ratio=both["latency_ms"] / both["latency_ms_usual"], usable=both["usable"] & both["usable_usual"])


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return cases of a table ``networks`` that ran the usual way and another.

    Columns: ``network, mode, batch_size``, fields of GainCondition, ``ratio``, the latter's time by the former's, ``usable``.
    """
    good = table[table["status"] == "ok"]
    good = good.assign(usable=good["verdict"] != VERDICTS[-1], threads=good["threads"].where(
        good["threads"] != table["threads"].max(), 0))
    return _paired(good, _CASE)[[*dict.fromkeys([*_CASE, *_WAY]), "ratio", "usable"]]


def with_terms(cases: pd.DataFrame, items: Works) -> pd.DataFrame:
    """Return ``pairs`` with ``family`` and TERMS of each network, by the CPU model that ships; ``items``: their work."""
    cost_model = registry.shipped_cpu("fp32")
    terms = {key: gains.terms(item, composition.predicted_operators(item, cost_model)) for key, item in items.items()}
    rows = [terms[key] for key in cases[_CASE].itertuples(index=False, name=None)]
    return cases.assign(family=cases["network"].map(networks.family), **pd.DataFrame(rows, cases.index))


def preparations(table: pd.DataFrame, items: Works) -> dict[str, Composition]:
    """Learn the seconds that each kind of export or compilation took, from all that a table ``networks`` has of it."""
    made = table[table["prepare_s"] > 0].assign(layout="contiguous")
    made = made.assign(made=[gains.preparation(GainCondition(*row)) for row in made[_WAY].itertuples(index=False, name=None)])
    made = made.groupby(["made", *_CASE], as_index=False)["prepare_s"].max()  # a second condition finds the first one's files
    terms = [gains.preparation_terms(items[key]) for key in made[_CASE].itertuples(index=False, name=None)]
    made = made.assign(family=made["network"].map(networks.family), **pd.DataFrame(terms, made.index))
    return {name: gains.fit_preparation(rows) for name, rows in made.groupby("made")
            if rows["network"].nunique() >= LEAST_NETWORKS}


def noise(raw: Path) -> dict[tuple, float]:
    """Return by how many % the ratios of two visits of a network differ in the mean, by fields of GainCondition.

    Of ``raw``, the file of a campaign's visits. No model is nearer to one visit than the other one is.
    """
    medians = pd.DataFrame([{**vars(result.case), "round": visit.round, "latency_ms": float(np.median(result.samples_ms))}
                            for visit in visits_file.recorded(raw) for result in visit.results if not result.reason])
    both = _paired(medians.assign(usable=True), [*_CASE, "round"])
    logs = np.log(both["ratio"]).groupby([both[name] for name in dict.fromkeys([*_CASE, *_WAY])])
    difference = (logs.max() - logs.min())[logs.size() > 1] * 100
    return difference.groupby(_WAY).mean().to_dict()


def table(machine: str, way: GainCondition, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the predicted gains of a way in images a second as rows ``held_out``."""
    facts = {name: predicted[name] for name in ("batch_size", "fold", "usable")}
    ends = {name: predicted[name] * way.instances for name in ("measured", "predicted", "low", "high")}
    return held_out.frame(**facts, **ends, device=machine, mode=way.mode,
                          what=held_out.GAINS if way.is_of_torch else held_out.RUNTIMES,
                          condition=f"fp32 contiguous to {way.words}", group=predicted["family"],
                          case=predicted["network"], left_out="families of networks", source=held_out.PROJECT)


def ship() -> pd.DataFrame:
    """Learn from the reference machines' networks, write the files that ship with held-out rows, and return the scores."""
    lines = []
    for path, name in campaigns().items():
        facts, measured = store.read_json(path.with_name("networks.meta.json")), store.read(path, "networks")
        spread, cases, ways, rows = noise(path.with_name("visits.jsonl")), pairs(measured), {}, []
        items = network_training.works(cases.assign(input_shape=""))
        for key, part in with_terms(cases, items).groupby(_WAY):
            way, networks_of = GainCondition(*key), part.reset_index(drop=True)
            usable = networks_of[networks_of["usable"]].reset_index(drop=True)
            if usable["network"].nunique() >= LEAST_NETWORKS:
                predicted = gains.left_out(networks_of)
                floor = {"noise": spread[key]} if key in spread else {}
                ways[way] = replace(gains.fit(usable), scores=score_gains(predicted[predicted["usable"]]) | floor)
                rows.append(table(name, way, predicted))
        if not ways:
            raise InputError(f"{path} has too few networks that ran several ways")
        instructions = {dtype: tuple(facts[f"{dtype}_instructions"]) for dtype in ("bf16", "int8")
                        if f"{dtype}_instructions" in facts}
        prepare = preparations(measured[measured["status"] == "ok"], items)
        model_path = FOLDER / f"cpu-{name}.json"
        Gains(name, int(measured["threads"].max()), instructions, ways, prepare).save(model_path)
        held_out.save(pd.concat(rows, ignore_index=True), model_path)
        lines += [{"machine": name, **vars(way), "networks": gain.networks, **gain.scores} for way, gain in ways.items()]
    return pd.DataFrame(lines)
