"""Learning how long networks take in each runtime, from a reference machine's networks; families left out score it."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files, store
from lib.errors import InputError, choices
from lib.measure import archive
from lib.measure.networks import campaign, visits_file
from lib.measure.networks.end_to_end import LEAST
from lib.measure.reference_kernel import USUAL, ProcessorSpeed
from lib.measure.statistics import VERDICTS
from lib.predict import held_out, network_training, registry
from lib.predict.network_training import Works
from lib.predict.networks import composition, runtimes
from lib.predict.networks.composition import Composition
from lib.predict.networks.runtimes import EAGER, FOLDER, OUTSIDERS, TERMS, Runtimes
from lib.predict.networks.sums import LEAST_NETWORKS, folds
from lib.predict.scores import half_interval, score
from lib.work import networks
from lib.work.run_config import CONDITION, RunConfig

_CASE = ["network", "mode", "batch_size"]
_CAMPAIGN = f"networks/{archive.RUNTIMES}/networks.parquet"
_QUANTILES = np.linspace(0.005, 0.995, 100)  # that stand for the errors of a device
_OUTSIDERS = ("device", "int8_instructions", "network", "input_shape", "condition", "gain", "source")


def campaigns() -> dict[str, Path]:
    """Return tables of networks in several runtimes by machine, most usable rows first; InputError where there is none."""
    archive.machine_with(_CAMPAIGN, "networks in several runtimes")
    return dict(sorted(archive.machines_with(_CAMPAIGN).items(),
                       key=lambda item: -store.read(item[1], "networks")["verdict"].isin(VERDICTS[:-1]).sum()))


def with_terms(table: pd.DataFrame, items: Works) -> pd.DataFrame:
    """Return rows of a table ``networks`` with ``family``, ``config``, ``usable`` and TERMS, by the CPU model that ships."""
    model = registry.shipped_cpu("fp32")
    terms = {key: runtimes.terms(item, composition.predicted_operators(item, model)) for key, item in items.items()}
    rows = pd.DataFrame([terms[key] for key in table[_CASE].itertuples(index=False, name=None)], table.index)
    return table.assign(family=table["network"].map(networks.family), config=runtimes.conditions_of(table),
                        usable=table["verdict"] != VERDICTS[-1], **rows)


def at_usual_speed(table: pd.DataFrame, visits_path: Path) -> pd.DataFrame:
    """Return a table ``networks`` with latencies at the processor's usual speed.

    Each is scaled by a power of the time of the reference kernel beside it over the usual one. The power is learned from visits
    that repeat a case, by batch size, and apart for one process on all threads, whose cores wait for each other. Each
    condition has a usual time of the kernel, which a runtime's idle threads may slow.
    """
    visits = pd.DataFrame([{**result.case.columns, "latency_ms": np.median(result.samples_ms),
                            "kernel_ms": np.median(result.reference_kernel_ms)}
                           for visit in visits_file.recorded(visits_path) for result in visit.results
                           if len(result.samples_ms) >= LEAST])
    all_threads, latency_ms = table["threads"].max(), table["latency_ms"].copy()
    visits["threads"] = visits["threads"].replace(0, all_threads)
    usual_ms = visits.groupby([*CONDITION])["kernel_ms"].quantile(USUAL / 100).rename("usual_ms")

    def kernel_ratio(rows: pd.DataFrame, kernel_ms: pd.Series) -> pd.Series:
        return kernel_ms / rows.join(usual_ms, on=[*CONDITION])["usual_ms"]

    def uses_all(rows: pd.DataFrame) -> pd.Series:
        return (rows["threads"] == all_threads) & (rows["instances"] == 1)

    visits = visits.assign(yardstick_ms=kernel_ratio(visits, visits["kernel_ms"]),
                           config=visits.groupby([*_CASE, *CONDITION]).ngroup())
    ratio = kernel_ratio(table, campaign.reference_ms(table, visits_path))
    for (batch_size, whole), rows in table.groupby(["batch_size", uses_all(table)]):
        speed = ProcessorSpeed.from_visits(visits[(visits["batch_size"] == batch_size) & (uses_all(visits) == whole)])
        latency_ms[rows.index] = replace(speed, usual_ms=1.0).at_usual_ms(rows["latency_ms"], ratio[rows.index])
    return table.assign(latency_ms=latency_ms)


def _by_config(rows: pd.DataFrame, known: Collection[RunConfig] = ()) -> dict[RunConfig, pd.DataFrame]:
    """Return usable rows by condition, of those that enough networks ran in or that are ``known`` otherwise."""
    return {config: part for config, part in rows[rows["usable"]].groupby("config", sort=False)
            if config in known or part["network"].nunique() >= LEAST_NETWORKS}


def _learned(rows: pd.DataFrame, elsewhere: pd.DataFrame | None) -> dict[RunConfig, dict[str, float]]:
    """Learn rates from usable rows; of another machine's rows ``elsewhere`` first, where there are some."""
    before = _learned(elsewhere, None) if elsewhere is not None else {}
    return runtimes.learn(_by_config(rows, before), before)


