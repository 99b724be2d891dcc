"""From visits to the ``sweep`` table: medians, verdicts, stale results; reading and replay."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices
from lib.measure import disturbance, statistics
from lib.measure.archive import folders, replayed_device
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import export, points
from lib.measure.reference_kernel import SLOW, USUAL
from lib.measure.statistics import NOISY, STABLE, UNUSABLE, is_usable, judged
from lib.tables import PARAMETERS, columns

LEAST_ROUNDS = 3
_NEIGHBOURS = 15  # visits over which the load is smoothed: its clock ticks every 10 ms
_NO_LOOP = "not looped: energy_s is 0, or the budget was spent"
_STALE = "it repeats the result before it to the last digit"


def _smooth(values: pd.Series) -> pd.Series:
    return values.rolling(_NEIGHBOURS, center=True, min_periods=1).median()


def _judged_visits(visits: pd.DataFrame, spare_cores: int) -> pd.DataFrame:
    """Return visits with what disturbed them.

    ``crowd``: on a CPU the cores that others and the host used beyond the spare ones, on a GPU the
    share of its time. ``slow``: the reference kernel beside the visit was slow, or the GPU said that
    it was throttled, or its clock was over 6 % below the highest for the configuration.
    """
    visits = visits.fillna({"gpu_unknown": "", "gpu_throttled": "", "reason": ""})
    on_gpu = visits["gpu_others"].notna() | (visits["gpu_unknown"] != "")
    in_the_way = disturbance.in_the_way(visits["other_cores"], visits["stolen_cores"], spare_cores)
    fastest_mhz = visits.groupby("config")["gpu_mhz"].transform("max")
    usual_ms = visits["yardstick_ms"].quantile(USUAL / 100)
    return visits.assign(
        on_gpu=on_gpu, crowd=_smooth(in_the_way.mask(on_gpu, visits["gpu_others"].fillna(0.0))),
        cores=_smooth(visits["other_cores"] + visits["stolen_cores"]),
        slow=(visits["yardstick_ms"] > SLOW * usual_ms) | (visits["gpu_throttled"] != "")
        | (SLOW * visits["gpu_mhz"] < fastest_mhz))


def summarise(visits: pd.DataFrame, spare_cores: int = 0) -> pd.DataFrame:
    """Return one row per configuration: median, spread and extremes over the rounds, and a verdict.

    Disturbed visits are left out where LEAST_ROUNDS others exist; otherwise the verdict says so.
    ``spare_cores``: cores that our threads left idle.
    """
    visits = _judged_visits(visits, spare_cores)
    rows = []
    for key, part in visits[visits["status"] == "ok"].groupby("config", sort=False):
        quiet = part[(part["crowd"] < statistics.QUIET_CORES) & ~part["slow"]]
        used = quiet if len(quiet) >= LEAST_ROUNDS else part
        low, median, high = np.percentile(used["latency_ms"], (25, 50, 75))
        verdict, why = judged(_findings(used, (high - low) / median if median else np.inf))
        rows.append({"config": key, "latency_ms": median, "latency_iqr_ms": high - low, "n": len(used),
                     "low_ms": used["latency_ms"].min(), "high_ms": used["latency_ms"].max(),
                     "other_cores": used["cores"].median(), "verdict": verdict,
                     "why": "; ".join(filter(None, [why, *used["reason"].unique()]))})
    names = ("config", "latency_ms", "latency_iqr_ms", "n", "low_ms", "high_ms", "other_cores",
             "verdict", "why")
    return pd.DataFrame(rows, columns=names)


def _findings(used: pd.DataFrame, spread: float) -> Iterator[tuple[str, str]]:
    """Yield the verdicts on the rounds of one configuration, each with its reason."""
    yield statistics.spread_verdict(spread), f"IQR over the rounds is {spread:.0%} of the median"
    crowd, on_gpu = float(used["crowd"].median()), used["on_gpu"].any()
    taken = f"{crowd:.0%} of the GPU" if on_gpu else f"{crowd:.1f} cores"
    yield statistics.crowd_verdict(crowd), f"others used {taken} meanwhile"
    for unknown in used["gpu_unknown"][used["gpu_unknown"] != ""].head(1):
        yield NOISY, f"who else used the GPU is not known: {unknown}"
    if used["slow"].any():
        throttled = used["gpu_throttled"][used["gpu_throttled"] != ""]
        why = f" ({throttled.iloc[0]})" if len(throttled) else ""
        what = "GPU was throttled" if on_gpu else "processor was slow"
        yield NOISY, f"the {what} in {int(used['slow'].sum())} of {len(used)} rounds{why}"
    if len(used) < LEAST_ROUNDS:
        yield NOISY, f"only {len(used)} of {LEAST_ROUNDS} rounds"


def unsettled(folder: Path, spare_cores: int) -> set[str]:
    """Return the configurations of one device whose rounds do not agree yet."""
    table = summarise(store.read(folder / "repeats.csv", "repeats"), spare_cores)
    return set(table.loc[table["verdict"] != STABLE, "config"])


def stale(latency: pd.Series, work: pd.Series) -> pd.Series:
    """Return which rows repeat the row before them to the last digit although their work differs.

    A time of three rows in a row, and of no other row, was read from the last result instead of
    measured; a clock of coarse ticks gives equal times elsewhere too. ``latency`` and ``work`` (FLOPs
    and bytes from the shapes) are aligned, in the order of measuring.
    """
    known = latency.dropna()
    again, work = known == known.shift(), work[known.index]
    alone = (~again).groupby(known).transform("sum") == 1
    in_a_row = again & (again.shift(-1, fill_value=False) | again.shift(fill_value=False))
    return (alone & in_a_row & work.ne(work.shift())).reindex(latency.index, fill_value=False)


def _device_table(folder: Path, device: str, identity: store.Facts) -> pd.DataFrame:
    """Return the ``sweep`` rows of one device, from its raw files.

    A configuration failed if one of its visits failed or is stale; without visits it has no row.
    """
    configs = store.read(folder / "configs.csv", "configs").drop_duplicates("config", keep="last")
    visits = store.read(folder / "repeats.csv", "repeats")
    work = (configs["flops"] + configs["bytes"]).set_axis(configs["config"])
    repeated = stale(visits["latency_ms"], visits["config"].map(work))
    visits = visits.assign(status=visits["status"].mask(repeated, "failed"),
                           reason=visits["reason"].mask(repeated, _STALE))
    failed = visits[visits["status"] != "ok"].drop_duplicates("config").set_index("config")["reason"]
    frame = configs[(configs["status"] != "ok") | configs["config"].isin(visits["config"])]
    frame = frame.merge(summarise(visits, identity.get("spare_cores", 0)), on="config", how="left")
    frame["status"] = frame["status"].mask(frame["config"].isin(failed.index), "failed")
    broken = frame["status"] != "ok"
    measured = ["latency_ms", "latency_iqr_ms", "low_ms", "high_ms", "other_cores", "n"]
    frame.loc[broken, measured] = np.nan
    frame = _with_energies(frame, folder / "energies.csv", broken)
    values = pd.DataFrame(list(map(json.loads, frame["parameters"])), index=frame.index)
    seconds = frame["latency_ms"] / 1e3
    return frame.join(values.reindex(columns=list(PARAMETERS))).assign(
        reason=frame["config"].map(failed).fillna(frame["reason"]).where(broken, frame["why"]),
        n=frame["n"].fillna(0).astype(int), verdict=frame["verdict"].where(~broken, UNUSABLE),
        gflops=frame["flops"] / seconds / 1e9, gbps=frame["bytes"] / seconds / 1e9,
        device=device, tf32=bool(identity.get("tf32")),
        **{name: identity[name] for name in ("hardware_id", "software_id", "threads")})[columns("sweep")]


def _with_energies(frame: pd.DataFrame, path: Path, broken: pd.Series) -> pd.DataFrame:
    """Add the energy of each configuration's last loop, or why it has none."""
    loops = store.read_all([path] if path.exists() else [], "energies")  # older folders lack it
    loops = loops.drop_duplicates("config", keep="last").drop(columns=["calls", "loop_s"])
    frame = frame.merge(loops, on="config", how="left").fillna({"energy_method": NOT_MEASURED})
    looped = frame["config"].isin(loops["config"])
    without = np.where(broken, "it has no time either", _NO_LOOP)
    return frame.assign(energy_reason=frame["energy_reason"].where(looped, without))


