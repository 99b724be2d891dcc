"""A dashboard for tests: a dispatcher that only remembers, and rows to look at."""


import pandas as pd
from fastapi import APIRouter
from fastapi.testclient import TestClient

from lib.dashboard import database as db
from lib.dashboard import operations, schemas
from lib.dashboard.app import Settings, create_app

TOKEN = "a-token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TINY = {"root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 2}
NOTEBOOK = {"notebook": "notebooks/02_profile.ipynb", "parameters": {"source": "replay"}}


class Remembering:
    """A dispatcher that remembers what it was asked for; ``planned`` is its plan."""

    def __init__(self, database):
        self.database, self.submitted, self.cancelled, self.reordered = database, [], [], []
        self.started = self.closed = False
        self.planned = pd.DataFrame(columns=list(schemas.PlannedOut.model_fields))
        self.router = APIRouter(tags=["agents"])
        self.router.add_api_route("/agents", lambda body: {}, methods=["POST"])

    def start(self):
        self.started = True

    def close(self):
        self.closed = True

    def submit(self, run):
        self.submitted.append(run)

    def cancel(self, run_id):
        self.cancelled.append(run_id)
        with self.database.writing() as session:
            return db.transition(session, run_id, db.CANCELLED, "cancelled")

    def reorder(self, run_id, priority):
        self.reordered.append((run_id, priority))
        return True

    def plan(self):
        return self.planned


class Site:
    """An application over one database, with clients that know the token, and a project with a configuration."""

    def __init__(self, url=None, **settings):
        self.database = db.Database(url, wait_s=0.2)
        self.dispatcher = Remembering(self.database)
        self.app = create_app(Settings(self.database, TOKEN, **settings), self.dispatcher)
        self.api = TestClient(self.app, base_url="http://dashboard", headers=BEARER)
        self.page = TestClient(self.app, base_url="http://dashboard", headers={"Origin": "http://dashboard"})
        self.stranger = TestClient(self.app, base_url="http://dashboard", follow_redirects=False)
        assert self.page.post("/login", data={"token": TOKEN, "next": "/login"}).status_code == 200

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
