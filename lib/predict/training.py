"""Where the shipped models come from: this project's own sweeps and whole networks, and what others published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure import archive
from lib.predict import registry
from lib.predict.analytic import roofline
from lib.predict.networks import composition as estimate
from lib.predict.networks.composition import Work
from lib.predict.operators import cost_model
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.work import networks

# Networks from which the composition is learned. All others that were measured whole judge it and are never learned from.
TUNING = ("convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "mnasnet0_5", "mnasnet0_75", "mobilenet_v3_small",
          "regnet_x_3_2gf", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11", "vgg19_bn",
          "vit_b_16")
_LICENCES = {"neusight": "MIT, sitar-lab/NeuSight", "aiconfigurator": "Apache-2.0, ai-dynamo/aiconfigurator"}
_MOST_BATCHED = 6_000  # rows of batched GEMMs of one device: as many as of GEMMs, so that neither counts for more
_LEFT_OUT = {"p4": "throttled while its GEMMs were measured: a median of 20 % of the peak, 74 % in the authors' second run"}
_SAMPLE = 12_000  # rows of one device that the model of any GPU learns from


def reference_machine() -> Path:
    """Return the folder of the reference machine that has sweeps and networks; InputError where there is none."""
    found = [path.parent for path in sorted(paths.REFERENCE.glob("*/networks"))]
    if not found:
        raise InputError(f"no machine in {paths.REFERENCE} has measured networks")
    return found[0]


def reference_sweeps(folder: Path, cache: str = "cold", latency_type: str = "kernel") -> tuple[pd.DataFrame, list[str]]:
    """Return the usable rows of all sweeps of a machine in one state of the caches, and the sweeps' names.

    Raises InputError where there is none.
    """
    tables, names = [], []
    for path in sorted(folder.glob("sweeps/*/sweep.parquet")):
        table = store.read(path, "sweep")
        table = table[(table["cache"] == cache) & (table["latency_type"] == latency_type) & (table["dtype"] == "fp32")]
        if len(table):
            tables.append(table)
            names.append(path.parent.relative_to(paths.REFERENCE).as_posix())
    if not tables:
        raise InputError(f"{folder} has no {cache} {latency_type} sweep")
    joined = pd.concat(tables, ignore_index=True).drop_duplicates("config", keep="last", ignore_index=True)
    return cost_model.usable(joined).reset_index(drop=True), names


def roof_of(folder: Path, dtype: str = "fp32") -> roofline.Roof:
    """Return the measured roof of a machine's CPU."""
    tables = [store.read(path, "ceilings") for path in sorted((folder / "ceilings").glob("ceilings_*cpu*.csv"))]
    if not tables:
        raise InputError(f"{folder} has no measured ceilings of its CPU")
    return next(roof for roof in roofline.roofs(tables[-1]) if roof.dtype == dtype)


def works(cases: pd.DataFrame, progress: archive.Progress = lambda items, _: items) -> dict[tuple[str, str, int], Work]:
    """Capture the networks of a table ``networks``; return the work by (network, mode, batch size)."""
    found = {}
    for row in progress(list(cases.itertuples()), "capture"):
        key = (row.network, row.mode, int(row.batch_size))
        if key not in found:
            graph = estimate.captured(networks.network(row.network, key[2], row.input_shape or ""), row.mode)
            found[key] = estimate.work(graph, row.mode, key[2])
    return found


def network_terms(model: CostModel, table: pd.DataFrame, items: Mapping[tuple[str, str, int], Work]) -> pd.DataFrame:
    """Return networks that were measured whole (a table ``networks``) with what the model says of their operators.

    Columns beside those of ``networks``: ``family, tuning``, estimate.TERMS, ``outside, looked_up, memory_mb, peak_mb``.
    """
    known, terms = registry.Shelved(model.device, "fp32", model, "", np.inf).known(), {}
    for key, item in items.items():
        operators = estimate.parts(item, model, known)
        terms[key] = {**estimate.terms(item, operators), **estimate.time_shares(operators), "memory_mb": item.memory_mb,
                      "peak_mb": item.peak_bytes / 1e6}
    keys = zip(table["network"], table["mode"], table["batch_size"].astype(int), strict=True)
    found = pd.DataFrame([terms[key] for key in keys], index=table.index)
    return table.assign(family=table["network"].map(networks.family), tuning=table["network"].isin(TUNING), **found)


