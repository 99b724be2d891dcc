"""Runs of light jobs cut short, and resumed: ``python -m tests.killed KILLS SEED``. What their test and benchmark share.

A run starts in a fork of this process, in which all is imported already. It is killed within half a second: at a random
moment or, as some windows are narrow, before one of the statements that its queue executes, each in turn. Some runs are not
killed, but find that files cannot grow beyond some size, as on a full disk.
"""

import json
import os
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lib.errors import InputError
from lib.schedule.policies import policy_for
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run import jobs, jobs_file
from lib.schedule.run.jobs import PreparedJobs
from lib.schedule.run.processes import call
from lib.schedule.run.queue import QueueJob
from lib.schedule.run.slots import Slot, fleet_of
from tests import python

NAMES, WITHIN_S = ("j0", "j1", "j2", "j3", "j4", "j5"), 0.5
STATEMENTS = 99  # of a queue, as many as a run executes
SIZES = (0, 20, 40, 80)  # KiB that a file may have


class InlineWorkers:
    """Workers without processes: a task is called as it starts, so that all of a run happens in one process."""

    def __init__(self, slots):
        self.slots, self._ends = slots, []

    def start(self, attempt, task, arguments, devices):
        self._ends.append(call(task, arguments, ["cpu"] * len(devices), 1)._replace(attempt=attempt))

    def stop(self, attempt):
        self._ends = [end for end in self._ends if end.attempt != attempt]

    def poll(self, timeout_s):
        ends, self._ends = self._ends, []
        return ends

    def close(self):
        pass


def two_slots():
    return [Slot(f"cpu[{number}]", cores=(0,), core_count=1) for number in range(2)]


def prepared(rows, workers, policy="fcfs", predicted=0.02, **columns):
    """Return rows of a queue as prepared jobs; ``predicted`` is a number or seconds (jobs, types)."""
    fleet = fleet_of(workers.slots)
    table = replace(Jobs.plain(len(rows)), ids=tuple(row.job_id for row in rows),
                    devices=np.array([row.devices or 1 for row in rows]), **columns)
    seconds = np.broadcast_to(predicted, (len(rows), len(fleet.types)))
    policy = policy_for(policy) if isinstance(policy, str) else policy
    return PreparedJobs(rows, Problem(table, fleet, seconds, seconds), workers, policy, "fcfs")


def marked_jobs(home):
    """Return jobs that each leave a line in ``home``, on two slots."""
    rows = [QueueJob(job_id=name, task="tests.light:marked", devices=1, job_class="marked",
                     arrival_s=0.0, memory_mb=0.0, cpu_cores=0.0,
                     arguments={"path": str(home / name), "value": 0}) for name in NAMES]
    return prepared(rows, InlineWorkers(two_slots()))


def _killed_at(statement):
    """Let this process be killed before the queue's statement of that number."""
    connect, left = sqlite3.connect, [statement]

    def traced(_):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connected(*words, **options):
        base = connect(*words, **options)
        base.set_trace_callback(traced)
        return base

    sqlite3.connect = connected


def _run_in_child(home, folder, statement, size_kib):
    """Run until it ends, is killed, or is refused space in one line."""
    if statement is not None:
        _killed_at(statement)
    if size_kib is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_kib * 1024, resource.RLIM_INFINITY))
    try:
        jobs.run(marked_jobs(home), folder)
    except InputError as error:
        if size_kib is None or not any(words in str(error) for words in ("cannot be used", "cannot be written")):
            raise


def _state(folder):
    """Return how far a run had come that was cut short, and which of its jobs had ended."""
    if not (folder / "queue.sqlite").exists():
        return "no queue", set()
    base = sqlite3.connect(folder / "queue.sqlite")
    try:
        ended = {name for (name,) in base.execute("SELECT job_id FROM queue_jobs WHERE status = 'done'")}
        return f"{len(ended)} of {len(NAMES)} ended", ended
    except sqlite3.OperationalError:
        return "empty queue", set()
    finally:
        base.close()


def _effects(home, names):
    return {name: path.read_text().count("\n") if (path := home / f"{name}.done").exists() else 0 for name in names}


def status_of(call, moment_s):
    """Call in a fork, which is killed after ``moment_s`` if given; return its exit status, 1 where the call raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    if moment_s is not None:
        time.sleep(moment_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def trial(home, moment_s=None, statement=None, size_kib=None):
    """Cut a run short and resume it; return how far it had come, and what is wrong."""
    folder = home / "run"
    status = status_of(partial(_run_in_child, home, folder, statement, size_kib), moment_s)
    wrong = [] if status in (0, -signal.SIGKILL) else ["it ended with an error other than a refusal in one line"]
    wrong += [f"{path.name} can be read by others" for path in folder.glob("queue.sqlite*") if path.stat().st_mode & 0o77]
    reached, ended = _state(folder)
    effects = _effects(home, ended)
    try:
        jobs_file.folder_of(Path("jobs.csv"), folder)
        _, ends, _ = jobs.execute(marked_jobs(home), folder)
    except Exception as error:  # whatever it is, it is what is looked for
        return reached, [*wrong, f"{type(error).__name__}: {error}"]
    if sorted(ends["job_id"]) != [*NAMES] or set(ends["status"]) != {"done"}:
        wrong.append(f"ends: {ends[['job_id', 'status']].to_dict('records')}")
    now = _effects(home, NAMES)
    wrong += [f"{name} ran again though its end was recorded" for name in ended if now[name] != effects[name]]
    wrong += [f"{name} took effect {count} times" for name, count in now.items() if not 1 <= count <= 2]
    return reached, wrong


def run(kills, seed):
    """Kill so many runs, and fill the disk of some more; return how far they had come, and what was wrong."""
    draw = random.Random(seed)
    cuts = [{"statement": number * STATEMENTS // kills} if number % 3 else {"moment_s": draw.uniform(0, WITHIN_S)}
            for number in range(kills)]
    return in_turn(trial, [*cuts, *({"size_kib": size} for size in SIZES)], kills,
                   lambda top: jobs.run(marked_jobs(top), top / "first"))


def in_turn(trial, cuts, kills, first):
    """Return how far the trials of all cuts had come, and what was wrong; ``first`` imports everything before."""
    reached, wrong, begin = Counter(), [], time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        first(Path(top))
        for number, cut in enumerate(cuts):
            home = Path(top) / str(number)
            home.mkdir()
            how_far, problems = trial(home, **cut)
            reached[how_far] += 1
            wrong += [f"{cut}, {how_far}: {text}" for text in problems]
    return {"kills": kills, "seconds": round(time.monotonic() - begin, 1), "reached": dict(reached), "wrong": wrong}


def in_a_process(module, first, second=0):
    """Return what ``run`` of a module does, in a process of its own, as forks of this one may not be safe."""
    return json.loads(python("-m", module, first, second, status=None).stdout)


def main(run):
    """Print what ``run`` does with the numbers of the command line; end with status 1 where something was wrong."""
    summary = run(*map(int, sys.argv[1:]))
    print(json.dumps(summary))
    sys.exit(bool(summary["wrong"]))


if __name__ == "__main__":
    main(run)
