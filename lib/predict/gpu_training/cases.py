"""What many people measured on GPUs, as cases of one fit: whole networks, small modules and single operators.

Three readers: of labelled questions (``published.labels``), of KernelBench's modules, and of timm's tables.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict import steps
from lib.predict.advice import advise_operator
from lib.predict.gpu import rows
from lib.predict.gpu.fit import Case
from lib.predict.gpu.levels import Condition, chip_of, levels_of
from lib.predict.published import kernelbench
from lib.progress import track
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.graph import families
from lib.work.graph.ops import Graph

WAYS = ("source", "device", "precision", "mode", "layout", "compile")
_OPERATOR_WEIGHT = 0.2  # of a single operator beside a network, as many of them repeat a shape
_PER_FAMILY = 150  # operators of a family of operators, of each source and device
_MOST_BESIDE = 0.7  # share of a time that is not of the passes, above which it says little of them
_PRECISIONS = {("fp16", "true"): "amp_fp16", ("bf16", "true"): "amp_bf16"}
_LAYOUTS = {"contiguous": "nchw", "channels_last": "nhwc"}
_WITHOUT_TF32 = ("NeuSight",)  # sources that turned TF32 off in convolutions, too
_SINGLE = ("NeuSight",)  # sources of single operators
_OLD = ("DeepBench",)  # kernels of libraries before 2018: left out
_TIMM_SIGMA = 0.08  # of one person's times, all measured alike, see ``fit.SIGMA``
LEAST = 50  # networks of timm under a condition, and it is learned
PER_CONDITION = 150  # networks of timm that are drawn of each condition
FINAL = 10  # one family of timm of so many is kept for a final score
_OLDEST = (2, 4)  # torch, of inference: older tables hold fewer networks
_ROUNDED = 0.0051  # million parameters: timm's tables state two digits
_PARAMETER_TOLERANCE = 1e-3  # share of its parameters: timm has changed some networks by less since, such as TNT


@cache
def _operator_rows(text: str) -> pd.DataFrame:
    op, *parameters = text.split()
    wanted = advise_operator.config(op, parameters)
    return rows.of_graph(Graph(wanted.ops("cuda"), 0, 0, 0, ()))


@cache
def _network_rows(name: str, size: str) -> pd.DataFrame:
    return rows.of_network(networks.network(name, rows.BATCH, size))


def of_labels(labels: pd.DataFrame) -> list[Case]:
    """Return the labels (``evaluation.outsiders.read``) of GPUs that the form is fitted to, by source, device and condition.

    Backward passes of single operators, several GPUs, and training with its loader are left out.
    """
    good = labels[(labels["error"] == "") & labels["device"].isin(load_devices()) & (labels["gpus"].astype(float) == 1)]
    good = good[~good["source"].isin(_OLD)]
    is_operator = _is_operator(good)
    good = _few(good[~(is_operator & (good["mode"] == "train")) & ~good["includes"].str.contains("loader")])
    pairs = zip(good["dtype"], good["autocast"].astype(str), strict=True)
    good = good.assign(precision=[_PRECISIONS.get(pair, pair[0]) for pair in pairs], layout=good["layout"].map(_LAYOUTS),
                       compile=good["compile"].astype(str).str.lower() == "true")
    cases = [_case(way, part) for way, part in track(list(good.groupby(list(WAYS))), "sources")]
    return [case for case in cases if case is not None]


def _is_operator(labels: pd.DataFrame) -> pd.Series:
    return labels["model"].str.split().str[0].isin(families.families())


def _few(labels: pd.DataFrame) -> pd.DataFrame:
    """Return all networks, and the operators of each family that a hash of their text chooses, the same on all devices."""
    order = pd.util.hash_pandas_object(labels["model"], index=False)
    family = labels["model"].str.split().str[0]
    place = order.groupby([labels["source"], labels["device"], family]).rank(method="first")
    return labels[~_is_operator(labels) | (place <= _PER_FAMILY)]


def _case(way: tuple, labels: pd.DataFrame) -> Case | None:
    source, device, precision, mode, layout, is_compiled = way
    condition, vendor = Condition(mode, precision, layout, is_compiled), load_devices()[device]
    single, found = source in _SINGLE, []
    for row in labels.itertuples():
        try:
            work = _operator_rows(row.model) if single else _network_rows(row.model, row.input)
        except InputError:
            continue  # such as a batched product without a batch
        found.append({"network": row.model, "family": row.model.split()[0] if single else networks.family(row.model),
                      "rows": work, "times": 1.0 if single else float(row.batch_size) / rows.BATCH,
                      "latency_ms": float(row.measured_ms), "weight": _OPERATOR_WEIGHT if single else 1.0,
                      "beside_ms": _copy_ms(row, condition) if "h2d" in row.includes else 0.0})
    table = pd.DataFrame(found)
    if table.empty:
        return None
    table = table[table["beside_ms"] < _MOST_BESIDE * table["latency_ms"]].reset_index(drop=True)
    return Case(table, device, source, condition, chip_of(vendor, condition, source not in _WITHOUT_TF32),
                levels_of(vendor, condition, f"{source}, {device}"))


def _copy_ms(row, condition: Condition) -> float:
    """Return the ms that the copy of a batch to the GPU takes."""
    network = networks.network(row.model, int(float(row.batch_size)), row.input)
    itemsize = 4 if condition.is_amp else condition.bits // 8
    return float(np.prod(network.shape)) * itemsize / steps.LINK_GBPS / 1e6


def of_kernelbench(folder: Path) -> list[Case]:
    """Return KernelBench's modules, eager and compiled, by board."""
    modules = kernelbench.modules(folder)
    work = {name: rows.of_graph(module.graph) for name, module in track(modules.items(), "modules")}
    labels = kernelbench.labels(folder)
    labels = labels[labels["module"].isin(modules)]
    return [_of_board(board, mode == "compiled", part, work) for (board, mode), part in labels.groupby(["board", "mode"])]


