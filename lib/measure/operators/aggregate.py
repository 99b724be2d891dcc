"""From visits to the ``sweep`` table: medians over rounds, verdicts, and finding stale rows."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices
from lib.measure import disturbance
from lib.measure.archive import folders, replayed_device
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import export, points, raw_files
from lib.measure.reference_kernel import SLOW, USUAL
from lib.measure.statistics import NOISY, QUIET_CORES, STABLE, UNUSABLE, crowd_verdict, is_usable, judged, spread_verdict
from lib.tables import PARAMETERS, columns

NEIGHBOURS = 15  # visits over which the load of the machine is smoothed: its clock ticks every 10 ms
LEAST_ROUNDS = 3
_NO_LOOP = "not looped: energy_s is 0, or the budget was spent"


def crowding(visits: pd.DataFrame, spare_cores: int) -> pd.Series:
    """Return for each visit what others and the host used around its time, a median over NEIGHBOURS visits.

    On a CPU it is the cores beyond those that ``spare_cores`` idle ones could give, on a GPU the share of its time. A process
    beside us shows in visit after visit; a single visit is too short to show it.
    """
    cores = disturbance.in_the_way(visits["other_cores"], visits["stolen_cores"], spare_cores)
    return _smooth(cores.mask(_on_gpu(visits), visits["gpu_others"].fillna(0.0)))


def _smooth(values: pd.Series) -> pd.Series:
    return values.rolling(NEIGHBOURS, center=True, min_periods=1).median()


def _on_gpu(visits: pd.DataFrame) -> pd.Series:
    """Return which visits were on a GPU: those that know who used it, or why they do not."""
    return visits["gpu_others"].notna() | _filled(visits["gpu_unknown"])


def _filled(texts: pd.Series) -> pd.Series:
    """Return which texts say something: an empty one is NaN once it was in a file."""
    return texts.fillna("") != ""


def disturbed(visits: pd.DataFrame) -> pd.Series:
    """Return which visits saw a slow processor, or throttled GPU.

    A processor is slow by the reference kernel before and after the visit. A GPU is throttled if it said so, or the highest
    clock for its configuration was over 6 % above its own; operators keep different clocks.
    """
    usual = visits["yardstick_ms"].quantile(USUAL / 100)
    fastest = visits.groupby("config")["gpu_mhz"].transform("max")
    return (visits["yardstick_ms"] > SLOW * usual) | _filled(visits["gpu_throttled"]) | (SLOW * visits["gpu_mhz"] < fastest)


def summarise(visits: pd.DataFrame, spare_cores: int = 0) -> pd.DataFrame:
    """Return one row per configuration from its visits: median, spread and extremes over the rounds, and a verdict.

    Visits beside a busy neighbour, or on a processor slower than usual, are left out where LEAST_ROUNDS others exist;
    where they do not, the verdict says so. ``spare_cores``: cores that our threads left idle.
    """
    cores = _smooth(visits["other_cores"] + visits["stolen_cores"])
    visits = visits.assign(cores=cores, crowd=crowding(visits, spare_cores), slow=disturbed(visits))
    good = visits[visits["status"] == "ok"]
    rows = []
    for key, part in good.groupby("config", sort=False):
        quiet = part[(part["crowd"] < QUIET_CORES) & ~part["slow"]]
        used = quiet if len(quiet) >= LEAST_ROUNDS else part
        low, median, high = np.percentile(used["latency_ms"], (25, 50, 75))
        spread = (high - low) / median if median else np.inf
        findings = [(spread_verdict(spread), f"IQR over the rounds is {spread:.0%} of the median"), *_neighbours(used)]
        if len(used) < LEAST_ROUNDS:
            findings.append((NOISY, f"only {len(used)} of {LEAST_ROUNDS} rounds"))
        verdict, why = judged(findings)
        rows.append((key, median, high - low, len(used), used["latency_ms"].min(), used["latency_ms"].max(),
                     used["cores"].median(), verdict,
                     "; ".join(filter(None, [why, *used.loc[_filled(used["reason"]), "reason"].unique()]))))
    return pd.DataFrame(rows, columns=["config", "latency_ms", "latency_iqr_ms", "n", "low_ms", "high_ms", "other_cores",
                                       "verdict", "why"])


def _neighbours(used: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the verdicts on the rounds of one configuration by what ran beside them, each with its reason."""
    crowd, on_gpu = float(used["crowd"].median()), _on_gpu(used).any()
    used_words = f"{crowd:.0%} of the GPU" if on_gpu else f"{crowd:.1f} cores"
    yield crowd_verdict(crowd), f"others used {used_words} meanwhile"
    unknown = used.loc[_filled(used["gpu_unknown"]), "gpu_unknown"]
    if len(unknown):
        yield NOISY, f"who else used the GPU is not known: {unknown.iloc[0]}"
    if used["slow"].any():
        reasons = used.loc[_filled(used["gpu_throttled"]), "gpu_throttled"]
        why = f" ({reasons.iloc[0]})" if len(reasons) else ""
        yield NOISY, (f"the {'GPU was throttled' if on_gpu else 'processor was slow'} in {int(used['slow'].sum())} of "
                            f"{len(used)} rounds{why}")