def left_out(rows: pd.DataFrame, elsewhere: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return rows ``with_terms`` of conditions that enough networks ran in, with ``fold`` and ``predicted``.

    Each is predicted by the families of other folds, of this machine and of another one (``elsewhere``). Only usable rows
    teach.
    """
    parts = []
    for number, test in enumerate(folds(rows)):
        others = elsewhere if elsewhere is None else elsewhere[~elsewhere["family"].isin(rows.loc[test, "family"])]
        rates = _learned(rows[~test], others)
        part = rows[test & rows["config"].isin(list(rates))]
        ms = [sum(rates[row["config"]][name] * row[name] for name in TERMS) for row in part.to_dict("records")]
        parts.append(part.assign(fold=number, predicted=ms))
    return pd.concat(parts, ignore_index=True)


def halves(predicted: pd.DataFrame) -> pd.Series:
    """Return half the interval in log time of each row of ``left_out``: of its condition's rows in other folds, usable ones."""
    error = np.log(predicted["latency_ms"] / predicted["predicted"])
    result = pd.Series(np.nan, predicted.index)
    for index, row in predicted.iterrows():
        other = predicted["usable"] & (predicted["config"] == row["config"]) & (predicted["fold"] != row["fold"])
        result[index] = half_interval(error[other].to_numpy()) if other.any() else np.nan
    return result


def held_out_rows(machine: str, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return predictions (``left_out``) as rows ``held_out``, in ms of a pass over the number of processes side by side."""
    at_once, half = np.array([config.instances for config in predicted["config"]]), halves(predicted)
    ends = {"measured": predicted["latency_ms"], "predicted": predicted["predicted"],
            "low": predicted["predicted"] * np.exp(-half), "high": predicted["predicted"] * np.exp(half)}
    return held_out.frame(**{name: values / at_once for name, values in ends.items()}, device=machine, what=held_out.RUNTIMES,
                          mode=predicted["mode"], condition=[config.label for config in predicted["config"]],
                          group=predicted["family"], case=predicted["network"],
                          batch_size=predicted["batch_size"], fold=predicted["fold"],
                          usable=predicted["usable"], left_out="families of networks", source=held_out.PROJECT)


def _fitted(rates: Mapping[str, float], usable: pd.DataFrame) -> Composition:
    times = usable["latency_ms"].to_numpy(), usable["predicted"].to_numpy()
    return Composition(dict(rates), half_interval(np.log(times[0] / times[1])), int(usable["network"].nunique()), score(*times))


def elsewhere(rows: Mapping[str, pd.DataFrame], files: Mapping[str, Runtimes]) -> pd.DataFrame:
    """Return usable rows ``with_terms`` of each machine with ``latency`` over that of eager torch, and that as ``predicted``.

    ``predicted`` as for a CPU that taught nothing: the ``ratio`` of the other machine that is most like it, learned without the
    row's family. ``rows`` and ``files`` are by machine, the first one that of the first rates.
    """
    parts, first = [], next(iter(rows))
    for name, table in rows.items():
        source = runtimes.nearest([file for other, file in files.items() if other != name], files[name].instructions)
        before = None if first in (name, source.machine) else rows[first]
        usable = table[table["usable"]]
        eager_ms = usable[usable["config"] == EAGER].set_index(_CASE)["latency_ms"].rename("eager_ms")
        usable = usable[usable["config"] != EAGER].join(eager_ms, on=_CASE).dropna(subset="eager_ms")
        for test in folds(usable):
            part = usable[test]
            taught = [None if other is None else other[~other["family"].isin(part["family"])]
                      for other in (rows[source.machine], before)]
            conditions = {config: Composition(rates, 0.0, 0) for config, rates in _learned(*taught).items()}
            learned = replace(source, conditions=conditions)
            part = part[[learned.applies(config, files[name].instructions) for config in part["config"]]]
            ratios = [learned.ratio(row["config"], row) for row in part.to_dict("records")]
            parts.append(part.assign(device=name, latency=part["latency_ms"] / part["eager_ms"], predicted=ratios))
    return pd.concat(parts, ignore_index=True)


def outsiders(files: Mapping[str, Runtimes]) -> pd.DataFrame:
    """Return what others measured (OUTSIDERS) as rows like those of ``elsewhere``."""
    table = csv_files.with_columns(OUTSIDERS, _OUTSIDERS, "see data/README.md", keep_default_na=False)
    table = table.assign(mode="infer", batch_size=1, latency=1 / table["gain"].astype(float))
    items, model, parts = network_training.works(table), registry.shipped_cpu("fp32"), []
    for row in table.to_dict("records"):
        instructions = {"int8": tuple(row["int8_instructions"].split())}
        file = runtimes.nearest([*files.values()], instructions)
        config = {config.label: config for config in file.conditions}.get(row["condition"])
        if config is None:
            raise InputError(f"{OUTSIDERS}: {file.machine} has no networks in {row['condition']}, {row['device']} has")
        if file.applies(config, instructions):
            work = items[row["network"], "infer", 1]
            terms = runtimes.terms(work, composition.predicted_operators(work, model))
            ratio = file.ratio(config, terms, replace(EAGER, threads=config.threads))
            parts.append({**row, "config": config, "predicted": ratio, "family": networks.family(row["network"])})
    return pd.DataFrame(parts)


def _half(rows: pd.DataFrame) -> float:
    """Return half the interval in log time of rows of ``elsewhere`` and ``outsiders``; each device has one vote."""
    errors = np.log(rows["latency"] / rows["predicted"]).groupby(rows["device"])
    return half_interval(np.concatenate([np.quantile(part, _QUANTILES) for _, part in errors]))


def ship() -> pd.DataFrame:
    """Learn from each reference machine's networks, write the files that ship and held-out rows, and return the scores.

    The machine with the most networks is learned first; rates of the others are expected near its own. Raises InputError for
    fewer than two machines.
    """
    rows, files, scores, first, tables = {}, {}, [], None, campaigns()
    if len(tables) < 2:
        raise InputError(f"one machine has {_CAMPAIGN}, {choices(tables)}; ranges of other CPUs are learned from two or more")
    for name, path in tables.items():
        rows[name], files[name], predicted = _learned_file(name, path, first)
        first = rows[name] if first is None else first
        held_out.save(held_out_rows(name, predicted), _path(name))
        scores += [{"machine": name, "condition": config.label, "networks": fitted.networks, **fitted.scores}
                   for config, fitted in files[name].conditions.items()]
    lent = pd.concat([elsewhere(rows, files).assign(source=held_out.PROJECT, left_out="CPUs and families of networks"),
                      outsiders(files).assign(left_out="CPUs", licence="not stated")], ignore_index=True)
    for name, file in files.items():
        replace(file, elsewhere_half=_half(lent)).save(_path(name))
    half = lent["device"].map({device: _half(lent[lent["device"] != device]) for device in lent["device"].unique()})
    held_out.save(held_out.frame(
        **lent[["device", "mode", "batch_size", "predicted", "left_out", "source"]], what=held_out.NEW_CPUS,
        condition=[config.label for config in lent["config"]], group=lent["family"], case=lent["network"],
        measured=lent["latency"], licence=lent["licence"].fillna("MIT"),
        low=lent["predicted"] * np.exp(-half), high=lent["predicted"] * np.exp(half)),
        OUTSIDERS)
    return pd.DataFrame(scores)


def _path(machine: str) -> Path:
    return FOLDER / f"cpu-{machine}.json"


def _learned_file(name: str, path: Path, first: pd.DataFrame | None) -> tuple[pd.DataFrame, Runtimes, pd.DataFrame]:
    """Learn from one machine's networks; return its rows ``with_terms``, its file, and the rows ``left_out``."""
    facts, table = store.read_json(path.with_name("networks.meta.json")), store.read(path, "networks")
    table = at_usual_speed(table[table["status"] == "ok"].reset_index(drop=True), path.with_name("visits.jsonl"))
    items = network_training.works(table.assign(input_shape=""))
    rows = with_terms(table, items)
    predicted, rates = left_out(rows, first), _learned(rows, first)
    conditions = {config: _fitted(rates[config], part) for config, part in _by_config(predicted).items() if config in rates}
    if EAGER not in conditions:
        raise InputError(f"{path} has too few networks that ran in eager torch")
    instructions = {dtype: tuple(facts.get(f"{dtype}_instructions", ())) for dtype in ("bf16", "int8")}
    flops = [item.flops for item in items.values()]
    file = Runtimes(name, int(table["threads"].max()), instructions, conditions, 1.0, (min(flops), max(flops)))
    return rows, file, predicted[predicted["config"].isin(list(conditions))].reset_index(drop=True)
