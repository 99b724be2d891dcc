"""Many networks measured in interleaved rounds, resumable, and the table ``networks`` they give."""

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
from lib.errors import InputError, entry
from lib.measure import machine
from lib.measure.budget import Budget, interleaved
from lib.measure.energy.trace import Energy
from lib.measure.energy.windows import LEAST_S
from lib.measure.networks import visits_file
from lib.measure.networks.end_to_end import LATE, LEAST, PREPARE_S, MeasureOptions, in_a_process
from lib.measure.networks.visits_file import Result, Visit
from lib.measure.reference_kernel import SLOW, USUAL
from lib.measure.statistics import NOISY, UNUSABLE, Timing, judged
from lib.progress import track
from lib.tables import NO_ENERGY, columns
from lib.work import networks
from lib.work.run_config import RunConfig

Pair = tuple[RunConfig, str]  # and the memory of its process: default, or kept
_CASE, _PREPARED = ["case", "memory"], "prepared"


def cases(plan: Campaign, only: Sequence[str] = ()) -> list[Pair]:
    """Return the cases of a campaign, each with its memory; ``only`` of these networks.

    Raises InputError for a network that is not in the campaign or does not exist (a user's is looked
    up when it runs), and for an unknown runtime.
    """
    planned = list(dict.fromkeys(network for part in plan.sets for network in part.networks))
    for name in only:
        entry(planned, name, "network", "in the plan")
    for name in planned:
        if not networks.is_users(name):
            networks.network(name)
    pairs = {}
    for part in plan.sets:
        lists = (part.modes, part.batch_sizes, part.dtypes, part.layouts, part.compiled,
                 part.runtimes, part.threads, part.instances)
        for memory, (place, network) in product(part.memory, enumerate(part.networks)):
            for number, values in enumerate(product(*lists)):
                mode, batch, dtype, layout, compiled, runtime, threads, instances = values
                config = RunConfig(network, batch, "", mode, dtype, layout, compiled,
                                   runtime=runtime, threads=threads, instances=instances)
                config.check()
                if (place + number) % part.every == 0 and (not only or network in only):
                    pairs[config, memory] = None
    return list(pairs)


def on_device(wanted: Sequence[Pair], device_id: str) -> list[Pair]:
    """Return the cases of a device: off the CPU each runs with the default heap of the host.

    Those that only a CPU can run are left out there; InputError if no other is left.
    """
    if not device_id.startswith(("cuda", "mps")):
        return list(dict.fromkeys(wanted))
    able = [(config, "default") for config, _ in wanted if not config.is_for_cpu]
    if wanted and not able:
        raise InputError(f"each of these cases runs on a CPU alone, none on {device_id}")
    return list(dict.fromkeys(able))


def measure(wanted: Sequence[Pair], device_id: str = "cpu", rounds: int = 2, case_s: float = 1.0,
            budget_s: float = 0.0, raw: Path | None = None,
            energy_s: float = LEAST_S) -> tuple[pd.DataFrame, store.Facts]:
    """Measure networks in rounds of random order, a process a network; return the table and identity.

    Args:
        wanted: the cases, with the memory of their process.
        device_id: such as cpu or cuda:0.
        rounds: visits of each network.
        case_s: seconds of a case a round; five passes at least.
        budget_s: no process starts after it; 0: no limit.
        raw: a file of JSON lines that keeps each visit whose process survived. A second call resumes
            after them; a concurrent call waits first. Beside it, ``prepared/`` keeps exported and
            compiled networks until all rounds are done.
        energy_s: seconds of an energy loop after a case where there is a meter.

    Passes while the processor was slower than usual do not count where five others exist.
    """
    device_id = str(machine.device(device_id))
    groups = {}
    for config, memory in on_device(wanted, device_id):
        groups.setdefault((config.network, memory), []).append(config)
    order = [(number, *key) for number, key in interleaved(list(groups), rounds)]
    prepared = raw.with_name(_PREPARED).absolute() if raw else None
    with visits_file.opened(raw) if raw else nullcontext() as file:
        visits = visits_file.read(raw, device_id, groups) if raw else {}
        budget = Budget(budget_s)
        for key in track([key for key in order if key not in visits], "networks"):
            if budget.spent:
                break
            options = MeasureOptions(case_s, min(PREPARE_S, budget.left_s), prepared, energy_s)
            results, identity = in_a_process(groups[key[1:]], device_id, options, key[2])
            visits[key] = Visit(round=key[0], network=key[1], memory=key[2], device=device_id,
                                results=results, identity=identity)
            is_cut = options.prepare_s < PREPARE_S and any(LATE in one.reason for one in results)
            if file and identity and not is_cut:  # lost processes and cut ones: for a second call
                file.write(visits[key].line)
        if prepared and len(visits) == len(order):
            shutil.rmtree(prepared, ignore_errors=True)
    identities = [visit.identity for visit in visits.values() if visit.identity]
    identity = identities[-1] if identities else {}
    shared = identity or {**machine.identity(), "threads": 0}
    return summarise(visits.values(), shared, device_id), identity


