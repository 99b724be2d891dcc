"""A dashboard whose server and agents are killed at random moments and started again, until all runs have ended.

Each run leaves a line for each time that it begins and ends, with the time of this host's monotonic clock: so it is seen
whether any two ever ran the same run at once.
"""

import json
import random
import time
from collections import Counter
from itertools import pairwise

from tests import agents as processes


def count_of(database, *conditions):
    from sqlalchemy import func, select

    from lib.dashboard import database as db

    with database.reading() as session:
        return session.scalar(select(func.count(db.Run.id)).where(*conditions))


def wait_until_running(database, count):
    """Return when so many runs have begun."""
    from lib.dashboard import database as db

    processes.until(lambda: count_of(database, db.Run.started_at.is_not(None)) >= count, 60)


def wrong_in(database, ids, trails):
    """Return what is wrong with the ends of runs, and how many attempts they had."""
    from sqlalchemy import select

    from lib.dashboard import database as db

    wrong, begins, lines = [], 0, {}
    with database.reading() as session:
        states = dict(session.execute(select(db.Run.id, db.Run.state)).all())
        for line in session.scalars(select(db.RunLog).order_by(db.RunLog.id)):
            lines.setdefault((line.run_id, line.attempt), []).append(line.n)
    wrong += [f"{run_id} is {states[run_id]}" for run_id in ids if states[run_id] != "finished"]
    wrong += [f"{key} has lines {numbers[:9]}..." for key, numbers in lines.items()
              if numbers != list(range(1, len(numbers) + 1))]
    for run_id, trail in zip(ids, trails, strict=True):
        events = [json.loads(line) for line in trail.read_text().splitlines()] if trail.exists() else []
        kinds = [what for what, *_ in events]
        begins += kinds.count("begins")
        if "ends" not in kinds:
            wrong.append(f"{run_id} never ended")
        wrong += [f"{run_id} ran twice at once: {pid} until {second_s}, {other} from {first_s}"
                  for (_, first_s, pid), (what, second_s, other) in pairwise(events) if other != pid and what == "ends"]
    return wrong, begins


class Cluster:
    """A server and its agents."""

    def __init__(self, folder, agents, silent_s):
        self.folder, self.silent_s, self.port = folder, silent_s, processes.free_port()
        self.log = (folder / "log").open("a")
        self.names = [f"a{number}" for number in range(agents)]
        self.processes = {name: self.start(name) for name in ("server", *self.names)}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, name):
        words = ("serve", self.folder, self.port, self.silent_s) if name == "server" else ("agent", self.url, name)
        return processes.start(*words, log=self.log)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()
        self.processes[name] = self.start(name)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.log.close()


def run(folder, runs, agents, kills, silent_s, every_s, within_s=120.0):
    """Run light runs while processes are killed; return what became of them."""
    from lib.dashboard import database as db
    from lib.dashboard.database_engine import Database

    draw, killed = random.Random(0), Counter()
    trails = [folder / f"run-{number}" for number in range(runs)]
    calls = [("tests.light:trail", {"path": str(trail), "seconds": draw.uniform(0.05, 0.4)}) for trail in trails]
    database = Database(f"sqlite:///{folder}/dashboard.db")
    ids, begin = processes.add_runs(database, calls), time.monotonic()
    cluster = Cluster(folder, agents, silent_s)
    try:
        ended, next_s = 0, begin + 1.5
        while ended < runs and time.monotonic() < begin + within_s:
            time.sleep(0.1)
            if killed.total() < kills and time.monotonic() > next_s:
                name = draw.choice(["server", *cluster.names])
                cluster.kill(name)
                killed["server" if name == "server" else "agents"] += 1
                next_s = time.monotonic() + draw.uniform(*every_s)
            ended = count_of(database, db.Run.state.in_(db.ENDS))
    finally:
        cluster.close()
    wrong, begins = wrong_in(database, ids, trails)
    return {"runs": runs, "ended": ended, "kills": killed.total(), "killed": dict(killed), "attempts": begins,
            "seconds": round(time.monotonic() - begin, 1), "wrong": wrong}
