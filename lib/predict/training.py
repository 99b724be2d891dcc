"""Training of the shipped operator models: a CPU's on this project's own sweeps, GPUs' on what others published."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure import archive
from lib.predict.analytic import roofline
from lib.predict.operators import fitting, inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import usable
from lib.predict.transfer import ANY_GPU

_LICENCES = {"neusight": "MIT, sitar-lab/NeuSight", "aiconfigurator": "Apache-2.0, ai-dynamo/aiconfigurator"}
_MOST_BATCHED = 6_000  # rows of batched GEMMs of one device: as many as of GEMMs, so that neither counts for more
_LEFT_OUT = {"p4": "throttled while its GEMMs were measured: a median of 20 % of the peak, 74 % in the authors' second run"}
_LAUNCH_MS = {"neusight": 0.03, "aiconfigurator": 0.003}  # eager launches; CUDA graphs
_LEAST_GPUS = 3
_SAMPLE = 12_000  # rows of one device that the model of any GPU is trained on


def reference_machine() -> Path:
    """Return the folder of the reference machine that has sweeps and networks; InputError where there is none."""
    return archive.machine_with("networks", "measured networks")[1].parent


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
    return usable(joined).reset_index(drop=True), names


def roof_of(folder: Path, dtype: str = "fp32") -> roofline.Roof:
    """Return the measured roof of a machine's CPU."""
    tables = [store.read(path, "ceilings") for path in sorted((folder / "ceilings").glob("ceilings_*cpu*.csv"))]
    if not tables:
        raise InputError(f"{folder} has no measured ceilings of its CPU")
    return next(roof for roof in roofline.roofs(tables[-1]) if roof.dtype == dtype)


def cpu_model(folder: Path | None = None, quick: bool = False) -> CostModel:
    """Train the model of a reference machine's CPU on its sweeps; compositions are fitted apart (``network_training``)."""
    folder = folder or reference_machine()
    table, names = reference_sweeps(folder)
    roof = roof_of(folder)
    facts = {"hardware_id": str(table["hardware_id"].iloc[0]), "software_id": str(table["software_id"].iloc[0]),
             "threads": int(table["threads"].iloc[0]), "machine": folder.name, "sweeps": names, "rows": len(table),
             "cache": "cold", "latency_type": "kernel", "dtype": "fp32", "peak_gflops": roof.peak_gflops,
             "peak_gbps": roof.gbps(), "launch_ms": 0.002, "source": "measured by this project", "licence": "MIT",
             "trained_utc": store.utc_now()}
    model = fitting.fit(table, facts, quick=quick)
    model.device = f"cpu-{folder.name}"
    return model


def published_tables(kind: str) -> dict[str, pd.DataFrame]:
    """Return the imported tables of one kind by device; InputError says how to import them."""
    files = {path.parents[2].name: path for path in sorted(paths.IMPORTED.glob(f"*/sweeps/{kind}/sweep.parquet"))}
    tables = {device: store.read(path, "sweep") for device, path in files.items() if device not in _LEFT_OUT}
    if not tables:
        raise InputError(f"nothing imported of {kind}; run: python -m lib import {kind}")
    return tables


def _balanced(table: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """Return the usable rows of an element type with no more than _MOST_BATCHED batched GEMMs, drawn at random."""
    rows = usable(table[table["dtype"] == dtype])
    batched = rows[rows["op"] == "bmm"]
    extra = batched.index[np.random.default_rng(0).permutation(len(batched))[_MOST_BATCHED:]]
    return rows.drop(index=extra).reset_index(drop=True)


def _facts(kind: str, rows: pd.DataFrame, dtype: str) -> dict[str, Any]:
    return {"cache": "warm", "latency_type": str(rows["latency_type"].iloc[0]), "dtype": dtype, "launch_ms": _LAUNCH_MS[kind],
            "source": kind, "licence": _LICENCES[kind], "trained_utc": store.utc_now()}


def gpu_model(device: str, table: pd.DataFrame, kind: str, dtype: str, quick: bool = False) -> CostModel:
    """Train the model of one GPU on a published table, for one element type."""
    vendor, rows = load_devices()[device], _balanced(table, dtype)
    facts = {**_facts(kind, rows, dtype), "hardware_id": f"published:{device}", "software_id": str(rows["software_id"].iloc[0]),
             "rows": len(rows), "peak_gflops": vendor.peak_gflops[dtype], "peak_gbps": vendor.peak_gbps}
    model = fitting.fit(rows, facts, Chip.of(vendor, dtype), quick)
    model.device = device
    return model


def any_gpu(tables: Mapping[str, pd.DataFrame], kind: str, dtype: str, quick: bool = False) -> CostModel:
    """Train on several GPUs what holds relative to their vendors' ceilings; intervals are those of a GPU left out.

    Raises InputError for fewer than three GPUs.
    """
    if len(tables) < _LEAST_GPUS:
        raise InputError(f"a model of any GPU is trained on three or more, not on {choices(tables)}")
    chips = {device: Chip.of(load_devices()[device], dtype) for device in tables}
    several = {device: _balanced(table, dtype) for device, table in tables.items()}
    rows = pd.concat([own.sample(min(len(own), _SAMPLE), random_state=0).assign(hardware_id=device)
                      for device, own in several.items()], ignore_index=True)

    def frames(part: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        own = [inputs.frames(part[part["hardware_id"] == device], chips[device]) for device in part["hardware_id"].unique()]
        return tuple(pd.concat(tables).reindex(part.index) for tables in zip(*own, strict=True))

    model = CostModel(ANY_GPU, {**_facts(kind, rows, dtype), "devices": list(tables)})
    for name, part in inputs.by_part(rows, next(iter(chips.values()))):
        if len(part) >= fitting.LEAST_ROWS:
            model.parts[name] = fitting.fit_part(part, frames, quick, part["hardware_id"], distilled=False)
    return model
