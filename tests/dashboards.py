"""A dashboard for tests: a dispatcher that only remembers, and rows to look at."""

import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from lib.dashboard import database as db
from lib.dashboard import operations, schemas
from lib.dashboard.app import Settings, create_app
from lib.dashboard.engine import Database

TOKEN = "a-token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TINY = {"root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 2}
NOTEBOOK = {"notebook": "notebooks/02_profile.ipynb", "parameters": {"source": "replay"}}


class Remembering:
    """A dispatcher that remembers what it was asked for; ``planned`` is its plan."""

    def __init__(self, database):
        self.database, self.submitted, self.cancelled, self.reordered = database, [], [], []
        self.started = self.closed = False
        self.ended = set()
        self.planned = pd.DataFrame(columns=list(schemas.PlannedOut.model_fields))
        self.router = APIRouter(tags=["agents"])

        @self.router.post("/agents")
        def register(body: schemas.AgentIn) -> dict[str, str]:
            return {"name": body.name}

    def start(self):
        self.started = True

    def close(self):
        self.closed = True

    def submit(self, run):
        self.submitted.append(run)

    def cancel(self, run_id):
        self.cancelled.append(run_id)
        if run_id in self.ended:
            return False
        with self.database.writing() as session:
            return db.transition(session, run_id, db.CANCELLED, "cancelled")

    def has_ended(self, run_id):
        return run_id in self.ended

    def reorder(self, run_id, priority):
        self.reordered.append((run_id, priority))
        return True

    def plan(self):
        return self.planned


class Site:
    """An application over one database, with clients that know the token, and a project with a configuration."""

    def __init__(self, url=None, **settings):
        self.database = Database(url, wait_s=0.2)
        self.dispatcher = Remembering(self.database)
        self.app = create_app(Settings(self.database, TOKEN, **settings), self.dispatcher)
        self.api = TestClient(self.app, base_url="http://dashboard", headers=BEARER)
        self.page = TestClient(self.app, base_url="http://dashboard", headers={"Origin": "http://dashboard"})
        self.stranger = TestClient(self.app, base_url="http://dashboard", follow_redirects=False)
        assert self.page.post("/login", data={"token": TOKEN, "next": "/login"}).status_code == 200

    def clear(self):
        """Forget all rows, and what the dispatcher was asked for."""
        with self.database.writing() as session:
            for table in reversed(db.Base.metadata.sorted_tables):
                session.execute(table.delete())
        self.dispatcher.__init__(self.database)

    def project(self, name="demo"):
        return operations.add(self.database, db.Project, {"name": name})

    def config(self, project, name="tiny", content=NOTEBOOK):
        return operations.save_config(self.database, schemas.ConfigIn(project_id=project.id, name=name, config=content))

    def run(self, config=None, **wanted):
        config = config or self.config(self.project())
        return operations.queue_run(self.database, self.dispatcher, config.id, schemas.RunIn(**wanted))

    def move(self, run, state, reason="", **facts):
        with self.database.writing() as session:
            return db.transition(session, run.id, state, reason, **facts)


class Postgres:
    """A real PostgreSQL in a folder of its own; it refuses to run as root."""

    BINARIES = "/usr/lib/postgresql/15/bin"

    def __init__(self, folder):
        self.folder = folder
        self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        folder.mkdir()
        if self.user:
            shutil.chown(folder, "postgres", "postgres")
        self._call("initdb", "-D", folder / "data", "-A", "trust", "-N", "-U", "tester")
        self.start()

    def _call(self, name, *words):
        command = [*self.user, f"{self.BINARIES}/{name}", "-D", self.folder / "data", *words]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self):
        self._call("pg_ctl", "-w", "-l", self.folder / "log", "-o", f"-k {self.folder} -h '' -F", "start")

    def stop(self):
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    @property
    def url(self):
        return f"postgresql://tester@/postgres?host={self.folder}"

    @classmethod
    def missing(cls):
        """Return why it cannot run here, or nothing."""
        if not os.path.exists(f"{cls.BINARIES}/initdb"):
            return "no PostgreSQL 15 here (apt-get install postgresql)"
        if os.getuid() == 0 and not shutil.which("setpriv"):
            return "PostgreSQL does not run as root, and there is no setpriv"
        return ""


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Run a PostgreSQL for the tests of a file, or skip."""
    if Postgres.missing():
        pytest.skip(Postgres.missing())
    import tempfile

    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path is short, and others must reach it
    os.chmod(folder, 0o755)
    server = Postgres(Path(folder) / "p")
    yield server
    server.stop()
    shutil.rmtree(folder)