def compositions(table: pd.DataFrame, without: str = "") -> dict[str, estimate.Composition]:
    """Learn a composition for each mode and way with memory from the tuning networks of a table of ``network_terms``.

    ``without`` names a family of networks that is left out.
    """
    good = table[table["tuning"] & (table["status"] == "ok") & (table["verdict"] != "unusable") & (table["family"] != without)]
    found: dict[str, estimate.Composition] = {}
    for memory in ("kept", "default"):
        for mode, rows in good[good["memory"] == memory].groupby("mode"):
            given = [(row["network"], {name: row[name] for name in estimate.TERMS}, row["latency_ms"])
                     for row in rows.to_dict("records")]
            found[f"{mode} {memory}"] = estimate.compose(given, found.get(f"{mode} kept"))
    return found


def composed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``network_terms`` with ``predicted_ms, low_ms, high_ms`` and ``shipped_ms``.

    What judges is predicted by compositions learned without its family; ``shipped_ms`` is what the shipped ones predict.
    """
    everything, rows = compositions(table), []
    apart = {family: compositions(table, family) for family in set(table["family"][table["tuning"]])}
    for row in table.to_dict("records"):
        case = f"{row['mode']} {row['memory']}"
        shipped = estimate.interval(row, everything[case], row["outside"])
        unseen = estimate.interval(row, apart.get(row["family"], everything)[case], row["outside"])
        predicted_ms, low_ms, high_ms = shipped if row["tuning"] else unseen
        rows.append({**row, "predicted_ms": predicted_ms, "low_ms": low_ms, "high_ms": high_ms, "shipped_ms": shipped[0]})
    return pd.DataFrame(rows)


def cpu_model(folder: Path | None = None, quick: bool = False, tell: Callable[[str], None] = lambda name: None) -> CostModel:
    """Learn the model of a reference machine's CPU from its sweeps; compositions are learned apart (``with_networks``)."""
    folder = folder or reference_machine()
    table, names = reference_sweeps(folder)
    roof = roof_of(folder)
    facts = {"hardware_id": str(table["hardware_id"].iloc[0]), "software_id": str(table["software_id"].iloc[0]),
             "threads": int(table["threads"].iloc[0]), "machine": folder.name, "sweeps": names, "rows": len(table),
             "cache": "cold", "latency_type": "kernel", "dtype": "fp32", "peak_gflops": roof.peak_gflops,
             "peak_gbps": roof.gbps(), "launch_ms": 0.002, "source": "measured by this project", "licence": "MIT",
             "trained_utc": store.utc_now()}
    model = cost_model.fit(table, facts, quick=quick, tell=tell)
    model.device = f"cpu-{folder.name}"
    return model


def with_networks(model: CostModel, folder: Path | None = None,
                  progress: archive.Progress = lambda items, _: items) -> pd.DataFrame:
    """Learn the model's compositions from the tuning networks; return all measured networks as ``composed`` does."""
    measured = networks_of(folder or reference_machine())
    table = network_terms(model, measured, works(measured, progress))
    model.compositions = {case: asdict(composition) for case, composition in compositions(table).items()}
    return composed(table)


def networks_of(folder: Path) -> pd.DataFrame:
    """Return the networks that were measured whole on a reference machine."""
    table = store.read_all([], "networks")
    found = [store.read(path, "networks") for path in sorted(folder.glob("networks/*.parquet"))]
    return pd.concat(found, ignore_index=True) if found else table