def _of_board(board: str, compiled: bool, labels: pd.DataFrame, work: Mapping[str, pd.DataFrame]) -> Case:
    device, source = labels["device"].iloc[0], f"KernelBench, {board}"
    vendor, condition = load_devices()[device], Condition("infer", "fp32", "nchw", compiled)
    table = pd.DataFrame({"network": labels["module"].to_numpy(), "family": labels["module"].to_numpy(),
                          "rows": list(labels["module"].map(work)), "times": 1.0,
                          "latency_ms": labels["mean_ms"].to_numpy(), "level": labels["level"].to_numpy()})
    return Case(table, device, source, condition, chip_of(vendor, condition), levels_of(vendor, condition, source))


def timm_tables() -> pd.DataFrame:
    """Return every imported table ``whole_networks``; InputError says how to import them."""
    paths_of = sorted(paths.IMPORTED.glob("*/whole_networks/*/whole_networks.parquet"))
    if not paths_of:
        raise InputError(f"no table of whole networks in {paths.IMPORTED}; run: python -m lib import timm FOLDER (results of "
                         "huggingface/pytorch-image-models)")
    return pd.concat([store.read(path, "whole_networks") for path in paths_of], ignore_index=True)


def is_final(modules: pd.Series) -> pd.Series:
    """Return which families are in the final set, a tenth of them by a hash of their names: no choice and no fit sees them."""
    return modules.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16) % FINAL == 0)


