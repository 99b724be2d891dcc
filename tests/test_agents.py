"""Agents over a real server on this host: every job ends once, whatever is killed; logs have no holes and no doubles."""

import signal
import time

import numpy as np
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException

from lib.dashboard import agent_workers
from lib.dashboard.agent_workers import Agents
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs
from lib.schedule.runtime import executor, local_site
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.workers import Limits
from tests.agents import TOKEN, served, start

LIMITS = Limits(beat_s=0.1, silent_s=4, ready_s=60, grace_s=0.5, late=20, least_s=60, attempts=3)


class Here:
    """Agents by name, and what was told of them."""

    def __init__(self):
        self.registrations, self.gone = {}, []

    def joined(self, agent):
        self.registrations[agent.name] = agent
        return agent.name

    def left(self, agent_id, reason):
        self.gone.append((agent_id, reason))

    def slots(self, count, within_s=30):
        """Return the slots of the agents that there are, once there are so many."""
        end = time.monotonic() + within_s
        while len(slots := [slot for one in list(self.registrations.values()) for slot in agent_workers.slots_of(one)]) < count:
            assert time.monotonic() < end
            time.sleep(0.02)
        return slots


def check_token(authorization: str = Header("")):
    if authorization != f"Bearer {TOKEN}":
        raise HTTPException(401, "a token is needed")


@pytest.fixture
def site():
    """Give agents, who is here, and the address of a server of them."""
    here = Here()
    agents, app = Agents(here, LIMITS), FastAPI()
    app.include_router(agent_workers.router(agents), prefix="/api/v1", dependencies=[Depends(check_token)])
    with served(app) as url:
        yield agents, here, url


def run(specs, slots, spawn, folder):
    jobs = Jobs(**{**Jobs.plain(len(specs)).__dict__, "ids": tuple(spec.job_id for spec in specs)})
    return executor.execute(specs, jobs, local_site.fleet_of(tuple(slots)), slots, np.full((len(specs), 1), 0.05),
                            registry.policy("first-come"), folder, LIMITS, spawn)


def sleeping(count, seconds=0.01):
    return [Spec(f"j{number}", "tests.light:sleep", {"seconds": seconds, "value": number}) for number in range(count)]


@pytest.mark.slow
def test_an_agent_runs_jobs_by_lease_and_leaves(site, tmp_path):
    agents, here, url = site
    process = start(url, "lab", 2)
    specs = [*sleeping(10), Spec("no", "tests.light:refuse", {}), Spec("starved", "tests.light:starve", {})]
    attempts, ends, notes = run(specs, here.slots(2), agents.spawn, tmp_path)
    ends = ends.set_index("job_id")
    assert len(ends) == 12 and not notes
    assert set(ends.loc[[spec.job_id for spec in specs[:10]], "status"]) == {"done"}
    assert "agents run no task 'tests.light:refuse'" in ends.loc["no", "reason"]
    assert "out of memory" in ends.loc["starved", "reason"]
    assert set(attempts["device"]) == {"cpu[lab/0]", "cpu[lab/1]"}
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert here.gone == [("lab", "the agent left")]
