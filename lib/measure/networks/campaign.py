"""Many networks measured in interleaved rounds, resumable, and the table ``networks`` that they give."""

import shutil
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import store
from lib.config.definitions import Campaign
from lib.errors import entry
from lib.measure import machine
from lib.measure.budget import Budget, interleaved
from lib.measure.energy.trace import Energy
from lib.measure.energy.windows import LEAST_S
from lib.measure.networks import visits_file
from lib.measure.networks.case import Case
from lib.measure.networks.end_to_end import LATE, LEAST, PREPARE_S, Conditions, in_a_process
from lib.measure.networks.visits_file import Result, Visit
from lib.measure.reference_kernel import SLOW, USUAL
from lib.measure.statistics import NOISY, UNUSABLE, Timing, judged
from lib.progress import track
from lib.tables import NO_ENERGY, columns
from lib.work import networks


def cases(plan: Campaign, only: Sequence[str] = ()) -> list[tuple[Case, str]]:
    """Return the cases of a campaign, each with its memory (of the process: default, or kept); ``only`` of these networks.

    Raises InputError for a network that is not in the campaign, or does not exist (a user's network is looked up when it runs).
    """
    planned = list(dict.fromkeys(network for part in plan.sets for network in part.networks))
    for name in only:
        entry(planned, name, "network", "in the plan")
    for name in planned:
        if not networks.is_users(name):
            networks.network(name)
    pairs = [(Case(network, mode, batch, "", dtype, layout == "channels_last", compiled, runtime, threads, instances), memory)
             for part in plan.sets for memory in part.memory for place, network in enumerate(part.networks)
             for number, (mode, batch, dtype, layout, compiled, runtime, threads, instances) in enumerate(product(
                 part.modes, part.batch_sizes, part.dtypes, part.layouts, part.compiled, part.runtimes, part.threads,
                 part.instances)) if (place + number) % part.every == 0]
    return [pair for pair in dict.fromkeys(pairs) if not only or pair[0].network in only]


def on_device(wanted: Sequence[tuple[Case, str]], device_id: str) -> list[tuple[Case, str]]:
    """Return the cases of a device: off the CPU the host's heap is no condition, and each runs with the default allocator."""
    on_host = not device_id.startswith(("cuda", "mps"))
    return list(dict.fromkeys(wanted if on_host else [(case, "default") for case, _ in wanted]))


def measure(wanted: Sequence[tuple[Case, str]], device_id: str = "cpu", rounds: int = 2, case_s: float = 1.0,
            budget_s: float = 0.0, raw: Path | None = None, energy_s: float = LEAST_S) -> tuple[pd.DataFrame, store.Facts]:
    """Measure networks in rounds of random order, a process a network; return the table ``networks`` and the identity.

    A case has ``case_s`` seconds a round, and five passes at least, then ``energy_s`` where there is a meter; no process starts
    after ``budget_s`` (0: no limit). ``raw``, a file of JSON lines, keeps each visit whose process survived; a second call
    resumes after them, and a concurrent call waits first. Beside it, ``prepared/`` keeps exported and compiled networks until
    all rounds are done; none takes longer to prepare than 300 s, or than is left of the budget. Passes while the processor was
    slower than usual do not count where five others exist.
    """
    device_id = str(machine.device(device_id))
    groups = {}
    for case, memory in on_device(wanted, device_id):
        groups.setdefault((case.network, memory), []).append(case)
    order = [(number, *key) for number, key in interleaved(list(groups), rounds)]
    with visits_file.opened(raw) if raw else nullcontext() as file:
        visits = visits_file.read(raw, device_id, groups) if raw else {}
        budget = Budget(budget_s)
        for key in track([key for key in order if key not in visits], "networks"):
            if budget.spent:
                break
            how = Conditions(case_s, min(PREPARE_S, budget.left_s), raw.with_name(_PREPARED).absolute() if raw else None,
                             energy_s)
            results, identity = in_a_process(groups[key[1:]], device_id, how, key[2])
            visits[key] = Visit(round=key[0], network=key[1], memory=key[2], device=device_id, results=results,
                                identity=identity)
            is_cut = how.prepare_s < PREPARE_S and any(LATE in result.reason for result in results)
            if file and identity and not is_cut:  # lost processes, and the budget's end, are for a second call
                file.write(visits[key].line)
        if raw and len(visits) == len(order):
            shutil.rmtree(raw.with_name(_PREPARED), ignore_errors=True)
    identities = [visit.identity for visit in visits.values() if visit.identity]
    identity = identities[-1] if identities else {}
    return summarise(visits.values(), identity or {**machine.identity(), "threads": 0}, device_id), identity


