"""One table of how wrong predictions were on what no model saw: by device, kind of network or operator, mode and condition.

Nothing is measured or fitted here. Errors are those that lie in model files, and are computed from held-out predictions that
lie beside them and beside the reference machines.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, store
from lib.config import definitions
from lib.errors import choices
from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict import registry, steps, transfer_cpu
from lib.predict.composed import card_gains
from lib.predict.composed import held_out as families
from lib.predict.composed import model_file as composed_file
from lib.predict.composed.features import Condition
from lib.predict.composed.model_file import Composed
from lib.predict.gains import model_file as cpu_gains
from lib.predict.networks import step
from lib.predict.operators.cost_model import ANY_GPU, CostModel
from lib.predict.power import model as power_model

COLUMNS = ("device", "what", "kind", "mode", "condition", "mape_pct", "median_pct", "bias_pct", "coverage_pct", "n", "left_out",
           "source")
NETWORKS, FINAL, OPERATORS, STEPS, POWER, TENSORS, RESIDENT, NOISE = (
    "networks", "networks, final set", "operators", "training steps", "power", "memory of tensors", "resident memory", "labels")
GAINS = "gains of a change"
FAMILIES, EVERY_NETWORK = "networks of one family", "networks, unusable rows too"
NEW_CARDS, CORRECTED_CARDS = "networks, card left out", "networks, card left out but for some"
FLAGGED = {NETWORKS: "networks, out of range", OPERATORS: "operators, out of range"}  # those whose answer was flagged so
ALL, OWN = families.ALL, "measured by this project"
ALLOCATORS = {"kept": "retained heap", "default": "default allocator"}  # column ``memory`` of networks, and what it is called
_MEAN_ERROR = 0.8 * 1.25 / 1.35  # of a median, over IQR / sqrt(n)
_SHARE = 0.05  # of the time out of the training range, and a network is flagged
_NETWORKS = ("network", "mode", "batch_size", "memory", "tuning", "latency_ms", "verdict", "status", "predicted_ms", "low_ms",
             "high_ms", "outside", "rss_mb", "tensors_mb", "peak_mb", "memory_mb")
_PREDICTED = {"rss_predicted_mb": "predicted_ms", "rss_low_mb": "low_ms", "rss_high_mb": "high_ms"}  # where it was learned
_SCORES = ("mape", "median", "bias", "n", "coverage")
_STEP_SPLITS = {"workload": "workloads", "arch": "architectures"}
Row = dict[str, Any]


def table(reference: str = "") -> pd.DataFrame:
    """Return COLUMNS of all that ships: cards of whole networks, reference machines, models of operators, power, steps.

    ``reference`` names one more machine, an imported one.
    """
    models = [registry.load(path) for (device, _), path in registry.model_files(shipped=True).items()
              if not device.startswith(transfer_cpu.CPU)]  # a CPU's operators are those of its machine
    folders = archive.machines() | ({reference: archive.machine_folder(reference)} if reference else {})
    machines = [one for name, folder in folders.items() for one in of_machine(name, folder)]
    labels = [one for name, folder in folders.items() for one in _of_labels(name, folder)]
    cards = [Composed.load(path) for path in composed_file.files_of_cards().values()]
    rows = [*(one for card in cards for one in of_card(card)), *_of_new_cards(), *_of_families(), *of_final_set(), *machines,
            *(one for model in models for one in of_operators(model)), *_of_power(), *_of_steps(), *_of_gains(), *labels]
    return pd.DataFrame(rows, columns=COLUMNS)


def of_card(card: Composed, only: Condition | None = None) -> Iterator[Row]:
    """Yield the rows of a card's composed model: families left out, all of them and by kind; ``only`` under one condition.

    Where ``composed.held_out`` wrote no rows of the card, the scores of its file stand alone.
    """
    for condition, fitted in card.conditions.items():
        if only not in (None, condition):
            continue
        of_kinds = families.of_kinds(card.device, condition) if fitted.basis == "many" else {}
        device, scored = composed_file.ANY if fitted.basis == "others" else card.device, fitted.scored or condition.name
        left_out = {"many": "families of timm", "few": "families of the networks that calibrated it",
                    "others": f"each of {choices(card.siblings)}, and families of timm"}[fitted.basis]
        coverage = _coverage_of_cards(scored) if fitted.basis == "others" else np.nan
        for scores in of_kinds.values() or [{"name": ALL, "coverage": coverage, **fitted.scores}]:
            yield row(device, NETWORKS, scores["name"], condition.mode, condition_of_card(scored), scores, left_out,
                      card.source)


def _coverage_of_cards(condition: str) -> float:
    """Return how much of each card left out lies in the interval of the other cards, in %, mean over networks."""
    path = composed_file.FOLDER / composed_file.CURVE
    return _coverages(path, path.stat().st_mtime_ns).get(condition, np.nan) if path.is_file() else np.nan


@cache
def _coverages(path: Path, _: int) -> dict[str, float]:
    table = _records(path, "device", "condition", "networks", *_SCORES)
    return {condition: float(np.average(rows["coverage"], weights=rows["n"]))
            for condition, rows in table[table["networks"] == 0].groupby("condition")}


def _of_labels(name: str, folder: Path) -> Iterator[Row]:
    """Yield how far medians of a machine's networks lie from the time that they measure, which no model can undercut.

    From the spread of the passes of one campaign, as if it were normal: 0.8 standard errors of a median, 1.25 sigma / sqrt(n).
    """
    rows = archive.networks(folder)
    usable = rows[(rows["dtype"] == "fp32") & (rows["device"] == "cpu") & (rows["n"] > 1)
                  & (rows["status"] == "ok") & (rows["verdict"] != VERDICTS[-1])]
    for (memory, mode, batch), part in usable.groupby(["memory", "mode", "batch_size"]):
        error = pd.Series(_MEAN_ERROR * part["latency_iqr_ms"] / np.sqrt(part["n"]) / part["latency_ms"] * 100)
        yield row(name, NOISE, ALL, mode, condition_of_cpu(memory, int(batch)),
                  {"mape": error.mean(), "median": error.median(), "n": len(error)}, "none: nothing is predicted", OWN)


def _of_families() -> Iterator[Row]:
    """Yield each family's scores on cards, and how far networks differ that were measured there again, with another torch."""
    for scores in families.read().to_dict("records"):
        mode, condition = _mode_of(scores["condition"]), condition_of_card(scores["condition"])
        if scores["group"] == families.FAMILY:
            yield row(scores["device"], FAMILIES, scores["name"], mode, condition, scores, "families of timm", "timm")
        elif scores["group"] == families.AGAIN:
            yield row(scores["device"], NOISE, ALL, mode, condition, scores, f"none: {scores['name']} against it", "timm")


