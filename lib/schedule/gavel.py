"""Training throughputs that were published with Gavel (OSDI 2020), and job mixes drawn from them."""

import re
from math import sqrt
from pathlib import Path

import pandas as pd

from lib import store
from lib.config.base import mapping
from lib.errors import InputError, choices
from lib.schedule import job_mixes
from lib.schedule.problem import Fleet, Problem

TYPES = ("v100", "p100", "k80")
FILE = "throughputs.csv"
_MOST_PER_S = 1e9
_ALONE = "null"
_JOB = re.compile(r"\('([^'\\]{1,100})', ([1-9]\d{0,3})\)")
_SPAN_S = (600 * sqrt(10), 600_000.0)


def import_table(path: Path | None) -> tuple[Path, int]:
    """Turn Gavel's throughput file into the table ``throughputs`` in ``data/imported/gavel``; return the file and its rows.

    The layout: device type -> text of a tuple (job type, devices) -> ``null``: steps/s alone. Raises InputError for any other.
    """
    if path is None:
        raise InputError("import gavel needs the path of simulation_throughputs.json (stanford-futuredata/gavel, scheduler/)")
    from lib.measure import importers

    try:
        rows = _rows(path)
    except InputError as error:
        raise InputError(f"this is no throughput file of Gavel: {error}") from None
    target = importers.imported("gavel", FILE)
    store.write(pd.DataFrame(rows), target, "throughputs", derived=True)
    store.write_meta(target, "throughputs", source="gavel", origin=path.name, licence="MIT, stanford-futuredata/gavel")
    return target, len(rows)


def _rows(path: Path) -> list[dict[str, str | int | float]]:
    rows = []
    for device, entries in mapping(store.read_json(path), path).items():
        for text, rates in mapping(entries, path).items():
            job, rate = _JOB.fullmatch(text), rates.get(_ALONE) if isinstance(rates, dict) else None
            if not job or isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < _MOST_PER_S:
                raise InputError(f"{path}: {device!r}: {text[:60]!r} is no ('<job type>', <devices>) with {_ALONE!r}: steps/s")
            rows.append({"job_type": job[1], "devices": int(job[2]), "device": device, "steps_per_s": float(rate)})
    if not rows:
        raise InputError(f"{path} has no job")
    return rows


def single(table: pd.DataFrame) -> pd.DataFrame:
    """Return steps/s of single-device jobs, one row per job type and one column per type of TYPES; 0: does not fit.

    Raises InputError for a device type that is not in the table.
    """
    present = set(table["device"])
    if missing := sorted(set(TYPES) - present):
        raise InputError(f"no throughputs of {choices(missing)}; there are: {choices(sorted(present))}")
    alone = table[(table["devices"] == 1) & table["device"].isin(TYPES)]
    return alone.pivot_table(index="job_type", columns="device", values="steps_per_s")[list(TYPES)].sort_index()


def mix(rates: pd.DataFrame, count: int, devices: int, seed: int, load: float = 0.0) -> Problem:
    """Draw jobs over the job types, 10^1.5 to 10^4 minutes long on their fastest type, for ``devices`` of each type."""
    return job_mixes.draw(rates, Fleet.from_counts(dict.fromkeys(rates.columns, devices)), count, seed, load, _SPAN_S)
