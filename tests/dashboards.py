"""A dashboard for tests: a dispatcher that only remembers, rows to look at, and a PostgreSQL."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from lib.dashboard import database as db
from lib.dashboard import schemas
from lib.dashboard.app import create_app
from lib.dashboard.database_engine import Database
from lib.dashboard.operations import Operations

TOKEN = "a-token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TINY = {"root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 2,
        "load_pretrained": False}
NOTEBOOK = {"notebook": "notebooks/02_profile.ipynb", "parameters": {"source": "replay"}}


def remembering(database):
    """Return a dispatcher that remembers its calls; ``planned`` are the rows of its plan."""
    def cancel(run_id):
        with database.writing() as session:
            return not dispatcher.has_ended(run_id) and db.transition(session, run_id, db.CANCELLED, "cancelled")

    def table(rows):
        names = list(schemas.PlannedOut.model_fields)
        return pd.DataFrame(rows, columns=names[:len(rows[0])] if rows else names).reindex(columns=names)

    dispatcher = Mock(router=APIRouter(), cancel=cancel, planned=[], tried=[], **{"has_ended.return_value": False},
                      plan=lambda: table(dispatcher.planned), attempts=lambda _: table(dispatcher.tried))
    return dispatcher


class Site:
    """An application over one database, with clients that know the token, and a project with a configuration."""

    def __init__(self, url=None, wait_s=5.0, **settings):
        self.database = Database(url, wait_s)
        self.dispatcher = remembering(self.database)
        self.operations = Operations(self.database, self.dispatcher)
        self.app = create_app(self.operations, TOKEN, **settings)
        self.api = self._client(headers=BEARER)
        self.page = self._client(headers={"Origin": "http://dashboard"})
        self.stranger = self._client(follow_redirects=False)
        assert self.page.post("/login", data={"token": TOKEN, "next": "/login"}).status_code == 200

    def _client(self, **settings):
        return TestClient(self.app, base_url="http://dashboard", **settings)

    def clear(self):
        """Forget all rows, and what the dispatcher was asked for."""
        with self.database.writing() as session:
            for table in reversed(db.Base.metadata.sorted_tables):
                session.execute(table.delete())
        self.dispatcher.reset_mock()
        self.dispatcher.configure_mock(planned=[], tried=[], **{"has_ended.return_value": False})

    def get(self, path, **params):
        """Return what the API answers."""
        return self.api.get(f"/api/v1/{path}", params=params).json()

    def shown(self, path):
        """Return the text of a page."""
        return self.page.get(f"/web/{path}").text

    def post(self, path, **body):
        """Return the API's answer to a body."""
        return self.api.post(f"/api/v1/{path}", json=body)

    def project(self, name="demo"):
        return self.operations.add(db.Project, {"name": name})

    def config(self, project, name="tiny", content=NOTEBOOK):
        return self.operations.save_config(schemas.ConfigIn(project_id=project.id, name=name, config=content))

    def run(self, config=None, **wanted):
        config = config or self.config(self.project())
        return self.operations.queue_run(config.id, schemas.RunIn(**wanted))

    def move(self, run, state, reason="", **facts):
        with self.database.writing() as session:
            return db.transition(session, run.id, state, reason, **facts)

    def output(self, run_id, *lines, attempt=1, **metrics):
        """Add numbered lines of a run, and metrics at a step."""
        with self.database.writing() as session:
            db.add_logs(session, run_id, attempt, lines)
            if metrics:
                db.add_metrics(session, run_id, **metrics)


class Postgres:
    """A real PostgreSQL in a folder of its own; it refuses to run as root."""

    BINARIES = "/usr/lib/postgresql/15/bin"

    def __init__(self, folder):
        self.folder, self.url = folder, f"postgresql://tester@/postgres?host={folder}"
        self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        folder.mkdir()
        if self.user:
            shutil.chown(folder, "postgres", "postgres")
        self._call("initdb", "-A", "trust", "-N", "-U", "tester")
        self.start()

    def _call(self, name, *words):
        command = [*self.user, f"{self.BINARIES}/{name}", "-D", f"{self.folder}/data", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self):
        self._call("pg_ctl", "-w", "-l", f"{self.folder}/log", "-o", f"-k {self.folder} -h '' -F", "start")

    def stop(self):
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres():
    """Run a PostgreSQL for the tests of a file, or skip."""
    if not os.path.exists(f"{Postgres.BINARIES}/initdb"):
        pytest.skip("no PostgreSQL 15 here (apt-get install postgresql)")
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path is short, and others must reach it
    os.chmod(folder, 0o755)
    server = Postgres(Path(folder) / "p")
    yield server
    server.stop()
    shutil.rmtree(folder)
