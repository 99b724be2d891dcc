"""Agents with light slots, as processes: ``python -m tests.agents URL NAME SLOTS TOKEN``; what tests and benchmark share."""

import argparse
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-of-tests"


def light_slots(count):
    """Return slots whose workers import nothing, as an agent takes them."""
    from lib.dashboard.agent_messages import Device
    from lib.schedule.runtime.workers import Slot

    return [(Slot(f"cpu[{number}]"), Device(name=f"cpu[{number}]", model="light", cores=1, threads=1, memory_mb=1000.0))
            for number in range(count)]


def agent(url, name, count, token):
    """Return an agent that runs what is in ``tests.light``, whatever its arguments."""
    from lib.dashboard.agent import Agent, Client

    class Light(dict):
        def __contains__(self, call):
            return call.startswith("tests.light:") and call != "tests.light:refuse"

        def __missing__(self, call):
            return lambda arguments: None

    return Agent(Client(url, token), name, light_slots(count), Light())


def start(url, name, count=1, token=TOKEN):
    """Start an agent in a process of its own."""
    words = [sys.executable, "-m", "tests.agents", url, name, str(count), token]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(app):
    """Serve an app on a free port of this host, in a thread; give its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    for word in ("url", "name", "count", "token"):
        options.add_argument(word)
    given = options.parse_args()
    agent(given.url, given.name, int(given.count), given.token).run()
