"""The measured ceilings of a device: compute by dtype, bandwidth by memory level, overheads."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib import locks, paths, store
from lib.config.notebooks import MachineParams
from lib.errors import InputError, choices, is_out_of_memory
from lib.measure import disturbance, machine, probes
from lib.measure.archive import folders, newest, of_device, replayed_device
from lib.measure.budget import Budget, sampled
from lib.measure.probes import Probe
from lib.measure.statistics import STABLE, UNUSABLE, Timing, worst
from lib.measure.timing import measure
from lib.tables import columns

_LEAST, _OVERRUN = 3, 2.0  # samples of a visit, unless they take more than twice its share


def _visit(probe: Probe, device: torch.device, share_s: float) -> Timing | None:
    """Build a probe's call and time it for about ``share_s`` seconds; None if memory runs out."""
    begin = time.monotonic()
    try:
        call = probe.build()
        left_s = max(0.0, share_s - (time.monotonic() - begin))
        return measure(call, device, left_s, least=_LEAST, most_s=_OVERRUN * share_s, graph=True)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return None


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the usable rows of ``ceilings``, and all of a dtype or level without usable ones."""
    usable = table["verdict"] != UNUSABLE
    return table[usable | ~usable.groupby([table["level"], table["dtype"]]).transform("any")]


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one device: both tables, their provenance, and a note."""

    table: pd.DataFrame
    overheads: pd.DataFrame
    facts: dict
    note: str

    @property
    def best(self) -> pd.DataFrame:
        """Return the best ``counted`` row of each dtype (compute) and each level (bandwidth)."""
        rows = counted(self.table)
        rate = rows["peak_gflops"].fillna(rows["peak_gbps"])
        best = rate.groupby([rows["level"], rows["dtype"]]).idxmax()
        return rows.loc[best].reset_index(drop=True)

    @property
    def warning(self) -> str:
        """Return which ceilings rest on unusable rows only, in one line; empty for none."""
        doubtful = self.best[self.best["verdict"] == UNUSABLE]
        names = doubtful["level"].where(doubtful["level"] != "compute", doubtful["dtype"])
        if names.empty:
            return ""
        return f"UNUSABLE, measured on a busy machine and perhaps too low: {choices(names)}."

    @property
    def last_level(self) -> str:
        """Return the level beyond all caches: RAM, or the device's own memory."""
        return "RAM" if "RAM" in set(self.table["level"]) else "device"


def measure_ceilings(p: MachineParams, wait_s: float = locks.PATIENCE_S) -> Ceilings:
    """Measure the ceilings of a device in about ``budget_s`` and write them to ``data/ceilings/``.

    Raises InputError for a device that is not here, and HeldError if another process measures on
    it for longer than ``wait_s``.
    """
    device, budget = machine.device(p.device), Budget(p.budget_s)
    machine.use(device)
    with (machine.on_threads(p.threads), locks.device(str(device), wait_s),
          machine.working(device)):
        threads, identity = torch.get_num_threads(), machine.identity()
        quiet = disturbance.wait_for_quiet(threads, budget.patience_s, device=str(device))
        watch = disturbance.LoadWatch(str(device))
        try:
            wanted = (probes.compute_probes(p, device)
                      + probes.triad_probes(p, device, threads))
            small = probes.overheads(device, min(0.5, p.budget_s / 20))
            timings = sampled(len(wanted), budget, lambda index, share_s: _visit(
                wanted[index], device, share_s), "ceilings")
        finally:
            machine.exact_fp32()
        seen = watch.reading()
    shared = {"device": str(device), "threads": threads,
              **{name: identity[name] for name in ("hardware_id", "software_id")}}
    rows, without = [], []
    for probe, timing in zip(wanted, timings, strict=True):
        if timing.n:
            verdict = worst(timing.verdict, seen.verdict(threads))
            rows.append({**shared, **_rates(probe, timing), "verdict": verdict})
        else:
            without.append(f"{probe.method} in {probe.dtype}")
    if not rows:
        raise InputError(f"{device} has too little memory left: no probe of its ceilings fits")
    facts = {"load_at_start": asdict(quiet), "load_at_end": asdict(seen), **identity}
    return _save(pd.DataFrame(rows, columns=columns("ceilings")),
                 small.assign(**{name: shared[name] for name in ("hardware_id", "software_id")}),
                 p, facts, without)


