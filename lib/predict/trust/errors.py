"""How wrong predictions were on what no model had seen: scores by device, kind of network or operator, mode and condition.

Scores are computed from rows ``held_out`` where these are committed. Kernels of GPUs have those of their model files.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, store
from lib.config import definitions
from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict import registry, steps, transfer_cpu
from lib.predict.gpu import scores as gpu_scores
from lib.predict.held_out import (
    ALL,
    CLOCK,
    GAINS,
    JOULES,
    JOULES_TIMED,
    LIMITS,
    NETWORKS,
    NEW_CARDS,
    NEW_CPUS,
    OPERATORS,
    PROJECT,
    RESIDENT,
    RUNTIMES,
    STEPS,
    TENSORS,
    frame,
    load,
)
from lib.predict.networks import gains as cpu_gains
from lib.predict.networks import resident, step
from lib.predict.networks import runtimes as cpu_runtimes
from lib.predict.operators.cost_model import ANY_GPU, CostModel
from lib.predict.power import energy, limits
from lib.predict.scores import OUTSIDE, score_draws, score_gains

KEYS = "device what kind mode condition left_out source".split()
SCORES = {"mape": "mape_pct", "median": "median_pct", "bias": "bias_pct", "cover": "coverage_pct", "n": "n",
          "family_mape": "family_mape_pct", "family_mape_low": "family_low_pct", "family_mape_high": "family_high_pct",
          "family_cover": "family_coverage_pct", "family_short": "families_short_pct", "family_n": "families",
          "baseline": "baseline_pct", "sign": "sign_pct", "constant_sign": "always_pct"}  # of the scorer, and their columns
COLUMNS = [*KEYS[:5], *SCORES.values(), *KEYS[5:]]
EVERY_NETWORK, EVERY_OPERATOR = "networks, unusable rows too", "operators, unusable rows too"
SWEPT, EVERY_SWEPT = "networks, also of swept operators", "networks, also of swept operators, unusable rows too"
VIEWS = (EVERY_NETWORK, EVERY_OPERATOR, SWEPT, EVERY_SWEPT)  # of the same rows
FLAGGED = {NETWORKS: "networks, out of range", OPERATORS: "operators, out of range"}  # those whose answer was flagged so
FIRST, LATER = "first of its process", "later in a process"  # kinds of networks, for resident memory
LEARNED = "learned"  # memory, predicted by what was learned of other families
ALLOCATORS = {"kept": "retained heap", "default": "default allocator"}  # column ``memory`` of networks, and what it is called
_NETWORKS = ("network family kind mode batch_size memory tuning latency_ms verdict status predicted_ms low_ms high_ms outside "
             "rss_mb tensors_mb peak_mb memory_mb first_use lines_ms").split()
_STEP_SPLITS = {"workload": "workloads", "arch": "architectures"}
_RETRAIN = "train the model again that it is of"
_OF_CARD = f"what == '{NETWORKS}' and kind == '{ALL}' and on_card and source == '{gpu_scores.TIMM}'"
_OF_OTHERS = f"what == '{NEW_CARDS}' and kind == '{ALL}' and source.str.startswith('{gpu_scores.KERNELBENCH}')"
QUESTIONS = {  # that people ask: the rows of ``table`` that tell how right the answers are
    "a network on a measured CPU, inference": f"what == '{NETWORKS}' and kind == '{ALL}' and not on_card and mode == 'infer'",
    "a network on a measured CPU, forward and backward":
        f"what == '{NETWORKS}' and kind == '{ALL}' and not on_card and mode == 'train'",
    "a whole training step on a measured CPU": f"what == '{STEPS}'",
    "a network on a measured card, eager": f"{_OF_CARD} and mode == 'infer' and not compiled",
    "a network on a measured card, compiled": f"{_OF_CARD} and mode == 'infer' and compiled",
    "a network on a measured card, training": f"{_OF_CARD} and mode == 'train'",
    "a network on a card that nobody measured": f"what == '{NEW_CARDS}' and kind == '{ALL}' and source == '{gpu_scores.TIMM}'",
    "a module of others in fp32 on a card that nobody measured, eager": f"{_OF_OTHERS} and not compiled",
    "a module of others in fp32 on a card that nobody measured, compiled": f"{_OF_OTHERS} and compiled",
    "a kernel on a measured CPU": f"what == '{OPERATORS}' and on_cpu",
    "a kernel on a measured GPU": f"what == '{OPERATORS}' and not on_cpu and device != '{ANY_GPU}'",
    "a kernel on a GPU that nobody measured": f"what == '{OPERATORS}' and device == '{ANY_GPU}'",
    "how much faster channels_last, bf16 or compiling is": f"what == '{GAINS}'",
    "a network in another runtime, int8 or on other threads, on a measured CPU": f"what == '{RUNTIMES}'",
    "a network in another runtime on a CPU that nobody measured, given its eager time":
        f"what == '{NEW_CPUS}' and source == '{PROJECT}'",
    "a network in another runtime on CPUs of outsiders, given its eager time":
        f"what == '{NEW_CPUS}' and source != '{PROJECT}'",
    "the peak of memory that tensors take": f"what == '{TENSORS}'",
    **{f"the memory that a process comes to occupy, {kind}": f"what == '{RESIDENT}' and kind == '{kind}'"
       for kind in (FIRST, LATER)},
    "joules of a network on a card that nobody measured": f"what == '{JOULES}'",
    "joules of a network on a card that nobody measured, given its time": f"what == '{JOULES_TIMED}'",
    "the time of a network at a stated clock": f"what == '{CLOCK}'",
    **{f"how a power limit changes the {name} on a card that nobody measured":
       f"what == '{what}'" for name, what in LIMITS.items()}}
_GRADED = {"median_pct": "typical error %", "mape_pct": "mean error %", "coverage_pct": "inside the 90 % range, %",
           "family_coverage_pct": "by family, %", "baseline_pct": "simple rule, mean error %"}
ERROR_GRADES = {"A": 6.0, "B": 12.0, "C": 25.0, "D": np.inf}  # mean error at most, %
Row = dict[str, Any]  # KEYS and scores, by their names in SCORES


def table(reference: str = "") -> pd.DataFrame:
    """Return COLUMNS of all that ships: cards of whole networks, reference machines, models of operators, power, steps.

    ``reference`` names one more machine, an imported one.
    """
    models = [registry.load(path) for (device, _), path in registry.model_files(shipped=True).items()
              if not device.startswith(transfer_cpu.CPU)]  # a CPU's operators are those of its machine
    machines = archive.machines() | ({reference: archive.machine_folder(reference)} if reference else {})
    rows = chain(gpu_scores.by_condition(), *(of_machine(*machine) for machine in machines.items()),
                 *map(of_operators, models), _scored(load(energy.PATH)), _scored(load(limits.PATH)), _of_steps(),
                 gpu_scores.of_gains(),
                 ({**line, "baseline": line["constant_mape"]} for line in _of_cpus(cpu_gains.FOLDER, scorer=score_gains)),
                 _of_cpus(cpu_runtimes.FOLDER))
    scores = pd.DataFrame(list(rows)).reindex(columns=[*KEYS, *SCORES])
    return scores.astype({"n": int}).rename(columns=SCORES)[COLUMNS]


def _scored(rows: pd.DataFrame, *more: str, **how: Any) -> list[Row]:
    """Score held-out rows, grouped by KEYS and ``more``."""
    return score_draws(rows, [*KEYS, *more], **how).to_dict("records")


def condition_of_cpu(memory: str, batch: int = 0) -> str:
    """Return the condition of networks on a CPU; ``memory`` is of ALLOCATORS, batch 0: several."""
    return f"batch {batch or 'sizes together'}, {ALLOCATORS[memory]}"


def machine_networks(folder: Path) -> pd.DataFrame:
    """Return the predicted networks of a reference machine that ran, whatever their spread, with ``kind``; no workloads.

    Without rows where the machine has none.
    """
    networks = csv_files.with_columns(folder / "predictions" / "networks.csv", _NETWORKS, _RETRAIN).fillna({"kind": ""})
    return _ran(networks)


def unseen(networks: pd.DataFrame) -> pd.DataFrame:
    """Return the predicted networks of a machine that ran and whose operators were not swept."""
    return _ran(networks[~networks["tuning"].astype(bool)])


def _ran(networks: pd.DataFrame) -> pd.DataFrame:
    return networks[(networks["status"] == "ok") & ~networks["network"].isin(definitions.workloads())]


def network_rows(device: str, networks: pd.DataFrame) -> pd.DataFrame:
    """Return networks of a machine (``unseen``) as rows ``held_out``, and the memory that they took.

    Memory is predicted as what tensors take, weights included, which is judged on tensors and on what the process occupies, and
    as what was learned of other families.
    """
    table = networks.assign(group=networks["family"], case=networks["network"], usable=networks["verdict"] != VERDICTS[-1],
                            left_out="families of torchvision", device=device, source=PROJECT)
    times = frame(**table, what=NETWORKS, condition=table["memory"], out_of_range=table["outside"] > OUTSIDE,
                  measured=table["latency_ms"], predicted=table["predicted_ms"], low=table["low_ms"], high=table["high_ms"])
    table = table[table["usable"] & (table["memory"] == "default")].assign(kind=ALL)
    counted = table.assign(condition="weights and tensors", predicted=table["memory_mb"],
                           left_out="none: nothing of it is fitted")
    tensors_mb = table["memory_mb"] - table["peak_mb"] + table["tensors_mb"]
    parts = [times, frame(**counted, what=TENSORS, measured=tensors_mb),
             frame(**counted, what=RESIDENT, measured=table["rss_mb"])]
    if {*resident.PREDICTED} <= {*table}:  # of machines where it was learned
        ends = {end: table[name] for end, name in zip(("predicted", "low", "high"), resident.PREDICTED, strict=True)}
        table = table.assign(kind=np.where(table["first_use"].astype(bool), FIRST, LATER))
        parts.append(frame(**table, **ends, what=RESIDENT, condition=LEARNED, measured=table["rss_mb"]))
    return pd.concat(parts, ignore_index=True)


def of_machine(name: str, folder: Path) -> Iterator[Row]:
    """Yield the scores of a reference machine's CPU: whole networks, their memory, and operators."""
    yield from of_its_networks(name, folder)
    path = folder / "predictions" / "operators.parquet"
    if path.is_file():
        every = store.read(path, "held_out").assign(device=name)
        rows = every[every["usable"]]
        yield from _scored(rows.assign(what=np.where(rows["out_of_range"], FLAGGED[OPERATORS], OPERATORS)))
        yield from _scored(every.assign(what=EVERY_OPERATOR))