def _passes(visits: Iterable[Visit]) -> pd.DataFrame:
    """Return all passes of some visits, their ms and those of the reference kernel, and which count.

    ``usual`` are those at usual processor speed, or all where it is unknown. Those count where a case
    has LEAST of them.
    """
    table = pd.DataFrame([(result.case, visit.memory, *times)
                          for visit in visits for result in visit.results for times in
                          zip(result.samples_ms, result.reference_kernel_ms, strict=True)],
                         columns=[*_CASE, "samples_ms", "reference_ms"])
    # a runtime's idle threads may spin, and slow the kernel
    same = table["case"].map(lambda config: (config.runtime, config.threads, config.instances))
    reference_ms = table["reference_ms"].astype(float)
    usual_ms = reference_ms.groupby(same).transform("quantile", USUAL / 100)
    usual = ~(reference_ms > SLOW * usual_ms)
    enough = usual.groupby([table[name] for name in _CASE], sort=False).transform("sum") >= LEAST
    return table.assign(usual=usual, counts=usual | ~enough)


def reference_ms(rows: pd.DataFrame, raw: Path) -> pd.Series:
    """Return the reference kernel's median ms beside each row of a table ``networks``, by its visits.

    The median is over the passes that count for the row's latency; NaN without a visit.
    """
    visits = list(visits_file.recorded(raw))
    passes = _passes(visits)
    by_case = passes[passes["counts"]].groupby(_CASE, sort=False)["reference_ms"].median()
    every = visits[-1].identity["threads"] if visits else 0
    medians = {(_on_threads(config, every), memory): ms for (config, memory), ms in by_case.items()}
    return pd.Series([medians.get((RunConfig.from_row(row), row["memory"]), np.nan)
                      for row in rows.to_dict("records")], index=rows.index, dtype=float)


def summarise(visits: Collection[Visit], identity: store.Facts, device_id: str) -> pd.DataFrame:
    """Return the table ``networks`` from the visits of all rounds."""
    passes = dict(list(_passes(visits).groupby(_CASE, sort=False)))
    shared = {"device": device_id, "tf32": bool(identity.get("tf32")),
              **{name: identity[name] for name in ("hardware_id", "software_id")}}
    results = {}
    for visit in visits:
        for result in visit.results:
            results.setdefault((result.case, visit.memory), []).append(result)
    rows = [{**shared, **_on_threads(config, identity["threads"]).columns, "memory": memory,
             **_row(visited, passes.get((config, memory)))}
            for (config, memory), visited in results.items()]
    return pd.DataFrame(rows, columns=columns("networks"))


def _on_threads(config: RunConfig, every: int) -> RunConfig:
    return replace(config, threads=config.threads or every)


def _row(results: list[Result], passes: pd.DataFrame | None) -> store.Facts:
    """Return latency, spread, memory, energy, status and verdict of one case from its visits."""
    if passes is None:
        reason = results[0].reason
        return {"status": "failed", "reason": reason, "n": 0, "verdict": UNUSABLE,
                **Energy(0.0, reason=reason).columns}
    good = [result for result in results if not result.reason]
    timing = Timing(passes.loc[passes["counts"], "samples_ms"].to_numpy())
    verdicts = [(timing.verdict, "")]
    if passes["usual"].sum() < LEAST:
        verdicts.append((NOISY, "fewer than five passes on a processor as fast as usual"))
    verdicts += [(result.gpu.verdict(), result.gpu.words()) for result in good if result.gpu]
    verdict, reason = judged(verdicts)
    return {"latency_ms": timing.median_ms, "latency_iqr_ms": timing.iqr_ms, "n": timing.n,
            "usual_share": passes["usual"].mean(),
            **{name: max(getattr(result, name) for result in good)
               for name in ("rss_mb", "tensors_mb", "prepare_s")},
            "status": "ok", "reason": reason, "verdict": verdict, **_energy(good)}


def _energy(results: list[Result]) -> store.Facts:
    """Return the columns of the median energy of a pass, or why no visit has one."""
    energies = [result.energy for result in results if result.energy]
    measured = [energy for energy in energies if np.isfinite(energy.energy_j)]
    if measured:
        measured.sort(key=lambda energy: energy.energy_j)
        return measured[(len(measured) - 1) // 2].model_dump()
    return energies[0].model_dump() if energies else Energy(0.0, reason=NO_ENERGY).columns


def write(table: pd.DataFrame, path: Path, **facts: Any) -> Path:
    """Write a table ``networks`` with its provenance."""
    store.write(table, path, "networks", derived=True)
    store.write_meta(path, "networks", **facts)
    return path