def device_folder(folder: Path, device: str) -> Path:
    """Return the folder of a device's raw files in that of its sweep."""
    return folder / device.replace(":", "-")


def derive(folder: Path, facts: store.Facts) -> pd.DataFrame:
    """Derive the table of a sweep (all devices) from its raw files, and write it."""
    tables = [_device_table(device_folder(folder, device), device, identity)
              for device, identity in facts["devices"].items()]
    return write(pd.concat([part for part in tables if len(part)] or tables, ignore_index=True),
                 folder, facts)


def write(table: pd.DataFrame, folder: Path, facts: store.Facts) -> pd.DataFrame:
    """Write the table of a sweep, its provenance, and the files of ``export``; return the table."""
    path = store.write(table, folder / "sweep.parquet", "sweep", derived=True)
    store.write_meta(path, "sweep", **facts)
    export.write(table, folder)
    return table


@dataclass(frozen=True)
class Sweep:
    """A sweep as a notebook shows it: table, raw visits of all devices, folder, start, note.

    ``failures``: why a device ended early, by its name.
    """

    table: pd.DataFrame
    visits: pd.DataFrame
    folder: Path
    started_utc: str
    note: str
    failures: dict[str, str]

    @property
    def usable(self) -> pd.DataFrame:
        """Return the measured rows that are not unusable."""
        return self.table[is_usable(self.table)]


