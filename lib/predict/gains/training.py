"""Learning what layouts and element types gain, from the networks that a reference machine ran each way."""

from collections.abc import Iterable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError
from lib.measure import archive
from lib.measure.networks import visits_file
from lib.measure.statistics import VERDICTS
from lib.predict import registry
from lib.predict.gains import model
from lib.predict.gains.model import TERMS, Way
from lib.predict.gains.model_file import FOLDER, Gains
from lib.predict.networks import composition, work
from lib.predict.networks.sums import LEAST_NETWORKS
from lib.progress import track
from lib.work import networks

USUAL = ("fp32", "contiguous")
_CASE = ["network", "mode", "batch_size"]
_CAMPAIGN = "networks/conditions/networks.parquet"


def campaign() -> Path:
    """Return the networks of the machine that ran them in several layouts and element types; InputError where there is none."""
    return archive.machine_with(_CAMPAIGN, "networks in several layouts")[1]


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return cases of a table ``networks`` that ran the usual way and another.

    Columns: ``network, mode, batch_size, dtype, layout, ratio``, the latter's time by the former's, ``usable``.
    """
    good = table[(table["status"] == "ok") & ~table["compiled"].astype(bool)].assign(usable=table["verdict"] != VERDICTS[-1])
    good = good.assign(layout=np.where(good["channels_last"].astype(bool), "channels_last", "contiguous"))
    usual = (good["dtype"] == USUAL[0]) & (good["layout"] == USUAL[1])
    both = good[~usual].merge(good.loc[usual, [*_CASE, "latency_ms", "usable"]], on=_CASE, suffixes=("", "_usual"))
    several = both.assign(ratio=both["latency_ms"] / both["latency_ms_usual"], usable=both["usable"] & both["usable_usual"])
    return several[[*_CASE, "dtype", "layout", "ratio", "usable"]]


def with_terms(cases: pd.DataFrame) -> pd.DataFrame:
    """Return ``pairs`` with ``family`` and TERMS of each network, by the CPU model that ships."""
    cost_model, rows = registry.shipped_cpu("fp32"), {}
    for one in track(list(cases.drop_duplicates(_CASE).itertuples()), "capture"):
        own = work.captured(networks.network(one.network, one.batch_size), one.mode)
        operators = composition.predicted_operators(own, cost_model)
        rows[one.network, one.mode, one.batch_size] = model.terms(own, operators)
    parts = np.array([rows[key] for key in cases[_CASE].itertuples(index=False, name=None)]).reshape(-1, len(TERMS))
    families = cases["network"].map(networks.family)
    return cases.assign(family=families, **dict(zip(TERMS, parts.T, strict=True)))


def noise(raw: Path) -> dict[tuple[str, str, str], float]:
    """Return by how many % the ratios of two visits of a network differ in the mean, by mode, element type and layout.

    Of ``raw``, the file of a campaign's visits. No model is nearer to one visit than the other one is.
    """
    medians = pd.DataFrame([
        {"network": visit.network, "round": visit.round, "mode": one.case.mode, "batch_size": one.case.batch_size,
         "dtype": one.case.dtype, "layout": "channels_last" if one.case.channels_last else "contiguous",
         "latency_ms": float(np.median(one.samples_ms))}
        for visit in visits_file.recorded(raw) for one in visit.results if not one.reason])
    usual = medians[(medians["dtype"] == USUAL[0]) & (medians["layout"] == USUAL[1])]
    both = medians.merge(usual[[*_CASE, "round", "latency_ms"]], on=[*_CASE, "round"], suffixes=("", "_usual"))
    both["ratio_log"] = np.log(both["latency_ms"] / both["latency_ms_usual"])
    logs = both[both["ratio_log"].notna()].groupby([*_CASE, "dtype", "layout"])["ratio_log"]
    difference = (logs.max() - logs.min())[logs.size() > 1] * 100
    return difference.groupby(["mode", "dtype", "layout"]).mean().to_dict()


def learned(rows: pd.DataFrame) -> Iterable[tuple[Way, model.Gain]]:
    """Yield what is learned of each way of enough networks, with its scores on families left out, unusable rows apart."""
    for way, part in rows.groupby(["mode", "dtype", "layout"]):
        several = part.reset_index(drop=True)
        usable = several[several["usable"]].reset_index(drop=True)
        if usable["network"].nunique() >= LEAST_NETWORKS:
            predicted = model.held_out(several)
            every = model.scores(predicted)
            scores = model.scores(predicted[predicted["usable"]])
            scores |= {"every_row_mape": every["mape"], "every_row_n": every["n"]}
            yield Way(*way), replace(model.fit(usable), scores=scores)


def ship() -> pd.DataFrame:
    """Learn from the reference machine's networks, write the file that ships and its scores, and return these."""
    path = campaign()
    facts = store.read_json(path.with_name("networks.meta.json"))
    spread = noise(path.with_name("visits.jsonl"))
    ways = {way: replace(gain, scores={**gain.scores, **({"noise": spread[astuple(way)]} if astuple(way) in spread else {})})
            for way, gain in learned(with_terms(pairs(store.read(path, "networks"))))}
    if "bf16_instructions" not in facts:
        raise InputError(f"the provenance of {path} does not say by which instructions bf16 was computed; measure it again")
    if not ways:
        raise InputError(f"{path} has too few networks that ran several ways")
    name = path.parents[2].name
    Gains(name, int(facts["threads"]), tuple(facts["bf16_instructions"]), ways).save(FOLDER / f"cpu-{name}.json")
    return pd.DataFrame([{**vars(way), "networks": gain.networks, **gain.scores} for way, gain in ways.items()])