def unsettled(folder: Path, spare_cores: int) -> set[str]:
    """Return the configurations of one device whose rounds do not agree yet."""
    table = summarise(store.read(folder / "repeats.csv", "repeats"), spare_cores)
    return set(table.loc[table["verdict"] != STABLE, "config"])


def _device_table(folder: Path, device: str, identity: store.Facts) -> pd.DataFrame:
    """Return the ``sweep`` rows of one device.

    A configuration failed if one of its visits failed or repeated the result before it; one that was never visited has no row.
    """
    configs = store.read(folder / "configs.csv", "configs").drop_duplicates("config", keep="last")
    visits = store.read(folder / "repeats.csv", "repeats")
    work = (configs["flops"] + configs["bytes"]).set_axis(configs["config"])
    repeated = stale(visits["latency_ms"], visits["config"].map(work))
    visits = visits.assign(status=visits["status"].mask(repeated, "failed"),
                           reason=visits["reason"].mask(repeated, "it repeats the result before it to the last digit"))
    failed = visits[visits["status"] != "ok"].drop_duplicates("config").set_index("config")["reason"]
    frame = configs[(configs["status"] != "ok") | configs["config"].isin(visits["config"])]
    frame = frame.merge(summarise(visits, identity.get("spare_cores", 0)), on="config", how="left")
    frame["status"] = frame["status"].mask(frame["config"].isin(failed.index), "failed")
    broken, path = frame["status"] != "ok", folder / "energies.csv"  # which a folder of an older version lacks
    loops = store.read_all([path] if path.exists() else [], "energies").drop_duplicates("config", keep="last")
    frame = frame.merge(loops.drop(columns=["calls", "loop_s"]), on="config", how="left").fillna(
        {"energy_method": NOT_MEASURED})
    frame["energy_reason"] = frame["energy_reason"].where(frame["config"].isin(loops["config"]),
                                                          np.where(broken, "it has no time either", _NO_LOOP))
    frame.loc[broken, ["latency_ms", "latency_iqr_ms", "low_ms", "high_ms", "other_cores", "n"]] = np.nan
    values = pd.DataFrame(list(map(json.loads, frame["parameters"])), index=frame.index)
    seconds = frame["latency_ms"] / 1e3
    return frame.join(values.reindex(columns=list(PARAMETERS))).assign(
        reason=frame["config"].map(failed).fillna(frame["reason"]).where(broken, frame["why"]),
        n=frame["n"].fillna(0).astype(int),
        verdict=frame["verdict"].where(~broken, UNUSABLE), device=device, gflops=frame["flops"] / seconds / 1e9,
        gbps=frame["bytes"] / seconds / 1e9, tf32=bool(identity.get("tf32")),
        **{name: identity[name] for name in ("hardware_id", "software_id", "threads")})[columns("sweep")]


