"""Services cut short, and opened again: ``python -m tests.served KILLS SEED``.

A fork of this process opens a service, submits jobs to it and cancels some while it runs, and is killed: at a random moment or
before one of the statements that its journal executes. It writes down each call that has returned, which must then hold.
"""

import random
import signal
from collections import Counter
from functools import partial

from tests import killed
from tests.killed import Inline, _effects, _killed_at

JOBS, WITHIN_S, STATEMENTS = 8, 0.04, 130
NAMES = [f"j{number}" for number in range(JOBS)]


def opened(folder, observer=None, policy="first-come", predicted_s=lambda spec, device: 1.0, spawn=Inline, slots=("cpu[0]",),
           limits=None):
    """Open a service whose workers do each job at once."""
    from lib.schedule.policies import registry
    from lib.schedule.runtime.service import Service
    from lib.schedule.runtime.workers import Limits, Slot

    policy = registry.policy(policy) if isinstance(policy, str) else policy
    service = Service(folder, policy, predicted_s, limits or Limits(), spawn, observer)
    service.tick_s = 0.001
    for name in slots:
        service.add_slot(Slot(name))
    return service


def service_of(home):
    return opened(home / "queue", predicted_s=lambda spec, device: 0.01, slots=("cpu[0]", "cpu[1]"))


def submit(service, home, name):
    from lib.schedule.runtime.journal import Spec

    return service.submit(Spec(name, "tests.light:marked", {"path": str(home / name), "value": name}))


def _serve(home, statement, seed):
    """Serve until it is killed, or all is done."""
    if statement is not None:
        _killed_at(statement)
    draw = random.Random(seed)
    with open(home / "returned", "a", buffering=1) as returned, service_of(home) as service:
        calls = [("submit", name) for name in NAMES]
        for name in draw.sample(NAMES, 3):
            calls.insert(draw.randint(calls.index(("submit", name)) + 1, len(calls)), ("cancel", name))

        def until():
            if calls:
                what, name = calls.pop(0)
                if submit(service, home, name) if what == "submit" else service.cancel(name):
                    returned.write(f"{what} {name}\n")
            return not calls and not service.left

        service.run(until)


def trial(home, moment_s=None, statement=None, seed=0):
    """Cut a service short and open it again; return how many jobs had been submitted and ended, and what is wrong."""
    (home / "returned").touch()
    status = killed.status_of(partial(_serve, home, statement, seed), moment_s)
    wrong = [] if status in (0, -signal.SIGKILL) else ["it ended with an error"]
    returned = [line.split() for line in (home / "returned").read_text().splitlines()]
    unwanted = random.Random(seed).sample(NAMES, 3)
    submitted, cancelled = ({name for call, name in returned if call == wanted} for wanted in ("submit", "cancel"))
    with service_of(home) as service:
        before, effects = service.journal.results().set_index("job_id"), _effects(home, NAMES)
        tries = Counter(service.journal.attempts()["job_id"])
        service.run(lambda: not service.left)
        ends, attempts = service.journal.results().set_index("job_id"), Counter(service.journal.attempts()["job_id"])
    now = _effects(home, NAMES)
    if not submitted <= set(ends.index) or ends.index.duplicated().any():
        wrong.append(f"submitted {sorted(submitted)}, ended {sorted(ends.index)}")
    for name, end in ends.iterrows():
        if name in before.index and (end["status"] != before.loc[name, "status"] or now[name] != effects[name]):
            wrong.append(f"{name} ended again")
        if name in cancelled and attempts[name] > tries[name]:
            wrong.append(f"{name} started after it was cancelled")
        if end["status"] == "done" and not 1 <= now[name] <= 2:
            wrong.append(f"{name} took effect {now[name]} times")
        if end["status"] not in ("done", "cancelled") or (end["status"] == "cancelled" and name not in unwanted):
            wrong.append(f"{name} is {end['status']}")
    return f"{len(submitted)} submitted, {len(before)} ended", wrong


def run(kills, seed):
    """Kill so many services; return how far they had come, and what was wrong."""
    draw = random.Random(seed)
    cuts = [{**({"statement": number * STATEMENTS // kills} if number % 3 else {"moment_s": draw.uniform(0, WITHIN_S)}),
             "seed": draw.random()} for number in range(kills)]

    def first(top):
        (top / "first").mkdir()
        assert not trial(top / "first")[1]
        service_of(top / "here").close()

    return killed.in_turn(trial, cuts, kills, first)


if __name__ == "__main__":
    killed.main(run)