def of_its_networks(name: str, folder: Path) -> Iterator[Row]:
    """Yield the scores of networks on a machine's CPU: together, by kind, flagged, and VIEWS.

    Each with its ``batch_size`` and ``memory``; then what they took of memory.
    """
    networks = machine_networks(folder)
    by_lines = networks.assign(predicted_ms=networks["lines_ms"])
    for line, rule in zip(*(_scored(_views(name, table), "batch_size") for table in (networks, by_lines)), strict=True):
        condition = condition_of_cpu(line["condition"], line["batch_size"])
        yield {**line, "baseline": rule["mape"], "memory": line["condition"], "condition": condition}
    rows = network_rows(name, unseen(networks))
    yield from _scored(rows[rows["what"] != NETWORKS])


def _views(name: str, networks: pd.DataFrame) -> pd.DataFrame:
    """Return the times of networks as the rows of all lines of ``of_its_networks``."""
    timed, swept = (network_rows(name, part).query(f"what == '{NETWORKS}'") for part in (unseen(networks), networks))
    usable = timed[timed["usable"].astype(bool)]
    flagged = usable[usable["out_of_range"].astype(bool)].assign(what=FLAGGED[NETWORKS], batch_size=0)
    return pd.concat([usable[usable["kind"] != ""], *(rows.assign(kind=ALL, **what) for rows, what in (
        (usable, {}), (timed, {"what": EVERY_NETWORK}), (swept[swept["usable"].astype(bool)], {"what": SWEPT}),
        (swept, {"what": EVERY_SWEPT}), (flagged, {})))])


