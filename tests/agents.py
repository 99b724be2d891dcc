"""Agents with light slots, in threads or processes, and their server; what tests and benchmark share.

``python -m tests.agents agent URL NAME`` and ``python -m tests.agents serve FOLDER PORT``.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-of-the-tests"


def until(condition, within_s=30.0):
    """Return what a condition gives once that is true; fail where it takes too long."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, "this has not come true in time"
        time.sleep(0.01)
    return value


def limits(silent_s=3.0):
    from lib.schedule.runtime.workers import Limits

    return Limits(beat_s=0.2, silent_s=silent_s, ready_s=60, grace_s=0.5, overrun_factor=20, least_s=60, attempts=3)


def agent(url, name, count=1):
    """Return an agent that runs what is in ``tests.light``, whatever its arguments, but for one task; it imports no more."""
    from lib.dashboard.agents.agent import Agent, Client
    from lib.dashboard.agents.messages import Device
    from lib.schedule.runtime.workers import Slot

    class Light(dict):
        def __contains__(self, call):
            return call.startswith("tests.light:") and call != "tests.light:refuse"

        def __missing__(self, call):
            return lambda arguments: None

    slots = [(Slot(device), Device(name=device, model="light", cores=1, threads=1, memory_mb=1000.0))
             for device in map("cpu[{}]".format, range(count))]
    return Agent(Client(url, TOKEN), name, slots, Light())


@contextmanager
def joined(url, name="lab", count=1):
    """Run an agent in a thread; it ends with its first call afterwards, which is refused."""
    from lib.errors import InputError

    joining = agent(url, name, count)
    exchange = joining._client.exchange

    def hasty(agent_id, content, patience_s):
        return exchange(agent_id, content.model_copy(update={"wait_s": min(0.1, content.wait_s)}), patience_s)

    def refuse(*_):
        raise InputError("the test is over")

    def run():
        with suppress(InputError):
            joining.run()

    joining._client.exchange = hasty
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        joining._client._post = refuse
        thread.join(30)
        assert not thread.is_alive()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start(*words, log=subprocess.PIPE):
    """Start an agent or a server in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "tests.agents", *map(str, words)], cwd=ROOT, stderr=log, text=True)


def dispatcher_in(folder, silent_s=3.0):
    """Return a database and a dispatcher whose files are in a folder; its runs are light: their configurations say which."""
    from lib.dashboard.database_engine import Database
    from lib.dashboard.dispatcher import Dispatcher
    from lib.schedule.policies import registry
    from lib.schedule.runtime.journal import Spec

    database = Database(f"sqlite:///{folder}/dashboard.db")
    hasty = replace(limits(silent_s), overrun_factor=0.0, least_s=0.0)  # a dispatcher takes no heed: times may be guesses
    return database, Dispatcher(database, Path(folder) / "queue", limits=hasty, policy=registry.policy_for("first-come"),
                                spec_of=lambda run: Spec(run.id, **run.config.config_json))


def add_runs(database, calls, **values):
    """Add queued runs of (call, arguments, and devices at once, if several), as the API does; return their ids."""
    from lib.dashboard import database as db

    with database.writing() as session:
        project = db.Project(name=os.urandom(8).hex())
        session.add(project)
        session.flush()
        own = {"project_id": project.id}
        runs = [db.Run(**own, **values, name=f"r{number}", folder=f"{project.id}/{number}", job=db.Job(), config=db.TrainConfig(
            **own, name=f"c{number}", kind="light", config_hash=f"{call} {number}",
            config_json={"call": call, "arguments": arguments, "devices": sum(devices) or 1}))
            for number, (call, arguments, *devices) in enumerate(calls)]
        session.add_all(runs)
        session.flush()
        return [run.id for run in runs]


@contextmanager
def serving(app, port=0):
    """Serve an app on a port of this host, in a thread; give its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def serve(folder, port, silent_s):
    """Serve the dashboard of a folder until killed."""
    import uvicorn

    from lib.dashboard.app import create_app
    from lib.dashboard.operations import Operations

    database, dispatcher = dispatcher_in(folder, float(silent_s))
    uvicorn.run(create_app(Operations(database, dispatcher), TOKEN), port=int(port), log_level="error")


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "agent":
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the verb does
        agent(*given).run()
    else:
        serve(*given)
