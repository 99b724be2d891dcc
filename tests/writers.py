"""Several writers at once, and writers killed as they start: ``python -m tests.writers ROUNDS KILLS``.

What they write is a scene of tests/scenes.py. Each line that one has written is noted apart; ``lost`` counts those that are not
in the files in the end. Runs in a process of its own, which imports a scene once and forks its writers.
"""

import collections
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

FORK = multiprocessing.get_context("fork")
END_S = 120.0  # a writer that takes longer than this hangs
KILLED_S = 0.05  # after its start a writer is killed, at the latest


def _write(scene, folder, notes, go):
    """Wait until ``go`` is there, then write a scene into a folder, noting every line."""
    from lib import store

    notes, write = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT), store.Lines.write

    def noting(self, line):
        write(self, line)
        os.write(notes, f"{self.path} {line.decode()}".encode())

    store.Lines.write = noting
    while not go.exists():
        time.sleep(0.0002)
    try:
        scene.write(folder)
    except BaseException:  # whatever it is, it is what is looked for
        os.write(notes, f"! {traceback.format_exc().strip().splitlines()[-1]}\n".encode())
        os._exit(1)


def _found(scene, folder, notes, ends):
    """Return how many noted lines are there, how many are not, and what is wrong with files and ends of writers."""
    noted = {line for path in notes if path.exists() for line in path.read_text().splitlines()}
    there = {f"{path} {line}" for path in folder.rglob("*") if path.suffix in (".csv", ".jsonl")
             for line in path.read_text().splitlines()}
    errors = {line for line in noted if line.startswith("!")}
    wrong = [*errors, *(f"a writer ended with {end}" for end in ends if end != 0)]
    return {"rows": len(there), "lost": len(noted - errors - there), "wrong": wrong or list(scene.wrong(folder))}


def _round(scene, place, crews, kills_s):
    """Return what is found after several crews wrote into one folder, one after another.

    ``kills_s``: when writers of the first crew are killed, by their numbers; None as an end is a writer that hung.
    """
    folder, notes, ends = place / "written", [], []
    for crew, count in enumerate(crews):
        own, go = [place / f"{crew}-{one}.txt" for one in range(count)], place / f"{crew}.go"
        writers = [FORK.Process(target=_write, args=(scene, folder, path, go)) for path in own]
        for writer in writers:
            writer.start()
        go.touch()
        begin, doomed = time.monotonic(), {} if crew else kills_s
        for one, at_s in sorted(doomed.items(), key=lambda pair: pair[1]):
            time.sleep(max(0.0, begin + at_s - time.monotonic()))
            writers[one].kill()
        for one, writer in enumerate(writers):
            writer.join(END_S)
            ends += [writer.exitcode] if one not in doomed else []
            writer.kill()
        notes += own
    return _found(scene, folder, notes, ends)


def summary(scene, rounds, kills):
    """Return how many lines writers have written, how many are lost, and what is wrong.

    In each of the rounds four, eight or two writers write at once, and half of them are killed meanwhile; each of the kills is
    of a writer that is alone, after which another one goes on.
    """
    total, wrong, draw, begin = collections.Counter(), [], random.Random(0), time.monotonic()
    races = (([count], {draw.randrange(count): draw.uniform(0, KILLED_S) for _ in range(count // 2)})
             for count in itertools.islice(itertools.cycle((4, 8, 2)), rounds))
    cuts = (([1, 1], {0: draw.uniform(0, KILLED_S)}) for _ in range(kills))
    for crews, kills_s in itertools.chain(races, cuts):
        with tempfile.TemporaryDirectory() as place:
            found = _round(scene, Path(place), crews, kills_s)
        wrong += found.pop("wrong")
        total.update(found)
    return {"rounds": rounds, "kills": kills, **total, "wrong": wrong, "seconds": round(time.monotonic() - begin, 1)}


if __name__ == "__main__":
    from tests.scenes import SCENES

    print(json.dumps({scene.__name__: summary(scene(), *map(int, sys.argv[1:])) for scene in SCENES}))
