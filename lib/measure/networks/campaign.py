"""Many networks measured in interleaved rounds, resumable, and the table ``networks`` that they give."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import store
from lib.config.definitions import Campaign
from lib.errors import InputError, choices
from lib.measure import machine, statistics
from lib.measure.budget import Budget
from lib.measure.energy.trace import Energy
from lib.measure.gpus.watch import GpuUse
from lib.measure.networks import visits_file
from lib.measure.networks.case import Case
from lib.measure.networks.end_to_end import LEAST, in_a_process
from lib.measure.networks.visits_file import Results, Visits
from lib.measure.reference_kernel import SLOW, USUAL
from lib.progress import track
from lib.tables import NO_ENERGY, columns
from lib.work import networks


def cases(plan: Campaign, some: Sequence[str] = ()) -> list[tuple[Case, str]]:
    """Return the cases of a campaign, each with its memory (of the process: default, or kept); ``some`` names networks.

    Raises InputError for a network that is not in it, and for one in it that is none (a user's own is looked up when it runs).
    """
    known = list(dict.fromkeys(network for part in plan.sets for network in part.networks))
    if unknown := set(some) - set(known):
        raise InputError(f"no network {choices(sorted(unknown))} in the plan; there are: {choices(known)}")
    for name in known:
        if not networks.is_users(name):
            networks.network(name)
    several = [(Case(network, mode, batch, "", dtype, layout == "channels_last", compiled), memory) for part in plan.sets
               for memory in part.memory for network in part.networks for mode in part.modes for batch in part.batch_sizes
               for dtype in part.dtypes for layout in part.layouts for compiled in part.compiled]
    return [pair for pair in dict.fromkeys(several) if not some or pair[0].network in some]


def on_device(wanted: Sequence[tuple[Case, str]], device_id: str) -> list[tuple[Case, str]]:
    """Return the cases of a device: off the CPU the host's heap is no condition, and each runs with the default allocator."""
    on_host = not device_id.startswith(("cuda", "mps"))
    return list(dict.fromkeys(wanted if on_host else [(case, "default") for case, _ in wanted]))


def measure(wanted: Sequence[tuple[Case, str]], device_id: str = "cpu", rounds: int = 2, case_s: float = 1.0,
            budget_s: float = 0.0, raw: Path | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Measure networks in rounds of random order, a process a network; return the table ``networks`` and the identity.

    A case has ``case_s`` seconds a round, and five passes at least; no process starts after ``budget_s`` (0: no limit).
    ``raw``, a file of JSON lines, keeps every visit as it ends, but not those whose process died or whose GPU broke; a second
    call resumes after them, and one that comes meanwhile waits first. Passes while the processor was slower than usual do not
    count where five others exist.
    """
    device_id = str(machine.device(device_id))
    groups: dict[tuple[str, str], list[Case]] = {}
    for case, memory in on_device(wanted, device_id):
        groups.setdefault((case.network, memory), []).append(case)
    draw, keys = np.random.default_rng(0), list(groups)
    order = [(number, *keys[index]) for number in range(rounds) for index in draw.permutation(len(keys))]
    with visits_file.opened(raw) if raw else nullcontext() as file:
        visits, identity = visits_file.read(raw, device_id, groups) if raw else ({}, {})
        budget = Budget(budget_s)
        for key in track([key for key in order if key not in visits], "networks"):
            if budget.spent:
                break
            results, ids = in_a_process(groups[key[1:]], device_id, case_s, key[2])
            visits[key], identity = results, ids or identity
            if file and ids:  # not what was lost: a second call measures it
                file.write(visits_file.line(key, device_id, results, ids))
    return summarise(visits, identity or {**machine.identity(), "threads": 0}, device_id), identity


def kernel_ms(rows: pd.DataFrame, raw: Path) -> pd.Series:
    """Return the median time of the reference kernel beside each row of a table ``networks``, by its visits in ``raw``.

    Of the passes that the row's latency is the median of.
    """
    passes: dict[tuple, list[float]] = {}
    for visit in visits_file.recorded(raw):
        for result in (one for one in visit.results if not one.reason):
            one = result.case
            case = (one.network, one.mode, one.batch_size, one.dtype, one.channels_last, one.compiled, visit.memory)
            passes.setdefault(case, []).extend(result.kernel_ms)
    usual_ms = _usual_limit_ms([ms for several in passes.values() for ms in several])
    medians = {case: np.median(np.array(several)[_counting(np.array(several), usual_ms)]) for case, several in passes.items()}
    cases = rows[["network", "mode", "batch_size", "dtype", "channels_last", "compiled", "memory"]].itertuples(False, None)
    return pd.Series([medians.get(case, np.nan) for case in cases], index=rows.index, dtype=float)


def _usual_limit_ms(kernel_ms: Sequence[float]) -> float:
    """Return what the reference kernel takes at most on a processor as fast as usual, by its time beside all passes."""
    return SLOW * float(np.percentile(kernel_ms, USUAL)) if len(kernel_ms) and np.isfinite(kernel_ms).all() else np.inf


def _usual(kernel_ms: np.ndarray, usual_ms: float) -> np.ndarray:
    """Return which passes found the processor as fast as usual; all where that is not known."""
    return kernel_ms <= usual_ms if np.isfinite(usual_ms) else np.ones(len(kernel_ms), bool)


def _counting(kernel_ms: np.ndarray, usual_ms: float) -> np.ndarray:
    """Return which passes count: those on a processor as fast as usual, where there are enough of them, else all."""
    usual = _usual(kernel_ms, usual_ms)
    return usual if usual.sum() >= LEAST else np.ones(len(kernel_ms), bool)


def summarise(visits: Visits, identity: dict[str, Any], device_id: str) -> pd.DataFrame:
    """Return the table ``networks`` from the visits of all rounds."""
    usual_ms = _usual_limit_ms([ms for results in visits.values() for row in results for ms in row.get("yardstick_ms", ())])
    by_case: dict[tuple[Case, str], Results] = {}
    for (_, _, memory), results in visits.items():
        for row in results:
            by_case.setdefault((row["case"], memory), []).append(row)
    shared = {"device": device_id, **{name: identity[name] for name in ("threads", "hardware_id", "software_id")},
              "tf32": bool(identity.get("tf32"))}
    rows = [{**vars(case), "memory": memory, **shared, **_row(results, usual_ms)}
            for (case, memory), results in by_case.items()]
    return pd.DataFrame(rows, columns=columns("networks"))


def _row(results: Results, usual_ms: float) -> dict[str, Any]:
    """Return latency, spread, memory, status and verdict of one case from its visits."""
    good = [row for row in results if not row["reason"]]
    if not good:
        return {"status": "failed", "reason": results[0]["reason"], "n": 0, "verdict": statistics.VERDICTS[-1],
                **Energy(0.0, reason=results[0]["reason"]).columns}
    samples_ms, kernel_ms = (np.concatenate([row[name] for row in good]) for name in ("samples_ms", "yardstick_ms"))
    usual = _usual(kernel_ms, usual_ms)
    timing = statistics.Timing(samples_ms[_counting(kernel_ms, usual_ms)])
    few = (statistics.VERDICTS[1], "fewer than five passes on a processor as fast as usual")
    findings = [] if usual.sum() >= LEAST else [few]
    findings += [(gpu.verdict(), gpu.words()) for gpu in (GpuUse(**row["gpu"]) for row in good if row.get("gpu"))
                 if gpu.verdict() != statistics.VERDICTS[0]]
    return {"latency_ms": timing.median_ms, "latency_iqr_ms": timing.iqr_ms, "n": timing.n, "usual_share": float(usual.mean()),
            "rss_mb": max(row["rss_mb"] for row in good), "tensors_mb": max(row["tensors_mb"] for row in good), "status": "ok",
            "reason": "; ".join(dict.fromkeys(why for _, why in findings)),
            "verdict": statistics.worst(timing.verdict, *(verdict for verdict, _ in findings)),
            **_energy([row["energy"] for row in good if row.get("energy")])}


def _energy(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the energy columns of one case: the visit of the median energy, or why none has one."""
    measured = sorted((visit for visit in visits if np.isfinite(visit["energy_j"])), key=lambda visit: visit["energy_j"])
    if measured:
        return measured[(len(measured) - 1) // 2]
    return visits[0] if visits else Energy(0.0, reason=NO_ENERGY).columns


def write(table: pd.DataFrame, path: Path, **facts: Any) -> Path:
    """Write a table ``networks`` with its provenance."""
    store.write(table, path, "networks", derived=True)
    store.write_meta(path, "networks", **facts)
    return path
