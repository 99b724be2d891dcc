"""The verbs ``dashboard``, a server of projects, runs and agents with an agent of its own, and ``agent``. Nothing heavy."""

import argparse
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from urllib.parse import quote

from lib.cli.options import a_path, add_verb, flag, folder_name, option, whole
from lib.errors import InputError, death, one_line

_LOOK_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 1.0, 60.0  # at the agent of this machine

_DEMO = {"simple_cnn on images that are made up": {
    "root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 3, "batch_size": 64,
    "load_pretrained": False, "num_workers": 0, "autocast_dtype": "torch.float32", "max_datapoints_per_class": 100},
         "the machine": {"notebook": "notebooks/01_machine.ipynb", "parameters": {"source": "replay"}}}


def _dashboard(options: argparse.Namespace) -> None:
    import uvicorn

    from lib import paths
    from lib.dashboard import app, configurations, database, database_engine, dispatcher, operations, security

    if missing := [path for path in options.data_root if not path.is_dir()]:
        raise InputError(f"--data-root {missing[0]} is no folder")
    configurations.data_roots[:] = [path.resolve() for path in options.data_root]
    folder = paths.DATA / "dashboard"
    token, token_file = security.read_token(folder)
    rows = database_engine.Database()
    queue = dispatcher.Dispatcher(rows, folder / "queue")
    board = operations.Operations(rows, queue)
    if options.demo:
        _add_demo(board)
    served = app.create_app(board, token)
    with _listening(options.host, options.port) as listener:
        try:
            queue.start()  # before its application: an error of that would not get here
        except database.UNAVAILABLE as error:
            raise InputError(f"the database is locked, full or gone: {one_line(error)}") from None
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        print(f"{url}  (token: {token_file or 'DASHBOARD_TOKEN'})", flush=True)
        if sys.stdout.isatty():  # for a person, and in no log
            print(f"log in: {url}/login?token={quote(token, safe='')}", flush=True)
        threading.Thread(target=import_module, args=("lib.finetune.finetune",), daemon=True).start()  # for a name not known
        with contextlib.nullcontext() if options.no_agent else _agent(url, token):
            server = uvicorn.Server(uvicorn.Config(served, log_level="warning", access_log=False, timeout_graceful_shutdown=3))
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # uvicorn raises it again at its end
            server.run(sockets=[listener])


def _add_demo(operations) -> None:
    """Add the project ``demo`` and its configurations, each once."""
    from lib.dashboard import database, schemas
    with contextlib.suppress(database.ConflictError):
        operations.add(database.Project, {"name": "demo", "description": "Small runs to try things with"})
    (project,) = operations.page(database.Project, 1, name="demo")
    for name, config in _DEMO.items():
        with contextlib.suppress(database.ConflictError):
            operations.save_config(schemas.ConfigIn(project_id=project.id, name=name, config=config))


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; InputError where the port is taken, or the host is none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise InputError(f"port {port} of {host} {why}; name another port with --port or address with --host") from None


@contextlib.contextmanager
def _agent(url: str, token: str) -> Iterator[None]:
    """Have an agent of this machine while the server runs; one that ends is started again, after a pause that grows."""
    over = threading.Event()

    def start() -> subprocess.Popen:
        words = [sys.executable, "-m", "lib", "agent", "--server", url, "--parent", str(os.getpid())]
        return subprocess.Popen(words, env={name: value for name, value in os.environ.items() if name != "DASHBOARD_DB_URL"} |
                                {"DASHBOARD_TOKEN": token})

    def keep(process: subprocess.Popen) -> None:
        pause_s, began_s = _FIRST_PAUSE_S, time.monotonic()
        while not over.wait(_LOOK_S):
            if process.poll() is None:
                continue
            pause_s = _FIRST_PAUSE_S if time.monotonic() > began_s + _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            print(f"the agent of this machine {death(process.returncode)}; it is started again in {pause_s:g} s",
                  file=sys.stderr, flush=True)
            if over.wait(pause_s):
                return
            process, began_s = start(), time.monotonic()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()

    keeper = threading.Thread(target=keep, args=(start(),), name="agent")
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def _join(options: argparse.Namespace) -> None:
    from lib.dashboard.agents import agent, devices

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it leaves as when it is interrupted
    if options.parent:
        agent.end_with_parent(options.parent)
    server = agent.Client(options.server, agent.read_token(options.token_file))
    pairs = devices.devices_here(options.slots)
    if line := devices.narrowed(pairs):
        print(line, flush=True)
    agent.Agent(server, options.name or agent.default_name(), pairs).run()


def add(verbs) -> None:
    """Add the verbs of the dashboard."""
    add_verb(verbs, _dashboard, "dashboard", "a server of projects, runs and agents, with pages and a REST API",
             option("--port", "port (default 8000; 0: any that is free)", whole(0, 65_535), 8000),
             option("--host", "address to listen on (default 127.0.0.1: this machine alone)", default="127.0.0.1"),
             flag("--no-agent", "without an agent of this machine"),
             option("--data-root",
                    "a folder outside of the repository whose images configs may name; may be given several times", a_path, [],
                    action="append", metavar="DIR"),
             flag("--demo", "with a project to try things with"),
             epilog="The token is DASHBOARD_TOKEN, or kept in data/dashboard/token; the database is DASHBOARD_DB_URL, or "
                    "data/dashboard/dashboard.db.")
    add_verb(verbs, _join, "agent", "join a dashboard with this machine's slots, and run what it places here",
             option("--server", "the dashboard, such as http://127.0.0.1:8000", required=True, metavar="URL"),
             option("--name", "of this agent (default: the host's name)", folder_name),
             option("--slots", "CPU slots of equal size (default: one a core, at most 16)", whole(1), 0),
             option("--token-file", "file with the token (default: $DASHBOARD_TOKEN, or data/dashboard/token)", a_path),
             option("--parent", "end when this process, which started it, is gone", whole(1, 2**31), metavar="PID"),
             epilog="It ends its workers when the server does not answer; their runs are tried again, from their checkpoints, "
                    "wherever the dashboard places them.")