def read(folder: Path) -> Sweep:
    """Read a finished sweep; InputError names what is missing. Replays have no raw visits."""
    table = store.read(folder / "sweep.parquet", "sweep")
    facts = store.read_json(folder / "sweep.meta.json")
    started_utc = facts.get("started_utc", "?")
    failures = facts.get("failures", {})
    failed = "".join(f" FAILED: {reason}." for reason in failures.values())
    note = f"Measured here, {started_utc}, in {folder.name}.{failed}{export.emptiness(table)}"
    visits = store.read_all(sorted(folder.glob("*/repeats.csv")), "repeats")
    return Sweep(table, visits, folder, started_utc, note, failures)


def replay(p: SweepParams) -> Sweep:
    """Read the newest reference sweep that holds the wanted families, cut down to them.

    ``device`` auto is the CPU, all every device that was swept. InputError lists what there is.
    """
    timings = points.timings(p.latency_type, p.cache)
    wanted = {"op": p.ops, **{name: {timing[name] for timing in timings} for name in timings[0]}}
    if not p.grid:  # a grid has its own element types
        wanted["dtype"] = [p.dtype]
    if p.device != "all":
        wanted["device"] = replayed_device(p.device).split(",")
    available = set()
    for folder in folders("replay", p.reference):
        for path in sorted((folder / "sweeps").glob("*/sweep.parquet"), reverse=True):
            sweep = read(path.parent)
            rows = sweep.table
            chosen = rows[np.logical_and.reduce([rows[name].isin(wanted[name]) for name in wanted])]
            available |= set(rows["op"] + " " + rows["dtype"] + " on " + rows["device"])
            if set(p.ops) <= set(chosen["op"]):
                note = f"REPLAY of {path.parent.name}, measured {sweep.started_utc} on {folder.name}."
                return replace(sweep, table=chosen.reset_index(drop=True), note=note,
                               failures={})
    raise InputError(f"the reference has no {p.cache} {p.latency_type} sweep of {choices(p.ops)} in "
                     f"{p.dtype} on {p.device}; it has: {choices(sorted(available)) or 'none'}")
