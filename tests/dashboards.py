"""A dashboard for tests: a runner that only remembers, and rows to look at."""

import threading
from contextlib import contextmanager
from unittest.mock import Mock

from fastapi.testclient import TestClient
from sqlalchemy import update

from lib import paths
from lib.dashboard import api, bodies, outputs
from lib.dashboard import tables as db
from lib.dashboard.app import create_app
from lib.dashboard.database import Database
from lib.schedule.run.queue import QueueJob
from tests import until

TOKEN = "a-token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TINY = {"root": "synthetic:pathmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy",
        "epochs": 2, "load_pretrained": False}
NOTEBOOK = {"notebook": "notebooks/02_profile.ipynb", "parameters": {"source": "replay"}}


class Site:
    """An application over one database, with clients that know the token."""

    def __init__(self, url=None, wait_s=5.0, **settings):
        self.database = Database(url, wait_s)
        self.runner = Mock()  # it remembers its calls
        self.board = api.Board(self.database, self.runner, TOKEN, "http://127.0.0.1:5000")
        self.app = create_app(self.board, **settings)
        self.api = self._client(headers=BEARER)
        self.page = self._client(headers={"Origin": "http://dashboard"})
        self.stranger = self._client(follow_redirects=False)
        assert self.page.post("/login", data={"token": TOKEN, "next": "/login"}).status_code == 200

    def _client(self, **settings):
        return TestClient(self.app, base_url="http://dashboard", **settings)

    def clear(self):
        """Forget all rows, and what the runner was asked for."""
        with self.database.writing() as session:
            for table in reversed(db.Base.metadata.sorted_tables):
                session.execute(table.delete())
        self.runner.reset_mock()

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
        return self.database.add(db.Project, {"name": name})

    def config(self, project, name="tiny", content=NOTEBOOK, **more):
        body = bodies.ConfigIn(project_id=project.id, name=name, config_json=content, **more)
        return self.database.get(db.TrainConfig, api.add_config(self.board, body)["id"])

    def run(self, config=None, **wanted):
        config = config or self.config(self.project())
        return self.database.get(db.Run, api.queue_run(self.board, config.id, bodies.RunIn(**wanted))["id"])

    def move(self, run, status, **facts):
        """Set the status of a run in the queue, and other columns."""
        job = update(QueueJob).where(QueueJob.job_id == run.id)
        with self.database.writing() as session:
            session.execute(job.values(status=status, **facts))

    def write(self, run, name, text):
        """Append text to a file of a run."""
        with (paths.DATA / run.folder / name).open("a") as file:
            file.write(text)

    def report(self, run, *rows):
        """Append rows of step, epoch, name and value to the history of a run."""
        path = paths.DATA / run.folder / outputs.HISTORY
        head = "" if path.exists() else "step,epoch,name,value,wall_time_s\n"
        self.write(run, outputs.HISTORY, head + "".join(f"{','.join(map(str, row))},1.0\n" for row in rows))


def site_of(database, runner):
    """Return the application of a database and a real runner."""
    return create_app(api.Board(database, runner, TOKEN))


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