def derive(folder: Path, facts: store.Facts) -> pd.DataFrame:
    """Derive the table of a sweep (all devices) from its raw files, and write it."""
    tables = [_device_table(raw_files.raw_folder(folder, device), device, identity)
              for device, identity in facts["devices"].items()]
    table = pd.concat([part for part in tables if len(part)] or tables, ignore_index=True)
    return write(table, folder, facts)


def write(table: pd.DataFrame, folder: Path, facts: store.Facts) -> pd.DataFrame:
    """Write the table of a sweep with its provenance and, for convolutions, the files of ``export``; return it."""
    path = store.write(table, folder / "sweep.parquet", "sweep", derived=True)
    store.write_meta(path, "sweep", **facts)
    export.write(table, folder)
    return table


def stale(latency: pd.Series, work: pd.Series) -> pd.Series:
    """Return which rows repeat the row before them to the last digit although their work differs.

    A time that three rows in a row have, and no row apart from them, was read from the last result and not measured. A clock of
    coarse ticks gives equal times elsewhere too. ``latency`` and ``work`` (FLOPs from the shapes) are aligned, in the order of
    measuring.
    """
    known = latency.dropna()
    again, work = known == known.shift(), work[known.index]
    alone = (~again).groupby(known).transform("sum") == 1
    repeated = alone & again & (again.shift(-1, fill_value=False) | again.shift(fill_value=False)) & work.ne(work.shift())
    return repeated.reindex(latency.index, fill_value=False)


@dataclass(frozen=True)
class Sweep:
    """A sweep as a notebook shows it: its table, the raw visits of all devices, its folder, when it began, and a note."""

    table: pd.DataFrame
    visits: pd.DataFrame
    folder: Path
    started_utc: str
    note: str

    @property
    def usable(self) -> pd.DataFrame:
        """Return the measured rows that are not unusable."""
        return self.table[is_usable(self.table)]


def read(folder: Path) -> Sweep:
    """Read a finished sweep back; InputError names what is missing. Reference sweeps carry no raw visits."""
    table, facts = store.read(folder / "sweep.parquet", "sweep"), store.read_json(folder / "sweep.meta.json")
    started_utc = facts.get("started_utc", "?")
    failures = "".join(f" FAILED: {reason}." for reason in facts.get("failures", {}).values())
    return Sweep(table, store.read_all(sorted(folder.glob("*/repeats.csv")), "repeats"), folder, started_utc,
                 f"Measured here, {started_utc}, in {folder.name}.{failures}{export.emptiness(table)}")


def replay(p: SweepParams) -> Sweep:
    """Read the newest reference sweep that holds the wanted families, cut down to them; InputError lists what there is.

    ``device`` auto is the CPU, all every device that was swept.
    """
    available, ways = set(), points.timings(p.latency_type, p.cache)
    wanted = {"op": p.ops, **{name: {way[name] for way in ways} for name in ways[0]}}
    wanted |= {} if p.grid else {"dtype": (p.dtype,)}  # a grid has its own
    if p.device != "all":
        wanted["device"] = replayed_device(p.device).split(",")
    for folder in folders("replay", p.reference):
        for path in sorted((folder / "sweeps").glob("*/sweep.parquet"), reverse=True):
            sweep = read(path.parent)
            chosen = sweep.table[np.logical_and.reduce([sweep.table[name].isin(values) for name, values in wanted.items()])]
            available |= set(sweep.table["op"] + " " + sweep.table["dtype"] + " on " + sweep.table["device"])
            if set(p.ops) <= set(chosen["op"]):
                note = f"REPLAY of {path.parent.name}, measured {sweep.started_utc} on {folder.name}."
                return replace(sweep, table=chosen.reset_index(drop=True), note=note)
    raise InputError(f"the reference has no {p.cache} {p.latency_type} sweep of {choices(p.ops)} in {p.dtype} on {p.device}; "
                     f"it has: {choices(sorted(available)) or 'none'}")
