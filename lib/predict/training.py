"""Training of the shipped operator models: a CPU's on this project's own sweeps, GPUs' on what others published."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.base import mapping
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure import archive, ceilings, machine
from lib.measure.statistics import is_usable
from lib.predict import registry, transfer_cpu
from lib.predict.analytic import roofline
from lib.predict.operators import fitting, inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.cost_model import NETWORK_PARTS, PARTS_NOT_LENT, CostModel
from lib.predict.operators.validation import matrices_of, sizes_of, usable
from lib.predict.transfer import ANY_GPU
from lib.predict.transfer_cpu import Host

_LICENCES = {"neusight": "MIT, sitar-lab/NeuSight", "aiconfigurator": "Apache-2.0, ai-dynamo/aiconfigurator"}
_MOST_BATCHED = 6_000  # rows of batched GEMMs of one device: as many as of GEMMs, so that neither counts for more
_LARGE_FLOPS, _LEAST_SHARE = 2e10, 0.7  # of GEMMs that fill a card, and the share of the rate it can feed that they reach
_GEMMS, _GEMM_GROUP = "linear", "sgemm"  # the family of GEMMs that a throttled card runs slowly, and the group of its part
_LAUNCH_MS = {"end_to_end": 0.03, "kernel": 0.003}  # eager launches; CUDA graphs
GRIDS = ("aiconfigurator",)  # sources that measured each N and K at each M: no fold splits those
_LEAST_GPUS = 3
_STATES = {False: (("cold", "kernel"), ("warm", "kernel"), ("warm", "end_to_end"), ("cold", "end_to_end")),  # a CPU's
           True: (("warm", "kernel"), ("cold", "kernel"), ("warm", "end_to_end"), ("cold", "end_to_end"))}
_CARRIED = ("sgemm", "memory")  # groups of which only rates carry over to other devices: trees learn what a single device does
_SAMPLE = 12_000  # rows of one device that the model of any GPU is trained on


def reference_machine() -> Path:
    """Return the folder of the reference machine that has sweeps and networks; InputError where there is none."""
    return archive.machine_with("sweeps", "sweeps and measured networks")[1].parent


@dataclass(frozen=True)
class Target:
    """What one model answers for: like devices of one machine, an element type, and a way of timing.

    ``name`` is that of the GPU, empty for the CPU; ``hardware_id`` empty takes any, as does ``threads`` 0, which a GPU has.
    """

    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "fp32"
    cache: str = "cold"
    latency_type: str = "kernel"
    name: str = ""
    hardware_id: str = ""
    threads: int = 0

    @property
    def device_type(self) -> str:
        """Return cpu or cuda."""
        return self.devices[0].partition(":")[0]

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table ``sweep`` that are this target's."""
        rows = self.of_device(table)
        return rows[(rows["cache"] == self.cache) & (rows["latency_type"] == self.latency_type)]

    def of_device(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table ``sweep`` or ``networks`` that are of its devices, threads and element type."""
        return archive.of_device(table[table["dtype"] == self.dtype], self.devices, self.hardware_id, self.threads)


CPU = Target()


def sweep_files(folder: Path) -> list[Path]:
    """Return the tables of all sweeps of a machine."""
    return sorted(folder.glob("sweeps/*/sweep.parquet"))


def targets(folder: Path) -> list[Target]:
    """Return the targets that a machine's sweeps can train, the CPU first: each kind of device and element type once.

    Of several ways of timing and thread counts, the one with the most rows is taken, on a tie the first of _STATES. Raises
    InputError if none has enough rows.
    """
    tables = [_labelled(path) for path in sweep_files(folder)]
    rows = pd.concat(tables) if tables else pd.DataFrame(columns=["status", "verdict", "hardware_id", "gpu", "dtype"])
    good = rows[is_usable(rows)]
    chosen = []
    for (hardware_id, name, dtype), part in good.groupby(["hardware_id", "gpu", "dtype"]):
        counts = part.groupby(["cache", "latency_type", "threads"]).size()
        order = _STATES[bool(name)]
        cache, latency_type, threads = max(counts.index, key=lambda key: (counts[key], -order.index(key[:2]), key[2]))
        if counts.max() >= fitting.LEAST_ROWS:
            devices = tuple(sorted(set(part["device"])))
            chosen.append(Target(devices, dtype, cache, latency_type, name, hardware_id, int(threads)))
    if not chosen:
        raise InputError(f"{folder} has no sweep of {fitting.LEAST_ROWS} usable rows or more ({len(good)} of {len(rows)} "
                         "rows are usable); measure one: papermill notebooks/03_sweep.ipynb out.ipynb -p op all -p device all")
    return sorted(chosen, key=lambda target: (target.name != "", target.dtype != "fp32", target.name, target.dtype))


def _labelled(path: Path) -> pd.DataFrame:
    """Return a sweep with the GPU's name, by its provenance (its device id where none is known), empty for a CPU's rows."""
    table, meta = store.read(path, "sweep"), path.with_name("sweep.meta.json")
    names = {}
    for device, identity in mapping(mapping(store.read_json(meta), meta).get("devices"), meta).items():
        hardware = machine.own_hardware(device, {"gpus": [], **identity.get("hardware", {})})
        names[device] = str(hardware.get("name", device.removeprefix("cpu")))
    gpu = table["device"].map(names).fillna("")
    return table.assign(gpu=gpu, threads=table["threads"].where(gpu == "", 0))  # a GPU's are its host's


def reference_sweeps(folder: Path, target: Target = CPU) -> tuple[pd.DataFrame, list[str]]:
    """Return the usable rows of all sweeps of a machine that are of a target, and the sweeps' names, see ``swept``."""
    rows, names = swept(folder, target)
    return usable(rows).reset_index(drop=True), names


def swept(folder: Path, target: Target = CPU) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of all sweeps of a machine that are of a target, usable or not, and the sweeps' names.

    Like devices count as the first of them, a GPU's host as one without threads. Raises InputError where there is none.
    """
    tables = {path.parent.relative_to(folder.parent).as_posix(): table for path in sweep_files(folder)
              if len(table := target.of(store.read(path, "sweep")))}
    if not tables:
        raise InputError(f"{folder} has no {target.cache} {target.latency_type} sweep of {choices(target.devices)} in "
                         f"{target.dtype}")
    joined = pd.concat(tables.values()).assign(device=target.devices[0], **({"threads": 0} if target.name else {}))
    return joined.drop_duplicates(["config", "threads"], keep="last", ignore_index=True), list(tables)


def roof_of(folder: Path, target: Target = CPU) -> roofline.Roof:
    """Return the measured roof of a machine's device; a GPU's as its vendor states it where none was measured.

    Raises InputError for a CPU without measured ceilings of the element type.
    """
    table, _ = ceilings.of_machine(folder / "ceilings", target.devices, target.hardware_id, target.threads)
    tables = [table.assign(device=target.devices[0])]
    if target.name:
        tables.append(roofline.vendor_ceilings(load_devices()[registry.vendor_of(target.name)]))
    for roof in (roof for table in tables if len(table) for roof in roofline.roofs(table)):
        if roof.dtype == target.dtype:
            return roof
    raise InputError(f"{folder} has no measured {target.dtype} ceilings of {target.devices[0]}; measure them with 01_machine")


def own_model(folder: Path, target: Target = CPU) -> CostModel:
    """Train the model of a machine's device on its own sweeps; compositions are fitted apart (``network_training``).

    Raises InputError for a GPU that params/devices.yaml does not know.
    """
    table, names = reference_sweeps(folder, target)
    facts = {**table["hardware_id software_id threads cache latency_type dtype".split()].to_dict("records")[0],
             "machine": folder.name, "sweeps": names, "rows": len(table), "source": "measured by this project",
             "licence": "MIT", "trained_utc": store.utc_now()}
    measured, overheads = ceilings.of_machine(folder / "ceilings", target.devices, facts["hardware_id"], facts["threads"])
    if target.name:
        vendor = load_devices()[registry.vendor_of(target.name)]
        launch_us = float(overheads.loc[overheads["what"] == "launch", "median_us"].min())
        facts |= {"peak_gflops": vendor.peak_gflops.get(target.dtype), "peak_gbps": vendor.peak_gbps,
                  "launch_ms": launch_us / 1e3 if launch_us > 0 else _LAUNCH_MS[target.latency_type],
                  "devices": list(target.devices)}
        device, chip = vendor.id, Chip.of(vendor, target.dtype)
    else:
        roof = roof_of(folder, target)
        facts |= {"peak_gflops": roof.peak_gflops, "peak_gbps": roof.gbps(), "launch_ms": 0.002,
                  **transfer_cpu.rates(measured, overheads)}
        device, chip = registry.cpu_name(folder.name, facts["hardware_id"]), None
    model = fitting.fit(table, facts, chip)
    model.device = device
    return model if target.name else _completed(model, target)


def _completed(model: CostModel, target: Target) -> CostModel:
    """Give a CPU's model what its sweeps were too few for: from the shipped one, scaled."""
    bases = registry.cpu_files(target.dtype, shipped=True)
    if not bases or registry.key_of(bases[0])[0] == model.device:
        return model  # the shipped one itself is trained anew
    base = registry.load(bases[0])
    if not base.is_of(model.facts["hardware_id"], model.facts["threads"]):
        base = transfer_cpu.scaled(base, Host.of(model.facts))
    model.parts = {**base.parts, **model.parts}
    for name in NETWORK_PARTS:
        setattr(model, name, dict(getattr(base, name)))
    return model


def published_tables(kind: str) -> dict[str, pd.DataFrame]:
    """Return the imported tables of one kind by device; InputError says how to import them."""
    files = {path.parents[2].name: path for path in sorted(paths.IMPORTED.glob(f"*/sweeps/{kind}/sweep.parquet"))}
    tables = {device: store.read(path, "sweep") for device, path in files.items()}
    if not tables:
        raise InputError(f"nothing imported of {kind}; run: python -m lib import {kind} PATH")
    return {device: _in_order(table) if kind == "neusight" else table for device, table in tables.items()}


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``before``: how many convolutions stand above each one in its table, because times grow down the tables.

    The smallest take 0.09 ms at the beginning of the V100's and 0.35 ms at its end (0.13 and 0.82 on the P100), whatever their
    shapes, as if calls measured before cost time. Who asks for a convolution asks for one in a fresh process: for none before.
    """
    return table.assign(before=table.groupby("op").cumcount().where(table["op"] == "conv2d", 0))


def balanced(table: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """Return the usable rows of an element type with no more than _MOST_BATCHED batched GEMMs, drawn at random."""
    rows = usable(table[table["dtype"] == dtype])
    batched = rows.index[rows["op"] == "bmm"]
    extra = batched[np.random.default_rng(0).permutation(len(batched))[_MOST_BATCHED:]]
    return rows.drop(index=extra).reset_index(drop=True)


def _facts(kind: str, table: pd.DataFrame, dtype: str, **facts: Any) -> dict[str, Any]:
    latency_type = str(table["latency_type"].iloc[0])
    return {"cache": "warm", "latency_type": latency_type, "dtype": dtype, "launch_ms": _LAUNCH_MS[latency_type],
            "source": kind, "licence": _LICENCES[kind], "trained_utc": store.utc_now(), **facts}


def gpu_model(device: str, table: pd.DataFrame, kind: str, dtype: str) -> CostModel:
    """Train the model of one GPU on a published table, for one element type."""
    vendor, rows = load_devices()[device], balanced(table, dtype)
    facts = _facts(kind, rows, dtype, hardware_id=f"published:{device}", software_id=str(rows["software_id"].iloc[0]),
                   rows=len(rows), peak_gflops=vendor.peak_gflops[dtype], peak_gbps=vendor.peak_gbps,
                   **{PARTS_NOT_LENT: [_GEMM_GROUP] if throttled(device, table) else []})
    model = fitting.fit(rows, facts, Chip.of(vendor, dtype), matrices_of if kind in GRIDS else sizes_of)
    model.device = device
    return model


def throttled(device: str, table: pd.DataFrame) -> bool:
    """Return whether a card was throttled while its GEMMs in fp32 were measured: they say nothing about similar cards.

    Large GEMMs then reached less than 70 % of the rate that its peak and its power allow, in the median; other cards reach 75
    to 100 %.
    """
    chip, gemms = Chip.of(load_devices()[device], "fp32"), table[(table["op"] == _GEMMS) & (table["dtype"] == "fp32")]
    large = gemms[is_usable(gemms) & (gemms["flops"] > _LARGE_FLOPS)]
    allowed = min(chip.flops_per_ms, chip.powered_flops_per_ms or chip.flops_per_ms)
    return bool((large["flops"] / large["latency_ms"]).median() < _LEAST_SHARE * allowed)


def of_several(tables: Mapping[str, pd.DataFrame], dtype: str, of_throttled: bool = False) -> pd.DataFrame:
    """Return the rows that the model of any GPU is trained on, ``hardware_id`` the device; or those ``of_throttled`` cards."""
    parts = []
    for device, table in tables.items():
        own = (table["op"] == _GEMMS) & throttled(device, table)
        rows = balanced(table[own == of_throttled], dtype)
        parts.append(rows.sample(min(len(rows), _SAMPLE), random_state=0).assign(hardware_id=device))
    return pd.concat(parts, ignore_index=True)


def frames_of(devices: Iterable[str], dtype: str) -> fitting.Frames:
    """Return what gives terms and features of rows of several GPUs, ``hardware_id`` the device, each by its own chip."""
    chips = {device: Chip.of(load_devices()[device], dtype) for device in devices}

    def frames(part: pd.DataFrame) -> list[pd.DataFrame]:
        pairs = [inputs.frames(rows, chips[device]) for device, rows in part.groupby("hardware_id", sort=False)]
        return [pd.concat(tables).reindex(part.index) for tables in zip(*pairs, strict=True)]

    return frames


def any_gpu(tables: Mapping[str, pd.DataFrame], kind: str, dtype: str) -> CostModel:
    """Train on several GPUs what holds relative to their vendors' ceilings; intervals are those of a GPU left out.

    Raises InputError for fewer than three GPUs.
    """
    if len(tables) < _LEAST_GPUS:
        raise InputError(f"a model of any GPU is trained on three or more, not on {choices(tables)}")
    rows, frames = of_several(tables, dtype), frames_of(tables, dtype)
    model = CostModel(ANY_GPU, _facts(kind, rows, dtype, devices=list(tables)))
    for name, part in inputs.by_part(rows, Chip.of(load_devices()[next(iter(tables))], dtype)):
        if len(part) >= fitting.LEAST_ROWS:
            form = "rates" if name.partition(" ")[0] in _CARRIED else "boosted"
            model.parts[name] = fitting.fit_part(part, frames, part["hardware_id"], form)
    return model