def _of_new_cards() -> Iterator[Row]:
    """Yield how wrong a card is that was left out, without and with some of its own networks."""
    path = composed_file.FOLDER / composed_file.CURVE
    for scores in _records(path, "device", "condition", "networks", *_SCORES).to_dict("records"):
        what, kind = (CORRECTED_CARDS, f"{scores['networks']} of its networks") if scores["networks"] else (NEW_CARDS, ALL)
        yield row(scores["device"], what, kind, _mode_of(scores["condition"]), condition_of_card(scores["condition"]), scores,
                  "the card and families of timm", "timm")


def of_final_set() -> Iterator[Row]:
    """Yield the scores of the final set of families, as they fell when it was opened."""
    for scores in _records(composed_file.FOLDER / "final.csv", "date", "device", "condition", *_SCORES).to_dict("records"):
        yield row(scores["device"], FINAL, ALL, _mode_of(scores["condition"]), condition_of_card(scores["condition"]), scores,
                  f"final families, opened {scores['date']}", "timm")


def condition_of_card(name: str) -> str:
    """Return a condition of whole networks on a card (``Condition.name``) as a text to read, beside which the mode stands."""
    way, precision, layout, version = name.split("-")
    return ", ".join([way] * (way != "train") + [precision, layout, f"torch {version}"])


def _mode_of(name: str) -> str:
    return "train" if name.startswith("train") else "infer"


def _records(path: Path, *names: str) -> pd.DataFrame:
    """Return a CSV that has these columns, without rows where it is not there; InputError where it lacks some."""
    return csv_files.with_columns(path, names, "train the model again that it is of")


def machine_networks(folder: Path) -> pd.DataFrame:
    """Return the predicted networks of a reference machine that no composition was tuned on, with ``kind``.

    Rows that ran, whatever their spread; without rows where the machine has none.
    """
    networks = _records(folder / "predictions" / "networks.csv", *_NETWORKS)
    kinds = dict(_records(folder / "predictions" / "kinds.csv", "network", "kind").to_numpy())
    if networks.empty:
        return networks.assign(kind="")
    ran = (networks["status"] == "ok") & ~networks["tuning"].astype(bool) & ~networks["network"].isin(definitions.workloads())
    return networks[ran].assign(kind=networks["network"].map(kinds).fillna(""))


