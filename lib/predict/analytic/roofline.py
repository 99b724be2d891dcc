"""The roofline: ceilings, what they allow at an arithmetic intensity, and points that were measured below them.

A point needs a measured time and bytes that do not come from that time: bytes derived from a time would put the point on the
roof by construction. Work without bytes is therefore counted and left out, and a point above its roof is shown there.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices, entry
from lib.measure.ceilings import counted
from lib.measure.statistics import VERDICTS
from lib.tables import columns

LAUNCHES = 10  # work of fewer launch overheads than this an operator is bound by launching it
WORK = ("label env arch backend batch_size precision elapsed_sec bytes_source kind family calls occurrences flops bytes level "
        "roof_dtype verdict hardware_id software_id").split()
LEFT_OUT = ("unusable", "without bytes", "without FLOPs", "without time", "without roof")


@dataclass(frozen=True)
class Roof:
    """The roof of one device for one element type: GFLOP/s, GB/s by memory level, and what each level holds in 10^6 bytes.

    ``source`` is measured or vendor; ``launch_us`` the cost of starting one operator, NaN where it is not known; ``doubtful``
    names what had unusable rows alone: a ceiling all the same, but perhaps too low.
    """

    device: str
    dtype: str
    source: str
    hardware_id: str
    peak_gflops: float
    peak_gbps: Mapping[str, float]
    holds_mb: Mapping[str, float] = field(default_factory=dict)
    launch_us: float = math.nan
    doubtful: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """Return cpu, cuda or mps; a vendor's device is reached as cuda."""
        return "cuda" if self.source == "vendor" else self.device.partition(":")[0]

    @property
    def last(self) -> str:
        """Return the level beyond all caches."""
        return "RAM" if "RAM" in self.peak_gbps else "device"

    def gbps(self, level: str = "") -> float:
        """Return the bandwidth of a level, empty for the one beyond the caches; InputError lists the levels."""
        return entry(self.peak_gbps, level or self.last, "level", f"of the roof of {self.device}")

    def attainable(self, ai: float, level: str = "") -> float:
        """Return the GFLOP/s that the roof allows at ``ai`` FLOPs a byte."""
        return min(self.peak_gflops, ai * self.gbps(level))

    def ridge_point(self, level: str = "") -> float:
        """Return the FLOPs a byte at which compute takes over from a level."""
        return self.peak_gflops / self.gbps(level)

    def bound(self, ai: float, level: str = "", elapsed_s: float = math.inf, calls: int = 1) -> str:
        """Return launch when ``calls`` operators take less than LAUNCHES overheads each, else which roof is the lower one."""
        if elapsed_s / calls < LAUNCHES * self.launch_us / 1e6:
            return "launch"
        return "compute" if ai >= self.ridge_point(level) else level or self.last

    def level_of(self, working_set: float) -> str:
        """Return the nearest level that holds ``working_set`` bytes; work that is repeated is served from there."""
        holding = [name for name, size_mb in self.holds_mb.items() if working_set <= size_mb * 1e6]
        return min(holding, key=self.holds_mb.get, default=self.last)


def roofs(ceilings: pd.DataFrame, overheads: pd.DataFrame | None = None) -> list[Roof]:
    """Return the roof of each element type from a table of ``ceilings`` (and the launch overhead from ``overheads``).

    The best usable row counts; where a level or element type has none, the best of all, marked doubtful. Raises InputError when
    the table mixes devices, machines, or measured with vendors' ceilings, or lacks memory beyond the caches or compute.
    """
    for column in ("source", "device", "hardware_id"):
        if len(names := sorted(set(ceilings[column]))) != 1:
            raise InputError(f"the ceilings of one roof are of one {column.replace('_', ' ')}, not of several: "
                             f"{choices(names) or 'none'}")
    device, source, hardware = ceilings[["device", "source", "hardware_id"]].iloc[0]
    of_compute = ceilings["level"] == "compute"
    memory = ceilings[~of_compute]
    peaks, doubted = _best(memory, "level", "peak_gbps")
    rates, doubted_rates = _best(ceilings[of_compute], "dtype", "peak_gflops")
    if not {"RAM", "device"} & set(peaks) or not rates:
        raise InputError(f"the ceilings of {device} lack memory beyond the caches, or compute; measure them with 01_machine")
    holds_mb = memory[~memory["level"].isin(("RAM", "device"))].groupby("level")["working_set_mb"].max().to_dict()
    launch = math.nan if overheads is None else float(overheads.set_index("what")["median_us"].get("launch", math.nan))
    return [Roof(device, dtype, source, hardware, peak, peaks, holds_mb, launch,
                 (*doubted, *({dtype} & set(doubted_rates)))) for dtype, peak in rates.items()]


def _best(rows: pd.DataFrame, key: str, column: str) -> tuple[dict[str, float], list[str]]:
    """Return the largest ``column`` of each ``key``, of its usable rows if it has any, and the keys that have none."""
    best = counted(rows).groupby(key)[column].max().reindex(rows[key].unique())
    doubtful = (rows["verdict"] == VERDICTS[-1]).groupby(rows[key]).all()
    return best.to_dict(), [name for name in best.index if doubtful[name]]