def of_operators(model: CostModel) -> Iterator[Row]:
    """Yield the scores of a model's own parts, those that are not of another device."""
    return (of_part(model, name) for name, part in model.parts.items() if part.scores and not part.origin)


def of_part(model: CostModel, name: str) -> Row:
    """Return the scores of one part of a model; of one that another GPU's kernels trained, the errors on GPUs left out."""
    part, (group, _, passes), facts = model.parts[name], name.partition(" "), model.facts
    trained_on = part.origin or model.device
    of_others = model.device == ANY_GPU or (model.chip is not None and trained_on.partition(" ")[0] != model.device)
    left_out = "GPUs, one after another" if of_others else "shapes, in folds"
    condition = f"{facts['dtype']}, {facts['latency_type'].replace('_', ' ')}, {facts.get('cache', 'warm')}"
    return {**part.scores, "device": trained_on.removeprefix(transfer_cpu.CPU), "what": OPERATORS, "kind": group,
            "mode": passes, "condition": condition, "left_out": left_out, "source": facts.get("source", "")}


def _of_cpus(folder: Path, **how: Any) -> Iterator[Row]:
    """Yield the scores of models of CPUs, of gains or runtimes: families left out, or whole CPUs."""
    for rows in map(load, sorted(folder.glob("*.parquet"))):
        yield from _scored(rows[rows["usable"].astype(bool)].assign(kind=ALL), **how)