def of_machine(name: str, folder: Path) -> Iterator[Row]:
    """Yield the rows of a reference machine's CPU: whole networks, their memory, and operators."""
    yield from of_its_networks(name, folder)
    yield from _of_shapes(name, folder, OWN)


def of_its_networks(name: str, folder: Path) -> Iterator[Row]:
    """Yield the rows of networks on a machine's CPU by allocator, mode, batch size and kind, and of their memory."""
    networks = machine_networks(folder)
    usable = networks[networks["verdict"] != VERDICTS[-1]] if len(networks) else networks
    source = OWN
    for rows, what in ((usable, NETWORKS), (networks, EVERY_NETWORK)):
        for (memory, mode, batch), case in rows.groupby(["memory", "mode", "batch_size"]) if len(rows) else ():
            condition = condition_of_cpu(memory, int(batch))
            for kind, part in _by_kind(case) if what == NETWORKS else ((ALL, case),):
                yield row(name, what, kind, mode, condition, _with_coverage(part), "families of torchvision", source)
    flagged = usable[usable["outside"] > _SHARE] if len(usable) else usable
    for (memory, mode), part in flagged.groupby(["memory", "mode"]) if len(flagged) else ():
        yield row(name, FLAGGED[NETWORKS], ALL, mode, condition_of_cpu(memory), _with_coverage(part),
                  "families of torchvision", source)
    yield from _of_memory(name, usable, source)


def condition_of_cpu(memory: str, batch: int = 0) -> str:
    """Return the condition of networks on a CPU; ``memory`` is of ALLOCATORS, batch 0: several."""
    return f"batch {batch or 'sizes together'}, {ALLOCATORS[memory]}"