def of_timm(table: pd.DataFrame, most: int = PER_CONDITION, least: int = LEAST) -> list[Case]:
    """Return the networks of timm's tables (``captured``) in 16 bits, of the newest torch, at most so many a condition."""
    table = table[(table["precision"] != "fp32") & ((table["mode"] == "train") | (table["torch"].map(version) >= _OLDEST))]
    cases = []
    for way, part in table.groupby(["device", "mode", "precision", "layout", "compiled"]):
        device, mode, precision, layout, compiled = way
        newest = max(part["torch"].unique(), key=version)
        distinct = part[part["torch"] == newest].drop_duplicates(["network", "image_size"])
        if len(distinct) < least:
            continue
        order = pd.util.hash_pandas_object(distinct["network"], index=False).sort_values().index
        drawn = distinct.loc[order[:most]].reset_index(drop=True)
        condition, vendor = Condition(mode, precision, layout, bool(compiled)), load_devices()[device]
        networks_of = pd.DataFrame({"network": drawn["network"], "family": drawn["module"], "rows": drawn["rows"],
                                    "times": drawn["batch_size"].astype(float) / rows.BATCH, "latency_ms": drawn["latency_ms"],
                                    "batch_size": drawn["batch_size"]})
        cases.append(Case(networks_of, device, "timm", condition, chip_of(vendor, condition),
                          levels_of(vendor, condition, f"timm, {device}"), _TIMM_SIGMA))
    return cases


def version(text: str) -> tuple[int, ...]:
    """Return a version of torch as numbers, by which versions are ordered."""
    return tuple(map(int, text.split(".")))


def captured(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Capture the networks of ``whole_networks`` as timm builds them; return them with their ``rows``, and why others are not.

    Networks whose parallel branches timm had merged (``--reparam``) are recognised by their parameter count and named so. Rows
    whose count fits neither form are left out.
    """
    captures, reasons = {}, {}

    def built_m(names):
        """Capture networks by their names; return the million parameters of each row of the table (NaN: not captured)."""
        keys = list(zip(names, table.loc[names.index, "image_size"], strict=True))
        frames, why = of_networks(keys, lambda name, size: networks.network(f"timm:{name}", rows.BATCH, f"3x{size}x{size}"))
        captures.update(frames)
        reasons.update(why)
        counts = [rows.parameters(frames[key]) / 1e6 if key in frames else np.nan for key in keys]
        return pd.Series(counts, names.index).reindex(table.index).to_numpy()

    names, stated = table["network"], table["parameters_m"].to_numpy(float)
    usual_m = built_m(names)
    merged_m = built_m((names + MERGED)[np.abs(stated - usual_m) > _ROUNDED])
    merged = np.abs(stated - merged_m) < np.abs(stated - usual_m)
    nearer_m = np.where(merged, merged_m, usual_m)
    neither = np.abs(stated - nearer_m) > np.maximum(_ROUNDED, _PARAMETER_TOLERANCE * nearer_m)
    for place in np.flatnonzero(neither):
        also = f", with merged branches with {merged_m[place]:.2f} M" if np.isfinite(merged_m[place]) else ""
        name, size = table.loc[table.index[place], ["network", "image_size"]]
        reasons[f"{name} {size} of {stated[place]:.2f} M parameters"] = f"timm builds it with {usual_m[place]:.2f} M{also}"
    named = table.assign(network=names.mask(merged, names + MERGED))[~neither]
    return with_rows(named, captures), reasons


def of_networks(keys: Iterable[tuple], build: Callable[..., networks.Network]
                ) -> tuple[dict[tuple, pd.DataFrame], dict[str, str]]:
    """Return the rows of the networks that ``build`` makes of keys (tuples), each once, and why other keys have none."""
    captures, reasons = {}, {}
    for key in track(dict.fromkeys(keys), "capture"):
        try:
            captures[key] = rows.of_network(build(*key))
        except InputError as error:
            reasons[" ".join(map(str, key)).strip()] = str(error)
    return captures, reasons


def with_rows(table: pd.DataFrame, captures: Mapping[tuple, pd.DataFrame]) -> pd.DataFrame:
    """Return the networks of a table that were captured, with their ``rows`` of work."""
    keys = zip(table["network"], table["image_size"], strict=True)
    frames = pd.Series([captures.get(key) for key in keys], table.index, object)
    return table.assign(rows=frames)[frames.notna()].reset_index(drop=True)
