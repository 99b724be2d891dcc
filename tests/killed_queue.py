"""A runner of the dashboard that is killed at random moments and started again, until all runs have ended.

Each run leaves a line whenever it begins and ends, with the time of this host's monotonic clock: so it
is seen whether a run ever ran twice at once. ``python -m tests.killed_queue FOLDER`` leads its queue.
"""

import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
SLOTS = 2


def opened(folder, wait_s=5.0):
    """Return the database of a folder, and a runner of it with light slots."""
    from lib.dashboard.database import Database
    from lib.dashboard.runner import Runner
    from lib.schedule.run.slots import Slot

    database = Database(f"sqlite:///{folder}/dashboard.db", wait_s)
    slots = [Slot(f"cpu[{number}]", cores=(0,), core_count=1) for number in range(SLOTS)]
    return database, Runner(database, slots=slots, warm_up="")


def add_runs(database, calls, **columns):
    """Add queued runs of (call, arguments), as the API does; return their ids."""
    from lib.dashboard import tables as db
    from lib.schedule.run.queue import QueueJob

    ids = []
    with database.writing() as session:
        session.add(project := db.Project(name=os.urandom(8).hex()))
        session.flush()
        for number, (call, arguments) in enumerate(calls):
            own = {"project_id": project.id, "name": f"r{number}"}
            config = db.TrainConfig(**own, kind="light", config_hash=f"{call} {number}", config_json={})
            session.add(run := db.Run(**own, folder=f"{project.id}/{number}", config=config))
            session.flush()
            session.add(QueueJob(job_id=run.id, task=call, arguments=arguments, job_class=call,
                                 arrival_s=time.time(), status=db.PREDICTING, **columns))
            ids.append(run.id)
    return ids


def start(folder, log=subprocess.DEVNULL):
    return subprocess.Popen([sys.executable, "-m", "tests.killed_queue", str(folder)], cwd=ROOT, stderr=log)


def wrong_in(database, ids, trails):
    """Return what is wrong with the ends of runs, and how often they began."""
    from lib.dashboard import tables as db

    wrong, begins = [], 0
    for run_id, trail in zip(ids, trails, strict=True):
        state = database.get(db.Run, run_id).state
        events = [json.loads(line) for line in trail.read_text().splitlines()] if trail.exists() else []
        kinds = [kind for kind, *_ in events]
        begins += kinds.count("begins")
        if state != "finished" or "ends" not in kinds:
            wrong.append(f"{run_id} is {state}: {kinds}")
        wrong += [f"{run_id} ran twice at once" for (_, first_s, pid), (kind, second_s, other) in pairwise(events)
                  if other != pid and kind == "ends"]
    return wrong, begins


def run(folder, runs, kills, every_s, within_s=120.0):
    """Run light runs while their leader is killed; return what became of them."""
    from lib.dashboard import tables as db

    draw, killed, begin = random.Random(0), 0, time.monotonic()
    trails = [folder / f"run-{number}" for number in range(runs)]
    database, _ = opened(folder)
    ids = add_runs(database, [("tests.light:trail", {"path": str(trail), "seconds": draw.uniform(0.05, 0.4)})
                              for trail in trails])
    leader, next_s = start(folder), begin + draw.uniform(*every_s)
    try:
        while time.monotonic() < begin + within_s:
            time.sleep(0.1)
            if sum(row.state in db.ENDS for row in database.rows(db.Run)) == runs and killed == kills:
                break
            if killed < kills and time.monotonic() > next_s:
                leader.kill()
                leader.wait()
                leader, killed, next_s = start(folder), killed + 1, time.monotonic() + draw.uniform(*every_s)
    finally:
        leader.kill()
        leader.wait()
    wrong, begins = wrong_in(database, ids, trails)
    return {"runs": runs, "kills": killed, "begun": begins, "seconds": round(time.monotonic() - begin, 1), "wrong": wrong}


if __name__ == "__main__":
    opened(Path(sys.argv[1]))[1].start()
    time.sleep(3600)
