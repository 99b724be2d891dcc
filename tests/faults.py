"""Runs of light jobs into which faults are thrown, by seed: ``python -m tests.faults FIRST COUNT`` says what became of them.

Imports nothing heavy at the top: every worker that it starts imports it again.
"""

import collections
import faulthandler
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.killed import main

HERE = ("exhaust",) if os.path.exists("/proc/self/statm") else ()  # only Linux says how much memory a process holds
ONCE = ("kill", "freeze", "hang", "starve", "fail", "slow", "leave", *HERE)
ALWAYS = ("fail", "kill", "starve", "odd")
POLICIES = ("first-come", "hybrid", "earliest-finish", "longest-first", "affinity", "matching")
AT_A_TIME, END_S = 8, 120.0  # seeds, as most of one is waiting; those that take longer than this hang


def jobs_of(seed, folder):
    """Return 3 to 6 jobs, most of which misbehave once, a few always; and what was thrown."""
    from lib.schedule.runtime.journal import Spec

    draw, specs, thrown = random.Random(seed), [], {}
    for number in range(draw.randint(3, 6)):
        name, chance, fault = f"j{number}", draw.random(), None
        if chance < 0.08:
            fault = thrown[name] = draw.choice(ALWAYS)
            specs.append(Spec(name, f"tests.light:{fault}", {}))
            continue
        if chance < 0.5 or number == 0:
            fault = thrown[name] = f"{draw.choice(ONCE)} once"
        specs.append(Spec(name, "tests.light:marked", {"path": str(folder / name), "value": number,
                                                       "fault": fault and fault.split()[0]}))
    return specs, thrown, draw


def trial(seed):
    """Run one seed; return its attempts, what was thrown, and what was found wrong."""
    from dataclasses import replace

    import numpy as np

    from lib.schedule.policies import registry
    from lib.schedule.problem import Jobs
    from lib.schedule.runtime import executor
    from lib.schedule.runtime.executor import Limits, ProcessWorker, Slot

    workers, limits = [], Limits(beat_s=0.1, silent_s=1.5, ready_s=60, grace_s=0.5, overrun_factor=5,
                                 least_s=random.Random(~seed).choice([1.0, 2.5]), attempts=3)

    def spawn(slot, limits):
        workers.append(ProcessWorker(slot, limits))
        return workers[-1]

    with tempfile.TemporaryDirectory() as home:
        specs, thrown, draw = jobs_of(seed, Path(home))
        jobs = replace(Jobs.plain(len(specs), [draw.choice([0.0, 0.0, 0.1]) for _ in specs]),
                       ids=tuple(spec.job_id for spec in specs))
        prepared = executor.PreparedJobs(
            specs, jobs, (Slot("cpu[0]"), Slot("cpu[1]")), np.full((len(specs), 1), 0.02),
            registry.policy(draw.choice(POLICIES)), spawn=spawn)
        attempts, ends, _ = executor.execute(prepared, Path(home) / "run", limits)
        lines = "".join(f"{path.stem}\n" * path.read_text().count("\n") for path in Path(home).glob("*.done"))
    effects = collections.Counter(lines.split())
    wrong = [f"{worker.process._process.name} is still there" for worker in workers if worker.process._process.exitcode is None]
    return attempts, thrown, wrong + list(_wrong(specs, attempts, ends, thrown, effects))


def _wrong(specs, attempts, ends, thrown, effects):
    if sorted(ends["job_id"]) != [spec.job_id for spec in specs]:
        yield f"ended: {sorted(ends['job_id'])}"
    for row in ends.itertuples():
        fails = thrown.get(row.job_id) in ALWAYS
        if row.status != ("failed" if fails else "done") or (fails and not row.reason):
            yield f"{row.job_id} is {row.status} ({row.reason}), thrown was {thrown.get(row.job_id)}"
        if not fails and row.result != {"value": int(row.job_id[1:])}:
            yield f"{row.job_id} gave {row.result}"
        if effects[row.job_id] != (not fails):
            yield f"{row.job_id} is {row.status} and took effect {effects[row.job_id]} times"
    for name, rows in attempts.groupby("job_id"):
        *earlier, last = rows["status"]
        if {*earlier} - {"retried", "moved"} or last not in ("done", "failed") or len(rows) > 3 + earlier.count("moved"):
            yield f"the attempts of {name} ended {earlier}, {last}"
    for device, rows in attempts.sort_values("start_s").groupby("device"):
        if (rows["start_s"].to_numpy()[1:] < rows["end_s"].to_numpy()[:-1] - 1e-6).any():
            yield f"attempts overlap on {device}"


def run(first, count):
    """Run so many seeds, some at a time; return a summary."""
    import numpy as np

    from lib.schedule.policies.hybrid import local_search

    local_search.plan(np.ones((2, 1)), np.zeros(2, int), np.zeros(2), 6_000)  # compiled before any trial would wait for it
    faulthandler.dump_traceback_later(END_S * (1 + count // AT_A_TIME), exit=True)  # of every thread: where it hangs
    kinds, reasons, wrong = collections.Counter(), collections.Counter(), []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for seed, (attempts, thrown, found) in enumerate(pool.map(trial, range(first, first + count)), first):
            kinds.update(thrown.values())
            reasons.update(attempts["status"] + ": " + attempts["reason"].fillna("").str.partition(" (attempt")[0])
            wrong += [f"seed {seed}: {text}" for text in found]
    return {"seeds": count, "thrown": kinds, "attempts": reasons, "wrong": wrong}


if __name__ == "__main__":
    main(run)