def vendor_ceilings(device: VendorDevice) -> pd.DataFrame:
    """Return what a vendor states of a device as rows of ``ceilings`` with source vendor; nothing in it was measured."""
    rows = [{"dtype": dtype, "level": "compute", "peak_gflops": peak} for dtype, peak in device.peak_gflops.items()]
    rows.append({"dtype": "any", "level": "device", "peak_gbps": device.peak_gbps})
    return pd.DataFrame(rows, columns=columns("ceilings")).assign(
        device=device.id, source="vendor", method=device.source, threads=0, n=0, verdict="stable",
        hardware_id=f"vendor:{device.id}", software_id="vendor")


def roof_table(roofs_: Sequence[Roof]) -> pd.DataFrame:
    """Tabulate roofs: one row per element type and memory level, with its ridge point in FLOPs per byte.

    ``doubtful``: the peak or the bandwidth has unusable rows alone.
    """
    return pd.DataFrame(
        [(roof.device, roof.source, roof.dtype, level, roof.peak_gflops, rate, roof.ridge_point(level),
          bool({roof.dtype, level} & set(roof.doubtful))) for roof in roofs_ for level, rate in roof.peak_gbps.items()],
        columns=["device", "source", "dtype", "level", "peak_gflops", "peak_gbps", "ridge_point", "doubtful"])


def roof_of(candidates: Sequence[Roof], row) -> Roof | None:
    """Return the roof of a row: its backend, its element type and, when measured, its machine."""
    return next((roof for roof in candidates if (roof.backend, roof.dtype) == (row.backend, row.roof_dtype)
                 and (roof.source == "vendor" or roof.hardware_id == row.hardware_id)), None)


def _refuse_mixtures(work: pd.DataFrame, candidates: Sequence[Roof]) -> None:
    sources, devices, roofed = ({getattr(roof, name) for roof in candidates} for name in ("source", "device", "hardware_id"))
    machines = sorted(set(work["hardware_id"]))
    strangers = [name for name in machines if name not in roofed]
    for mixed, words in (
            (len(sources) > 1, "measured and vendors' roofs are not mixed in one picture; take one of them"),
            (sources == {"vendor"} and len(devices) > 1,
             f"points are set against one vendor's device, not {choices(sorted(devices))}"),
            (len(machines) > 1, f"points of several machines are not mixed: {choices(machines)}"),
            (sources == {"measured"} and strangers, f"points of {choices(strangers)} cannot be set against the roof of "
             f"{choices(sorted(roofed))}; measure the ceilings of that machine with 01_machine")):
        if mixed:
            raise InputError(words)


def points(work: pd.DataFrame, candidates: Sequence[Roof]) -> pd.DataFrame:
    """Set ``work`` (columns WORK) against its roofs; return the table ``points``.

    ``level`` of a row says which memory level it is set against; empty is the one beyond the caches. ``attrs["left out"]``
    counts what could not become a point, by reason (LEFT_OUT). Raises InputError for a mixture of machines, of measured
    and vendors' roofs, or when no roof belongs to the work's machine.
    """
    _refuse_mixtures(work, candidates)
    rows, left = [], Counter()
    for row in work[WORK].itertuples(index=False):
        roof = roof_of(candidates, row)
        lacking = (row.verdict == VERDICTS[-1], not row.bytes > 0, not row.flops > 0, not row.elapsed_sec > 0, roof is None)
        if any(lacking):
            left[LEFT_OUT[lacking.index(True)]] += 1
        else:
            rows.append(_point(row, roof))
    frame = pd.DataFrame(rows, columns=columns("points"))
    frame.attrs["left out"] = {reason: left[reason] for reason in LEFT_OUT if left[reason]}
    return frame


def _point(row: Any, roof: Roof) -> dict[str, Any]:
    """Turn one row of work into a point below (or above) its roof."""
    level = row.level or roof.last
    ai, attained = row.flops / row.bytes, row.flops / row.elapsed_sec / 1e9
    attainable = roof.attainable(ai, level)
    rate = row.batch_size / row.elapsed_sec if row.batch_size else math.nan
    return {**row._asdict(), "level": level, "images_per_sec": rate, "ai": ai, "attained_gflops": attained,
            "peak_gflops": roof.peak_gflops, "peak_gbps": roof.gbps(level), "attainable_gflops": attainable,
            "below_roof": attainable / attained, "roof_source": roof.source,
            "bound": roof.bound(ai, level, row.elapsed_sec, row.calls)}


def seconds(parts: np.ndarray, roof: Roof) -> np.ndarray:
    """Return the seconds (n) of operators (n, 2: FLOPs, bytes) that each run at their own roof."""
    return _compute_and_move(parts, roof).max(axis=1)


def memory_share(parts: np.ndarray, roof: Roof) -> float:
    """Return the share of the operators' ``seconds`` that operators take which memory bounds."""
    times = _compute_and_move(parts, roof)
    return float(times[times[:, 1] > times[:, 0], 1].sum() / times.max(axis=1).sum())


def _compute_and_move(parts: np.ndarray, roof: Roof) -> np.ndarray:
    return np.asarray(parts) / np.array([roof.peak_gflops * 1e9, roof.gbps() * 1e9])
