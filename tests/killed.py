"""Runs of light jobs killed with SIGKILL within 50 ms of their start, and resumed: ``python -m tests.killed KILLS SEED``.

What the test and the benchmark of kills share. A run starts in a fork of this process, in which all is imported already: the
50 ms are those of the run itself, from the birth of its journal to its record. Every other run is killed not at a random
moment, but before one of the statements that its journal executes, each in turn: some windows are narrow.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

JOBS, WITHIN_S = 6, 0.05
STATEMENTS = 60  # that a whole run executes, about


class Inline:
    """A worker without a process: it calls a task as it is sent, so that all of a run happens in one process."""

    def __init__(self, slot, limits):
        self.outbox = [("ready", 0)]

    def send(self, *message):
        from lib.schedule.runtime.worker_process import function

        if message[0] == "run":
            _, token, call, arguments = message
            self.outbox.append(("done", token, function(call)(None, **arguments)))

    def messages(self):
        messages, self.outbox = self.outbox, []
        return messages

    def shut_down(self):
        pass


def prepared(home):
    """Return jobs that each leave a line beside ``home``, on two slots."""
    from dataclasses import replace

    import numpy as np

    from lib.schedule.policies import registry
    from lib.schedule.problem import Jobs
    from lib.schedule.runtime.jobs_file import PreparedJobs
    from lib.schedule.runtime.journal import Spec
    from lib.schedule.runtime.local_site import fleet_of
    from lib.schedule.runtime.workers import Slot

    specs = tuple(Spec(f"j{number}", "tests.light:marked", {"path": str(home / f"j{number}"), "value": number})
                  for number in range(JOBS))
    slots = (Slot("cpu[0]"), Slot("cpu[1]"))
    jobs = replace(Jobs.plain(JOBS), ids=tuple(spec.job_id for spec in specs), job_class=np.zeros(JOBS, int))
    return PreparedJobs(specs, jobs, slots, fleet_of(slots), np.full((JOBS, 1), 0.01), registry.policy("first-come"),
                        "first-come", Inline)


def state(folder):
    """Return how far a killed run had come, and which jobs had ended."""
    if not (folder / "run.sqlite").exists():
        return "no journal", set()
    if (folder / "ran.json").exists():
        return "recorded", {f"j{number}" for number in range(JOBS)}
    base = sqlite3.connect(f"file:{folder / 'run.sqlite'}?mode=ro", uri=True)
    try:
        ended = {name for (name,) in base.execute("SELECT job_id FROM ends")}
        return ("ended" if ended else "begun"), ended
    except sqlite3.DatabaseError:
        return "born", set()
    finally:
        base.close()


def _dying(statement):
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


def trial(home, moment_s=None, statement=None):
    """Kill a run after a moment or before a statement, and resume it; return how far it had come, and what is wrong now."""
    from lib.schedule.runtime import jobs_file, run_record

    folder, wrong = home / "run", []
    child = os.fork()
    if not child:
        try:
            if statement is not None:
                _dying(statement)
            jobs_file.run(prepared(home), folder)
        finally:
            os._exit(0)
    if moment_s is not None:
        time.sleep(moment_s)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reached, ended = state(folder)
    effects = {name: _effects(home, name) for name in ended}
    try:
        jobs_file.run(prepared(home), folder)
        record = run_record.read(folder)
    except Exception as error:  # whatever it is, it is what is looked for
        return reached, [f"{type(error).__name__}: {error}"]
    if sorted(record.ends["job_id"]) != sorted(f"j{number}" for number in range(JOBS)):
        wrong.append(f"ended: {sorted(record.ends['job_id'])}")
    if set(record.ends["status"]) != {"done"}:
        wrong.append(f"statuses: {sorted(record.ends['status'])}")
    wrong += [f"{name} ran again though its end was recorded" for name in ended if _effects(home, name) != effects[name]]
    wrong += [f"{name} took no effect" for name in record.ends["job_id"] if not _effects(home, name)]
    return reached, wrong


def _effects(home, name):
    path = home / f"{name}.done"
    return path.read_text().count("\n") if path.exists() else 0


def run(kills, seed):
    """Kill so many runs; return how far they had come, and what was wrong."""
    from lib.schedule.runtime import executor, jobs_file

    executor._TICK_S = 0.002
    draw, reached, wrong, begin = random.Random(seed), Counter(), [], time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        jobs_file.run(prepared(Path(top)), Path(top) / "first")  # all is imported now
        for number in range(kills):
            home = Path(top) / str(number)
            home.mkdir()
            how_far, problems = trial(home, statement=number // 2) if number % 2 == 0 and number // 2 < STATEMENTS else \
                trial(home, draw.uniform(0, WITHIN_S))
            reached[how_far] += 1
            wrong += [f"kill {number}, {how_far}: {text}" for text in problems]
    return {"kills": kills, "seconds": round(time.monotonic() - begin, 1), "reached": dict(reached), "wrong": wrong}


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("kills", type=int)
    asked.add_argument("seed", type=int)
    given = asked.parse_args()
    summary = run(given.kills, given.seed)
    print(json.dumps(summary))
    sys.exit(bool(summary["wrong"]))
