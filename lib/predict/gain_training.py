"""Learning what layouts and element types gain, from the networks that a reference machine ran each way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError
from lib.measure import archive
from lib.measure.networks import visits_file
from lib.measure.statistics import VERDICTS
from lib.predict import held_out, network_training, registry
from lib.predict.networks import composition, gains
from lib.predict.networks.gains import FOLDER, Gains
from lib.predict.networks.sums import LEAST_NETWORKS
from lib.predict.scores import score_gains
from lib.work import networks
from lib.work.run_config import RunConfig

_CASE = ["network", "mode", "batch_size"]
_WAY = ["mode", "dtype", "layout"]
_CAMPAIGN = "networks/conditions/networks.parquet"


def campaign() -> Path:
    """Return the networks of the machine that ran them in several layouts and element types; InputError where there is none."""
    return archive.machine_with(_CAMPAIGN, "networks in several layouts")[1]


def _paired(table: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return what ran another way than the usual one (fp32, contiguous) with ``ratio``, its time by the usual one's."""
    table = table.assign(layout=np.where(table["channels_last"].astype(bool), "channels_last", "contiguous"))
    usual = (table["dtype"] == "fp32") & (table["layout"] == "contiguous")
    both = table[~usual].merge(table.loc[usual, [*key, "latency_ms", "usable"]], on=key, suffixes=("", "_usual"))
    return both.assign(ratio=both["latency_ms"] / both["latency_ms_usual"], usable=both["usable"] & both["usable_usual"])


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return cases of a table ``networks`` that ran the usual way and another.

    Columns: ``network, mode, batch_size, dtype, layout, ratio``, the latter's time by the former's, ``usable``.
    """
    good = table[(table["status"] == "ok") & ~table["compiled"].astype(bool)].assign(usable=table["verdict"] != VERDICTS[-1])
    return _paired(good, _CASE)[[*_CASE, "dtype", "layout", "ratio", "usable"]]


def with_terms(cases: pd.DataFrame) -> pd.DataFrame:
    """Return ``pairs`` with ``family`` and TERMS of each network, by the CPU model that ships."""
    cost_model, items = registry.shipped_cpu("fp32"), network_training.works(cases.assign(input_shape=""))
    terms = {key: gains.terms(item, composition.predicted_operators(item, cost_model)) for key, item in items.items()}
    rows = [terms[key] for key in cases[_CASE].itertuples(index=False, name=None)]
    return cases.assign(family=cases["network"].map(networks.family), **pd.DataFrame(rows, cases.index))


def noise(raw: Path) -> dict[tuple[str, str, str], float]:
    """Return by how many % the ratios of two visits of a network differ in the mean, by mode, element type and layout.

    Of ``raw``, the file of a campaign's visits. No model is nearer to one visit than the other one is.
    """
    medians = pd.DataFrame([{**result.case.columns, "round": visit.round, "latency_ms": float(np.median(result.samples_ms))}
                            for visit in visits_file.recorded(raw) for result in visit.results if not result.reason])
    both = _paired(medians.assign(usable=True), [*_CASE, "round"])
    logs = np.log(both["ratio"]).groupby([both[name] for name in dict.fromkeys([*_CASE, *_WAY])])
    difference = (logs.max() - logs.min())[logs.size() > 1] * 100
    return difference.groupby(_WAY).mean().to_dict()


def table(machine: str, config: RunConfig, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions of a condition as rows ``held_out``."""
    return held_out.frame(**predicted["batch_size fold measured predicted low high usable".split()], device=machine,
                          what=held_out.GAINS, mode=config.mode, condition=f"fp32 contiguous to {config.dtype} {config.layout}",
                          group=predicted["family"], case=predicted["network"], left_out="families of networks",
                          source=held_out.PROJECT)


def ship() -> pd.DataFrame:
    """Learn from the reference machine's networks, write the file that ships and its held-out rows, and return the scores."""
    path = campaign()
    facts = store.read_json(path.with_name("networks.meta.json"))
    if "bf16_instructions" not in facts:
        raise InputError(f"the provenance of {path} does not say by which instructions bf16 was computed; measure it again")
    spread, name, ways, rows = noise(path.with_name("visits.jsonl")), path.parents[2].name, {}, []
    for key, part in with_terms(pairs(store.read(path, "networks"))).groupby(_WAY):
        config, networks_of = RunConfig(**dict(zip(_WAY, key, strict=True))), part.reset_index(drop=True)
        usable = networks_of[networks_of["usable"]].reset_index(drop=True)
        if usable["network"].nunique() >= LEAST_NETWORKS:
            predicted = gains.left_out(networks_of)
            floor = {"noise": spread[key]} if key in spread else {}
            ways[config] = replace(gains.fit(usable), scores=score_gains(predicted[predicted["usable"]]) | floor)
            rows.append(table(name, config, predicted))
    if not ways:
        raise InputError(f"{path} has too few networks that ran several ways")
    model_path = FOLDER / f"cpu-{name}.json"
    Gains(name, int(facts["threads"]), tuple(facts["bf16_instructions"]), ways).save(model_path)
    held_out.save(pd.concat(rows, ignore_index=True), model_path)
    return pd.DataFrame([{"mode": config.mode, "dtype": config.dtype, "layout": config.layout,
                          "networks": gain.networks, **gain.scores} for config, gain in ways.items()])
