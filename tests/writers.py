"""Several writers at once, and writers killed as they start: ``python -m tests.writers sweep --rounds 100 --kills 1000``.

What they write is a scene of tests/scenes.py. Each line that one has written is noted apart; ``lost`` counts those that are not
in the files in the end. Runs in a process of its own, which imports a scene once and forks its writers.
"""

import argparse
import collections
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

END_S = 120.0  # a writer that takes longer than this hangs


class Writer:
    """A process that waits for ``go``, then writes a scene into a folder, noting every line."""

    def __init__(self, scene, folder, notes):
        gate, self._gate = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(gate)
            return
        notes, status = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1
        try:
            os.read(gate, 1)
            _note_lines(notes)
            scene.write(folder)
            status = 0
        except BaseException:  # whatever it is, it is what is looked for
            os.write(notes, f"! {traceback.format_exc().strip().splitlines()[-1]}\n".encode())
        os._exit(status)

    def go(self):
        os.write(self._gate, b"g")
        os.close(self._gate)
        return self

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def end(self):
        """Wait until it has ended; return its exit status, minus a signal, or None when it hung."""
        last = time.monotonic() + END_S
        while time.monotonic() < last:
            if (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                return os.waitstatus_to_exitcode(ended[1])
            time.sleep(0.001)
        self.kill()
        os.waitpid(self.pid, 0)
        return None


def _note_lines(notes):
    from lib import store

    write = store.Lines.write

    def noting(self, line):
        write(self, line)
        os.write(notes, f"{self.path} {line.decode()}".encode())

    store.Lines.write = noting


def _found(scene, folder, notes, ends):
    """Return how many noted lines are there, how many are not, and what is wrong with files and ends of writers."""
    noted = {line for path in notes if path.exists() for line in path.read_text().splitlines()}
    there = {f"{path} {line}" for path in folder.rglob("*") if path.suffix in (".csv", ".jsonl")
             for line in path.read_text().splitlines()}
    errors = {line for line in noted if line.startswith("!")}
    wrong = [*errors, *(f"a writer ended with {end}" for end in ends if end != 0)]
    return {"rows": len(there), "lost": len(noted - errors - there), "wrong": wrong or list(scene.wrong(folder))}


def race(scene, home, sizes, rounds, draw):
    """Yield what is found after each round of so many writers at once, by turns; half of them are killed meanwhile."""
    for number in range(rounds):
        writers = sizes[number % len(sizes)]
        folder, notes = home / f"race-{number}", [home / f"race-{number}-{one}.txt" for one in range(writers)]
        crew = [Writer(scene, folder, path) for path in notes]
        begin, doomed = time.monotonic(), {draw.randrange(writers): draw.uniform(0, 0.05) for _ in range(writers // 2)}
        for writer in crew:
            writer.go()
        for one, at_s in sorted(doomed.items(), key=lambda pair: pair[1]):
            time.sleep(max(0.0, begin + at_s - time.monotonic()))
            crew[one].kill()
        ends = [writer.end() for writer in crew]
        yield _found(scene, folder, notes, [end for one, end in enumerate(ends) if one not in doomed])


def cut(scene, home, kills, within_s, draw):
    """Yield what is found after each writer that was killed within ``within_s`` of its start, and one that goes on."""
    for number in range(kills):
        folder, notes = home / f"cut-{number}", [home / f"cut-{number}-{one}.txt" for one in range(2)]
        writer = Writer(scene, folder, notes[0]).go()
        time.sleep(draw.uniform(0, within_s))
        writer.kill()
        writer.end()
        yield _found(scene, folder, notes, [Writer(scene, folder, notes[1]).go().end()])


def run(*words):
    """Run this module in a process of its own with ``words``; return its summary, a scene each."""
    command = [sys.executable, "-m", "tests.writers", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else {"": {"wrong": [done.stderr]}}


def summary(scene, sizes, rounds, kills, within_s, seed=0):
    """Return how many lines writers have written, how many are lost, and what is wrong, after rounds of both kinds."""
    total, wrong, draw, begin = collections.Counter(), [], random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for one in itertools.chain(race(scene, home, sizes, rounds, draw), cut(scene, home, kills, within_s, draw)):
            wrong += one.pop("wrong")
            total.update(one)
    return {"rounds": rounds, "kills": kills, **total, "wrong": wrong, "seconds": round(time.monotonic() - begin, 1)}


if __name__ == "__main__":
    from tests.scenes import SCENES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", choices=SCENES)
    parser.add_argument("--writers", type=int, nargs="+", default=[2, 4, 8], help="at once, by turns")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--within-s", type=float, default=0.05, help="when, after a start")
    options = parser.parse_args()
    print(json.dumps({name: summary(SCENES[name](), options.writers, options.rounds, options.kills, options.within_s)
                      for name in options.scenes}))
