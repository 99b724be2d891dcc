"""Measured training throughputs published with Gavel (OSDI 2020), and job mixes drawn from them."""

import ast
import json
from math import sqrt
from pathlib import Path

import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.schedule import job_mixes
from lib.schedule.problem import Fleet, Problem

TYPES = ("v100", "p100", "k80")
FILE = "throughputs.csv"
SPAN_S = (600 * sqrt(10), 600_000.0)


def bring_in(path: Path | None) -> tuple[Path, int]:
    """Turn Gavel's throughput file into the table ``throughputs`` in ``data/imported/gavel``; return the file and its rows.

    The layout: device type -> text of a tuple (job type, devices) -> ``null``: steps/s alone. Raises InputError for another.
    """
    if path is None:
        raise InputError("import gavel needs the path of simulation_throughputs.json (stanford-futuredata/gavel, scheduler/)")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = []
        for device, entries in content.items():
            for text, rates in entries.items():
                job, devices = ast.literal_eval(text)
                rows.append({"job_type": str(job), "devices": int(devices), "device": str(device),
                             "steps_per_s": float(rates["null"])})
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no throughput file of Gavel ({type(error).__name__}: {error})") from None
    table = pd.DataFrame(rows)
    target = paths.IMPORTED / "gavel" / FILE
    store.write(table, target, "throughputs", derived=True)
    store.write_meta(target, "throughputs", source=str(path.name), licence="MIT, stanford-futuredata/gavel")
    return target, len(table)


def single(table: pd.DataFrame, types: tuple[str, ...] = TYPES) -> pd.DataFrame:
    """Return steps/s of the jobs for one device, a row a job type and a column a device type; 0: does not fit.

    Raises InputError where a device type is not in the table.
    """
    lacking = set(types) - set(table["device"])
    if lacking:
        raise InputError(f"no throughputs of {choices(sorted(lacking))}; there are: {choices(sorted(set(table['device'])))}")
    alone = table[(table["devices"] == 1) & table["device"].isin(types)]
    return alone.pivot_table(index="job_type", columns="device", values="steps_per_s")[list(types)].sort_index()


def mix(rates: pd.DataFrame, count: int, devices: int, seed: int, load: float = 0.0) -> Problem:
    """Draw jobs over the job types, 10^1.5 to 10^4 minutes long on their fastest type, for so many devices of each type."""
    return job_mixes.draw(rates, Fleet.of(dict.fromkeys(rates.columns, devices)), count, seed, load, SPAN_S)
