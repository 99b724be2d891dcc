"""Runs of light jobs cut short, and resumed: ``python -m tests.killed KILLS SEED``. What their test and benchmark share.

A run starts in a fork of this process, in which all is imported already. It is killed within 50 ms of its start: at a random
moment or, as some windows are narrow, before one of the statements that its journal executes, each in turn. Some runs are not
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
from functools import partial
from pathlib import Path

from tests import python

NAMES, WITHIN_S = ("j0", "j1", "j2", "j3", "j4", "j5"), 0.05
JOBS = len(NAMES)
STATEMENTS = 60  # of a journal, as many as a run executes
SIZES = (0, 20, 40, 80)  # KiB that a file may have


class Inline:
    """A worker without a process: it calls a task as it is sent, so that all of a run happens in one process."""

    def __init__(self, slot, limits):
        self.outbox = [("ready", 0)]

    def send(self, *message):
        from lib.schedule.runtime.worker_process import Job, _outcome

        if message[0] == "run":
            self.outbox.append(_outcome(*message[1:], Job("cpu[0-1]", 1)))

    def messages(self):
        messages, self.outbox = self.outbox, []
        return messages

    def shut_down(self):
        pass


def prepared(home):
    """Return jobs that each leave a line in ``home``, on two slots."""
    from dataclasses import replace

    import numpy as np

    from lib.schedule.policies import registry
    from lib.schedule.problem import Jobs
    from lib.schedule.runtime.executor import PreparedJobs
    from lib.schedule.runtime.journal import Spec
    from lib.schedule.runtime.workers import Slot

    specs = tuple(Spec(name, "tests.light:marked", {"path": str(home / name), "value": 0}) for name in NAMES)
    slots = (Slot("cpu[0]"), Slot("cpu[1]"))
    jobs = replace(Jobs.plain(JOBS), ids=NAMES, job_class=np.zeros(JOBS, int))
    return PreparedJobs(specs, jobs, slots, np.full((JOBS, 1), 0.01), registry.policy("first-come"),
                        "first-come", Inline)


def _killed_at(statement):
    """Let this process be killed before the journal's statement of that number."""
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
    from lib.errors import InputError
    from lib.schedule.runtime import jobs_file

    if statement is not None:
        _killed_at(statement)
    if size_kib is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_kib * 1024, resource.RLIM_INFINITY))
    try:
        jobs_file.run(prepared(home), folder)
    except InputError as error:
        if size_kib is None or "cannot be written" not in str(error) or "\n" in str(error):
            raise


def _state(folder):
    """Return how far a run had come that was cut short, and which of its jobs had ended."""
    if not (folder / "run.sqlite").exists():
        return "no journal", set()
    base = sqlite3.connect(folder / "run.sqlite")
    try:
        ended = {name for (name,) in base.execute("SELECT job_id FROM ends")}
        return f"{len(ended)} of {JOBS} ended", ended
    except sqlite3.OperationalError:
        return "empty journal", set()
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
    from lib.schedule.runtime import executor, jobs_file

    folder = home / "run"
    status = status_of(partial(_run_in_child, home, folder, statement, size_kib), moment_s)
    wrong = [] if status in (0, -signal.SIGKILL) else ["it ended with an error other than a refusal in one line"]
    wrong += [f"{path.name} can be read by others" for path in folder.glob("run.sqlite*") if path.stat().st_mode & 0o77]
    reached, ended = _state(folder)
    effects, again = _effects(home, ended), prepared(home)
    try:
        jobs_file.folder_of(Path("jobs.csv"), folder)
        _, ends, _ = executor.execute(again, folder)
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
    from lib.schedule.runtime import jobs_file
    from lib.schedule.runtime.engine import engine

    engine.TICK_S = 0.002
    draw = random.Random(seed)
    cuts = [{"statement": number * 2 // 3 % STATEMENTS} if number % 3 else {"moment_s": draw.uniform(0, WITHIN_S)}
            for number in range(kills)]
    return in_turn(trial, [*cuts, *({"size_kib": size} for size in SIZES)], kills,
                   lambda top: jobs_file.run(prepared(top), top / "first"))


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