def _by_kind(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    yield ALL, rows
    yield from rows[rows["kind"] != ""].groupby("kind")


def _of_memory(name: str, networks: pd.DataFrame, source: str) -> Iterator[Row]:
    """Yield how right the peak of tensors is, weights included, and how right it is as what the process comes to occupy."""
    rows = networks[networks["memory"] == "default"] if len(networks) else networks
    for mode, part in rows.groupby("mode") if len(rows) else ():
        weights_mb = part["memory_mb"] - part["peak_mb"]
        yield row(name, TENSORS, ALL, mode, "weights and tensors", errors(part["memory_mb"], weights_mb + part["tensors_mb"]),
                  "none: nothing of it is fitted", source)
        yield row(name, RESIDENT, ALL, mode, "weights and tensors", errors(part["memory_mb"], part["rss_mb"]),
                  "none: nothing of it is fitted", source)
        if {*_PREDICTED} <= {*part}:
            learned = _with_coverage(part.drop(columns=list(_PREDICTED.values())).rename(columns=_PREDICTED), "rss_mb")
            yield row(name, RESIDENT, ALL, mode, "learned", learned, "families of torchvision", source)


def of_operators(model: CostModel) -> Iterator[Row]:
    """Yield the rows of a model's own parts, those that are not of another device."""
    for name, part in model.parts.items():
        if part.scores and not part.origin:
            yield of_part(model, name)


def of_part(model: CostModel, name: str) -> Row:
    """Return the row of one part of a model; of one that another GPU's kernels trained, the errors on GPUs left out."""
    part, (group, _, passes) = model.parts[name], name.partition(" ")
    trained_on = part.origin or model.device
    of_others = model.device == ANY_GPU or (model.chip is not None and trained_on.partition(" ")[0] != model.device)
    left_out = "GPUs, one after another" if of_others else "shapes, in folds"
    costs = dict(zip(getattr(part.regressor, "terms", ()), getattr(part.regressor, "costs", ()), strict=True))
    if costs.get("before", 0.0) > 0:  # calls that were measured earlier, which no user's call has
        left_out += ", their place in the published table known"
    condition = f"{model.facts['dtype']}, {model.facts['latency_type'].replace('_', ' ')}, {model.facts.get('cache', 'warm')}"
    return row(trained_on.removeprefix(transfer_cpu.CPU), OPERATORS, group, passes, condition, part.scores, left_out,
               model.facts.get("source", ""))


def _of_power() -> Iterator[Row]:
    for path in power_model.model_files():
        model = power_model.of_device(*registry.key_of(path))
        yield row(model.device, POWER, "gemm", "infer", model.facts["dtype"], model.part.scores,
                   "(N, K)", model.facts.get("source", ""))


def _of_gains() -> Iterator[Row]:
    """Yield how wrong the factor is by which a change makes networks faster, of families left out, on cards and on a CPU."""
    for scores in card_gains.read().to_dict("records"):
        ends = [scores[when].replace("-", ", ") for when in ("before", "after")]
        left_out = "families of timm" if scores["device"] != composed_file.ANY else "the card and families of timm"
        yield row(scores["device"], GAINS, ALL, _mode_of(scores["before"]), f"{' to '.join(ends)}; torch {scores['torch']}",
                  scores, left_out, "timm")
    shipped = cpu_gains.shipped()
    for way, gain in shipped.ways.items():
        yield row(shipped.machine, GAINS, ALL, way.mode, f"fp32 contiguous to {way.dtype} {way.layout}", gain.scores,
                  "families of networks", OWN)


def _of_steps() -> Iterator[Row]:
    """Yield the rows of profiled training steps by the sum of their parts, each group left out."""
    for path in sorted((registry.SHIPPED / steps.FOLDER).glob("*.csv")):
        rows = _records(path, "learner", "split", "measured_ms", "predicted_ms", "low_ms", "high_ms")
        for split, part in rows[rows["learner"] == step.SUM_OF_PARTS].groupby("split"):
            yield row(path.stem.removeprefix(transfer_cpu.CPU), STEPS, ALL, "train", "whole steps, fp32",
                      _with_coverage(part, "measured_ms"), _STEP_SPLITS[split], "profiles of W1 to W7")


def _of_shapes(name: str, folder: Path, source: str) -> Iterator[Row]:
    """Yield how right a machine's own model is on shapes left out, by family of operators; those flagged as outside apart."""
    path = folder / "predictions" / "predictions.parquet"
    rows = store.read(path, "predictions") if path.is_file() else pd.DataFrame()
    rows = rows[(rows["kind"] == "operator") & rows["low_ms"].notna()] if len(rows) else rows
    for (flagged, family), part in rows.groupby(["out_of_range", "family"]) if len(rows) else ():
        passes = "backward" if family.endswith("backward") else "forward"
        yield row(name, FLAGGED[OPERATORS] if flagged else OPERATORS, family.removesuffix(f" {passes}"), passes, "fp32",
                  _with_coverage(part, "measured_ms"), "shapes, in folds", source)


def _with_coverage(rows: pd.DataFrame, measured: str = "latency_ms") -> Row:
    inside = rows[measured].between(rows["low_ms"], rows["high_ms"])
    return {**errors(rows["predicted_ms"], rows[measured]), "coverage": inside.mean() * 100}


def errors(predicted: pd.Series, measured: pd.Series) -> Row:
    """Return MAPE, median and bias in %, and n."""
    error = (predicted / measured.where(measured > 0) - 1).dropna() * 100
    return {"mape": error.abs().mean(), "median": error.abs().median(), "bias": error.mean(), "n": len(error)}


def row(device: str, what: str, kind: str, mode: str, condition: str, scores: Mapping[str, Any], left_out: str,
        source: str) -> Row:
    """Return a row (COLUMNS) of ``scores``: mape, n, and median, bias and coverage where they are known, in %."""
    numbers = {f"{name}_pct": float(scores.get(name, np.nan)) for name in ("mape", "median", "bias", "coverage")}
    return {"device": device, "what": what, "kind": kind, "mode": mode, "condition": condition, **numbers,
            "n": int(scores["n"]), "left_out": left_out, "source": source}


def case_of(scored: Mapping[str, Any]) -> str:
    """Return device, mode and condition of a row as one text."""
    return f"{scored['device']}, {scored['mode']}, {scored['condition']}"


def cases(rows: pd.DataFrame) -> pd.Series:
    """Return the case of each row, see ``case_of``."""
    return pd.Series([case_of(one) for one in rows.to_dict("records")], rows.index, dtype=object)


def weakest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each device, kind and mode the condition with the largest mean error, the largest of all first.

    ``conditions`` says of how many. Networks of all kinds together are left out where each kind has a row.
    """
    case = ["device", "what", "kind", "mode"]
    several = rows[rows["what"] != EVERY_NETWORK].sort_values("mape_pct", ascending=False, kind="stable")
    apart = several.groupby(["device", "what", "mode"])["kind"].transform("nunique") > 1
    several = several[~(apart & (several["kind"] == ALL))]
    number = several.groupby(case)["condition"].transform("size")
    return several.assign(conditions=number).drop_duplicates(case, ignore_index=True)