def published_tables(kind: str) -> dict[str, pd.DataFrame]:
    """Return the imported tables of one kind by device; InputError says how to import them."""
    files = sorted(paths.IMPORTED.glob(f"*/sweeps/{kind}/sweep.parquet"))
    found = {path.parents[2].name: store.read(path, "sweep") for path in files if path.parents[2].name not in _LEFT_OUT}
    if not found:
        raise InputError(f"nothing imported of {kind}; run: python -m lib import {kind}")
    return found


def _balanced(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with no more than _MOST_BATCHED batched GEMMs, drawn at random."""
    batched = rows[rows["op"] == "bmm"]
    extra = batched.index[np.random.default_rng(0).permutation(len(batched))[_MOST_BATCHED:]]
    return rows.drop(index=extra).reset_index(drop=True)


def gpu_model(device: str, table: pd.DataFrame, kind: str, dtype: str, quick: bool = False) -> CostModel:
    """Learn the model of one GPU from a published table of one element type."""
    vendor = load_devices()[device]
    rows = _balanced(cost_model.usable(table[table["dtype"] == dtype]))
    facts = {"hardware_id": f"published:{device}", "software_id": str(rows["software_id"].iloc[0]), "rows": len(rows),
             "cache": "warm", "latency_type": str(rows["latency_type"].iloc[0]), "dtype": dtype,
             "peak_gflops": vendor.peak_gflops[dtype], "peak_gbps": vendor.peak_gbps,
             "launch_ms": 0.03 if kind == "neusight" else 0.003, "source": kind, "licence": _LICENCES[kind],
             "trained_utc": store.utc_now()}
    model = cost_model.fit(rows, facts, Chip.of(vendor, dtype), quick)
    model.device = device
    return model


def any_gpu(tables: Mapping[str, pd.DataFrame], kind: str, dtype: str, quick: bool = False) -> CostModel:
    """Learn from several GPUs what holds relative to their vendors' ceilings; intervals are those of a GPU left out.

    Raises InputError for fewer than three GPUs.
    """
    if len(tables) < 3:
        raise InputError(f"a model of any GPU is learned from three or more, not from {choices(tables)}")
    chips = {device: Chip.of(load_devices()[device], dtype) for device in tables}
    several = []
    for device, table in tables.items():
        rows = _balanced(cost_model.usable(table[table["dtype"] == dtype]))
        several.append(rows.sample(min(len(rows), _SAMPLE), random_state=0).assign(hardware_id=device))
    joined = pd.concat(several, ignore_index=True)

    def give(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        found = [cost_model.given(mine, chips[device]) for device, mine in rows.groupby("hardware_id", sort=False)]
        return tuple(pd.concat(frames).reindex(rows.index) for frames in zip(*found, strict=True))

    facts = {"source": kind, "licence": _LICENCES[kind], "dtype": dtype, "devices": list(tables), "cache": "warm",
             "latency_type": str(rows["latency_type"].iloc[0]), "launch_ms": 0.03 if kind == "neusight" else 0.003,
             "trained_utc": store.utc_now()}
    model = CostModel(registry.ANY_GPU, facts)
    for name, rows in cost_model.by_part(joined, gpu=True):
        if len(rows) >= cost_model.LEAST_ROWS:
            model.parts[name] = cost_model.fit_part(rows, give, quick, rows["hardware_id"], small=False)
    return model


def summary(models: Sequence[tuple[str, str, CostModel]]) -> pd.DataFrame:
    """Return a row a part of each model: device, element type, part, rows, MAPE, median, within 10 %, interval, source."""
    rows = []
    for device, dtype, model in models:
        for name, part in model.parts.items():
            rows.append({"device": device, "dtype": dtype, "part": name, "rows": part.rows, "MAPE %": part.scores.get("mape"),
                         "median %": part.scores.get("median"), "within 10 %": part.scores.get("within_10"),
                         "interval ±%": (np.exp(np.mean(part.halves)) - 1) * 100, "source": model.facts.get("source", ""),
                         "licence": model.facts.get("licence", "")})
    return pd.DataFrame(rows)