def _of_steps() -> Iterator[Row]:
    """Yield the scores of profiled training steps by the sum of their parts, each group left out."""
    for path in sorted((registry.SHIPPED / steps.FOLDER).glob("*.csv")):
        every = store.read(path, "steps")
        table, line = (every[every["learner"] == name] for name in (step.SUM_OF_PARTS, step.LINE))
        of_line = (line["predicted_ms"] / line["measured_ms"] - 1).abs().groupby(line["split"].map(_STEP_SPLITS)).mean() * 100
        ends = {name: table[f"{name}_ms"] for name in ("measured", "predicted", "low", "high")}
        for scored in _scored(frame(
            **ends, device=path.stem.removeprefix(transfer_cpu.CPU), what=STEPS, kind=ALL, mode="train", case=table["run_id"],
            condition="whole steps, fp32", batch_size=table["batch_size"], left_out=table["split"].map(_STEP_SPLITS),
            group=table["workload"].where(table["split"] == "workload", table["arch"]), source="profiles of W1 to W7")):
            yield {**scored, "baseline": of_line[scored["left_out"]]}


def case_of(scored: Mapping[str, Any]) -> Any:
    """Return device, mode and condition of a row as one text, or those of a table of rows."""
    return scored["device"] + ", " + scored["mode"] + ", " + scored["condition"]


def weakest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each device, kind and mode the condition with the largest mean error, the largest of all first.

    ``conditions`` says of how many. Networks of all kinds together are left out where each kind has a row.
    """
    case = ["device", "what", "kind", "mode"]
    rows = rows[~rows["what"].isin(VIEWS)].sort_values("mape_pct", ascending=False, kind="stable")
    with_kinds = rows.groupby(["device", "what", "mode"])["kind"].transform("nunique") > 1
    rows = rows[~(with_kinds & (rows["kind"] == ALL))]
    number = rows.groupby(case)["condition"].transform("size")
    return rows.assign(conditions=number).drop_duplicates(case, ignore_index=True)


def graded(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each of QUESTIONS from ``table``: typical (median) and mean error, how many ranges hold, n, the grade.

    Errors in %, means over devices and conditions by their number of predictions. ERROR_GRADES by the mean error.
    """
    condition, alone = rows["condition"], rows["families"] < 2
    flags = rows.assign(on_card=rows["device"].isin(definitions.load_devices()), compiled=condition.str.startswith("compiled"),
                        on_cpu=rows["device"].isin(archive.machines()),
                        family_coverage_pct=rows["family_coverage_pct"].mask(alone))
    lines = []
    for question, chosen in QUESTIONS.items():
        part = flags.query(chosen, engine="python")
        line = {label: _weighted(part[column], part["n"]) for column, label in _GRADED.items()}
        grade = next(letter for letter, most in ERROR_GRADES.items() if not line["mean error %"] > most)
        lines.append({"answer to": question, **line, "n": part["n"].sum(), "grade": grade})
    return pd.DataFrame(lines)


def _weighted(values: pd.Series, counts: pd.Series) -> float:
    known = values.notna()
    return float(np.average(values[known], weights=counts[known])) if counts[known].sum() else np.nan