_CASE, _PREPARED = ["case", "memory"], "prepared"


def _passes(visits: Iterable[Visit]) -> pd.DataFrame:
    """Return all passes of some visits: case, memory, its time and that of the reference kernel in ms, and how it counts.

    ``usual`` are those at usual processor speed, or all where it is unknown. Those count where a case has LEAST of them.
    """
    table = pd.DataFrame([(result.case, visit.memory, *times) for visit in visits for result in visit.results
                          for times in zip(result.samples_ms, result.reference_kernel_ms, strict=True)],
                         columns=[*_CASE, "samples_ms", "reference_ms"])
    alike = table["case"].map(lambda case: (case.runtime, case.threads, case.instances))  # a runtime's idle threads may spin
    reference_ms = table["reference_ms"].astype(float)
    usual = ~(reference_ms > SLOW * reference_ms.groupby(alike).transform("quantile", USUAL / 100))
    enough = usual.groupby([table[name] for name in _CASE], sort=False).transform("sum") >= LEAST
    return table.assign(usual=usual, counts=usual | ~enough)


def reference_ms(rows: pd.DataFrame, raw: Path) -> pd.Series:
    """Return the median time of the reference kernel beside each row of a table ``networks``, by its visits in ``raw``.

    The median is over the passes that count for the row's latency.
    """
    visits = list(visits_file.recorded(raw))
    passes = _passes(visits)
    by_case = passes[passes["counts"]].groupby(_CASE, sort=False)["reference_ms"].median()
    every = visits[-1].identity["threads"] if visits else 0
    medians = {(*vars(_on_threads(case, every)).values(), memory): value for (case, memory), value in by_case.items()}
    names = [*Case.__dataclass_fields__, "memory"]
    return pd.Series([medians.get(key, np.nan) for key in rows[names].itertuples(False, None)], index=rows.index, dtype=float)


def summarise(visits: Collection[Visit], identity: store.Facts, device_id: str) -> pd.DataFrame:
    """Return the table ``networks`` from the visits of all rounds."""
    passes = dict(list(_passes(visits).groupby(_CASE, sort=False)))
    shared = {"device": device_id, **{name: identity[name] for name in ("threads", "hardware_id", "software_id")},
              "tf32": bool(identity.get("tf32"))}
    results = {}
    for visit in visits:
        for result in visit.results:
            results.setdefault((result.case, visit.memory), []).append(result)
    rows = [{**shared, **vars(_on_threads(key[0], shared["threads"])), "memory": key[1], **_row(visited, passes.get(key))}
            for key, visited in results.items()]
    return pd.DataFrame(rows, columns=columns("networks"))


def _on_threads(case: Case, every: int) -> Case:
    return replace(case, threads=case.threads or every)


def _row(results: list[Result], passes: pd.DataFrame | None) -> store.Facts:
    """Return latency, spread, memory, status and verdict of one case from its visits."""
    if passes is None:
        return {"status": "failed", "reason": results[0].reason, "n": 0, "verdict": UNUSABLE,
                **Energy(0.0, reason=results[0].reason).columns}
    good = [result for result in results if not result.reason]
    timing = Timing(passes.loc[passes["counts"], "samples_ms"].to_numpy())
    slow = (NOISY, "fewer than five passes on a processor as fast as usual")
    verdict, reason = judged([(timing.verdict, ""), *([slow] if passes["usual"].sum() < LEAST else []),
                              *((gpu.verdict(), gpu.words()) for result in good if (gpu := result.gpu))])
    energies = [result.energy for result in good if result.energy]
    measured = sorted((energy for energy in energies if np.isfinite(energy.energy_j)), key=lambda energy: energy.energy_j)
    energies = measured or energies[:1]  # of the median one, or why no visit has one
    return {"latency_ms": timing.median_ms, "latency_iqr_ms": timing.iqr_ms, "n": timing.n,
            "usual_share": passes["usual"].mean(),
            "rss_mb": max(result.rss_mb for result in good), "tensors_mb": max(result.tensors_mb for result in good),
            "prepare_s": max(result.prepare_s for result in good), "status": "ok", "reason": reason, "verdict": verdict,
            **(energies[(len(energies) - 1) // 2].model_dump() if energies else Energy(0.0, reason=NO_ENERGY).columns)}


def write(table: pd.DataFrame, path: Path, **facts: Any) -> Path:
    """Write a table ``networks`` with its provenance."""
    store.write(table, path, "networks", derived=True)
    store.write_meta(path, "networks", **facts)
    return path
