"""The verb ``dashboard``: a server of projects, configurations and runs. Imports nothing heavy."""

import argparse
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from lib.cli.options import a_path, add_verb, flag, option, whole
from lib.errors import InputError, one_line

LOOPBACK = "127.0.0.1"
DEMO_CONFIGS = {
    "simple_cnn on images that are made up": {
        "root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy",
        "epochs": 3, "batch_size": 64, "load_pretrained": False, "num_workers": 0,
        "autocast_dtype": "torch.float32", "max_datapoints_per_class": 100},
    "the machine": {"notebook": "notebooks/01_machine.ipynb", "parameters": {"source": "replay"}}}


def _dashboard(options: argparse.Namespace) -> None:
    import uvicorn

    from lib import mlflow_store, paths
    from lib.dashboard import access, api, app, configurations, database, runner
    from lib.schedule.run.database import AWAY

    if missing := [path for path in options.data_dir if not path.is_dir()]:
        raise InputError(f"--data-dir {missing[0]} is no folder")
    configurations.data_roots[:] = [path.resolve() for path in options.data_dir]
    token, token_file = access.read_token(paths.DATA / "dashboard")
    mlflow_url = f"http://{LOOPBACK}:{options.mlflow_port}" if options.mlflow_port else ""
    if mlflow_store.store_uri().startswith("http"):  # somebody serves it already
        mlflow_url, options.mlflow_port = mlflow_store.store_uri().rstrip("/"), 0
    rows = database.Database()
    board = api.Board(rows, runner.Runner(rows, options.ray), token, mlflow_url)
    if options.demo:
        _add_demo(board)
    with _listening(options.host, options.port, "--port") as listener, _mlflow(options.mlflow_port):
        try:
            board.runner.start()  # before its application: an error of that would not get here
        except AWAY as error:
            raise InputError(f"the database is locked, full or gone: {one_line(error)}") from None
        url = f"http://{options.host}:{listener.getsockname()[1]}"
        if ":" in options.host:
            url = f"http://[{options.host}]:{listener.getsockname()[1]}"
        print(f"{url}  (token: {token_file or 'DASHBOARD_TOKEN'})", flush=True)
        if sys.stdout.isatty():  # for a person, and in no log
            print(f"log in: {url}/login?token={quote(token, safe='')}", flush=True)
        config = uvicorn.Config(app.create_app(board), log_level="warning", access_log=False,
                                timeout_graceful_shutdown=3)
        # uvicorn raises it again at its end
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        uvicorn.Server(config).run(sockets=[listener])


def _add_demo(board) -> None:
    """Add the project ``demo`` and its configurations, each once."""
    from lib.dashboard import api, bodies, tables

    with contextlib.suppress(tables.ConflictError):
        board.database.add(tables.Project, {"name": "demo"})
    (project,) = board.database.rows(tables.Project, name="demo")
    for name, config in DEMO_CONFIGS.items():
        with contextlib.suppress(tables.ConflictError):
            api.add_config(board, bodies.ConfigIn(
                project_id=project.id, name=name, config_json=config))


def _listening(host: str, port: int, name: str) -> socket.socket:
    """Return a socket that listens; InputError where the port is taken or the host is another's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = f"cannot be listened on ({error.strerror})"
        if error.errno == errno.EADDRINUSE:
            why = "is taken"
        raise InputError(f"port {port} of {host} {why}; name another port with {name}, "
                         "or another address with --host") from None


@contextlib.contextmanager
def _mlflow(port: int) -> Iterator[None]:
    """Serve MLflow's pages to this machine alone, since they ask for no token; port 0: do not."""
    from lib import executed_notebooks, files, paths

    if not port:
        yield
        return
    _listening(LOOPBACK, port, "--mlflow-port").close()
    folder = files.folder(paths.DATA / "mlflow")
    environment = os.environ | {
        "PYTHONPATH": str(paths.ROOT),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # its idle processes would take memory from runs
    for secret in ("DASHBOARD_TOKEN", "DASHBOARD_DB_URL"):
        environment.pop(secret, None)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "lib.finetune.tracking", "--host", LOOPBACK, "--port", str(port),
             "--workers", "1"], cwd=folder, stdout=log, stderr=log, env=environment,
            start_new_session=True,  # Ctrl-C ends it through this process
            preexec_fn=executed_notebooks.end_with_parent)  # noqa: PLW1509 - no threads yet
    threading.Thread(target=_watch, args=(server, folder / "server.log"), daemon=True).start()
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def _watch(server: subprocess.Popen, log: Path) -> None:
    """Say in one line that a server has failed."""
    if (status := server.wait()) not in (0, -signal.SIGTERM):
        print(f"MLflow's pages ended with status {status}: see {log}", file=sys.stderr, flush=True)


def add(verbs) -> None:
    """Add the verb."""
    verb = add_verb(
        verbs, "dashboard", "a server of projects, configurations and runs, with pages and a REST "
        "API", _dashboard, epilog="The token is DASHBOARD_TOKEN, or kept in data/dashboard/token; "
        "the database is DASHBOARD_DB_URL, or data/dashboard/dashboard.db.")
    option(verb, "--port", "port (0: any that is free)", whole(0, 65_535), 8000)
    option(verb, "--host", "address to listen on", default=LOOPBACK)
    option(verb, "--mlflow-port", "port of MLflow's pages, for this machine alone (0: without)",
           whole(0, 65_535), 5000)
    option(verb, "--ray", "place runs on this Ray cluster: HOST:PORT of its head, or auto "
           "(default: on this machine)", default="", metavar="ADDRESS")
    option(verb, "--data-dir", "a folder outside the repository whose images configs may name; "
           "may be given several times", a_path, [], action="append", metavar="DIR")
    flag(verb, "--demo", "with a project to try things with")