def _rates(probe: Probe, timing: Timing) -> dict:
    """Return the columns of a probe's row; the rate is that of the fastest tenth of its samples."""
    fast_ms = float(np.percentile(timing.samples_ms, 10))
    method = f"{probe.method}, as a CUDA graph" if timing.graphed else probe.method
    return {"dtype": probe.dtype, "level": probe.level, "source": "measured", "method": method,
            "peak_gflops": probe.flops / fast_ms / 1e6 if probe.flops else np.nan,
            "peak_gbps": np.nan if probe.flops else probe.bytes / fast_ms / 1e6,
            "working_set_mb": probe.bytes / 1e6, "median_ms": timing.median_ms,
            "iqr_ms": timing.iqr_ms, "n": timing.n}


def _save(table: pd.DataFrame, small: pd.DataFrame, p: MachineParams, facts: dict,
          without: list[str]) -> Ceilings:
    stem = f"ceilings_{str(table['device'][0]).replace(':', '-')}"
    facts |= {"started_utc": store.utc_now(), "notebook": "01_machine",
              "parameters": p.model_dump()}
    with locks.writer(paths.CEILINGS, locks.PATIENCE_S):  # each host gets a name of its own
        path = store.fresh_file(paths.CEILINGS, stem)
        store.write(table, path, "ceilings")
        store.write(small, _overheads_of(path), "overheads")
    store.write_meta(path, "ceilings", **facts)
    store.write_meta(_overheads_of(path), "overheads", **facts)
    notes = [f"Measured here, {facts['started_utc']}."]
    largest_mb = table.loc[table["peak_gbps"].notna(), "working_set_mb"].max()
    has_largest = not p.gemm_max or table["method"].str.contains(f" {p.gemm_max}x").any()
    if largest_mb < p.triad_max_mb / 2 or not has_largest:  # sizes double
        notes.append("Memory or budget_s do not allow the largest sizes that were asked for.")
    if without:
        notes.append(f"Memory ran out for {choices(without)}.")
    return Ceilings(table, small, facts, " ".join(notes))


def _overheads_of(path: Path) -> Path:
    return path.with_name(path.name.replace("ceilings", "overheads", 1))


def of_machine(folder: Path, devices: Sequence[str], hardware_id: str = "", threads: int = 0,
               quiet: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the ``counted`` rows of ``ceilings`` in a folder, and those of ``overheads``.

    They are of these devices, of this hardware (empty: any) and thread count (0: any). ``quiet``:
    rows that this machine's CPU measured while others held cores are unusable.
    """
    tables, overheads_files = [], []
    for path in sorted(folder.glob("ceilings_*.csv")):
        table = of_device(store.read(path, "ceilings"), devices, hardware_id, threads)
        facts = path.with_suffix(".meta.json")
        if quiet and facts.is_file():
            seen = store.read_json(facts).get("load_at_end", {})
            others, stolen = seen.get("other_cores", 0.0), seen.get("stolen_cores", 0.0)
            if disturbance.Load(0.0, 0.0, others, stolen, 0.0).verdict(threads) != STABLE:
                table = table.assign(verdict=UNUSABLE)
        if len(table):
            tables.append(table)
            overheads_files.append(_overheads_of(path))
    small = store.read_all(filter(Path.is_file, overheads_files), "overheads")
    small = small[small["device"].isin(devices)]
    if not tables:
        return store.read_all([], "ceilings"), small
    return counted(pd.concat(tables, ignore_index=True)), small


def _stored(folder: Path, device: str, note: str, **wanted: str) -> Ceilings | None:
    """Read the newest ceilings of a device in a folder; ``note`` has places for file and time."""
    last = newest(folder, f"ceilings_{device.replace(':', '-')}", **wanted)
    if last is None:
        return None
    facts, path = last
    small = store.read(_overheads_of(path), "overheads")
    note = note.format(path.name, facts["started_utc"])
    return Ceilings(store.read(path, "ceilings"), small, facts, note)


def saved(device: str) -> Ceilings | None:
    """Return the newest ceilings measured here with this hardware and software; None for none."""
    note = "Ceilings of {}, measured here {}."
    return _stored(paths.CEILINGS, device, note, **machine.ids())


def replay_ceilings(p: MachineParams) -> Ceilings:
    """Read the newest ceilings of a reference machine; ``device`` auto is its CPU. InputError."""
    wanted = replayed_device(p.device)
    for folder in folders("replay", p.reference):
        note = f"REPLAY of {{}}, measured {{}} on {folder.name}."
        if stored := _stored(folder / "ceilings", wanted, note):
            return stored
    raise InputError(f"the reference has no ceilings of {wanted}; measure them with source=measure")


def ceilings(p: MachineParams) -> Ceilings:
    """Measure the ceilings of a device, or replay them from the reference, as ``source`` says."""
    return measure_ceilings(p) if p.source == "measure" else replay_ceilings(p)
