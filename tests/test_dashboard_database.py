"""The dashboard on SQLite and on a real PostgreSQL: the original's bodies, all lists, and what happens when it is away."""

import pytest

from lib import paths
from lib.dashboard import tables as db
from lib.dashboard.database import Database
from tests import refused
from tests.dashboards import NOTEBOOK, Site
from tests.postgres import postgres  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request, home):
    if request.param == "sqlite":
        yield Site()
        return
    site = Site(request.getfixturevalue("postgres").url)
    yield site
    db.Base.metadata.drop_all(site.database.engine)
    site.database.engine.dispose()


def test_bodies_of_the_originals_clients_are_taken(site):
    project = site.post("projects", name="original").json()["id"]
    config = site.post("configs", project_id=project, name="original", config_json=NOTEBOOK).json()
    run = site.post(f"runs/from-config/{config['id']}", docker_image=None, env=None, agent_id=None, priority=2).json()
    assert config["config_json"]["notebook"] == NOTEBOOK["notebook"] and run["job"]["priority"] == 2
    bodies = {"agents": {"name": "ws", "host": None, "labels": None},
              "groups": {"project_id": project, "name": "g", "description": None, "tags": ["a", "b"]},
              "datasets": {"name": "d", "root_path": "data/pets", "split_layout": {"train": "train"}},
              "models": {"label": "m", "hf_checkpoint_id": "google/vit", "notes": "large", "default_pretrained": False},
              "augmentations": {"name": "flip", "type": "gpu", "params": {"p": 0.5}}}
    for path, body in bodies.items():
        row = site.post(path, **body).json()
        assert {name: value for name, value in body.items() if value is not None}.items() <= row.items()
        assert site.get(f"{path}/{row['id']}") == row and site.get(path) == [row]
        assert site.post(path, **body).status_code == 409


def test_a_run_from_a_project_to_its_cancellation_and_every_list_and_page_of_it(site):
    project = site.post("projects", name="retina", description="of eyes").json()["id"]
    group = site.post("groups", name="first", project_id=project).json()["id"]
    config = site.post("configs", project_id=project, group_id=group, name="profile", config_json=NOTEBOOK).json()
    assert config["version"] == 1 and config["kind"] == "notebook" and config["config_json"]["parameters"]["workload"] == "W1"
    assert site.post(f"configs/{config['id']}/validate").json() == {"valid": True, "errors": {}}
    agent = site.post("agents", name="ws", host="ws-1").json()["id"]
    card = {"agent_id": agent, "index": 1, "name": "a card", "total_mem_mb": 24000, "compute_capability": "8.9"}
    assert site.post("agents/gpus", **card).status_code == 201 and site.post("agents/gpus", **card).status_code == 409
    answers = [site.post(f"agents/{agent}/gpus/1/{what}") for what in ("reserve", "reserve", "release")]
    assert [answer.json().get("is_allocated", answer.status_code) for answer in answers] == [True, 409, False]
    answer = site.post(f"runs/from-config/{config['id']}", agent_id=agent)
    assert answer.status_code == 409 and "no run is placed there" in answer.json()["detail"]
    here = site.database.add(db.Agent, {"name": "here", "manual": False, "slots": ["cpu[0]", "cuda:1"]}).id
    run = site.post(f"runs/from-config/{config['id']}", priority=3, agent_id=here, gpu_indices=[1]).json()
    own, at = f"runs/{run['id']}", f"projects/{project}"
    assert run["state"] == "queued" and run["agent_id"] == here and run["group_id"] == group
    assert (paths.DATA / run["folder"]).is_dir()
    assert site.post(f"{own}/priority", priority=9).json()["job"]["priority"] == 9
    assert site.get("runs", state="queued", project_id=project, group_id=group) == [site.get(own)]
    site.move(db.Run(id=run["id"]), "running", device="cuda:1", start_s=1.0, attempt=1)
    site.write(db.Run(folder=run["folder"]), "log.txt", "a line\n")
    lists = ["projects", "groups", "runs", f"{own}/logs", f"agents/{agent}/gpus", "configs"]
    assert [len(site.get(path)) for path in lists] == [1] * len(lists) and site.get(f"configs/project/{project}") == [config]
    assert {row["name"] for row in site.post("agents/refresh").json()} == {"ws", "here"}
    pages = ["projects", "agents", "schedule", own, f"{own}/files/log.txt", f"{at}/runs", f"{at}/configs"]
    assert {site.page.get(f"/web/{path}").status_code for path in pages} == {200}
    assert site.post(f"{own}/cancel").json()["state"] == "running"  # until its worker has stopped
    assert site.database.queue.jobs()[0].cancel
    other = site.post(f"runs/from-config/{config['id']}").json()["id"]
    assert site.post(f"runs/{other}/cancel").json()["state"] == "cancelled"
    assert [row["id"] for row in site.get("runs", state="cancelled")] == [other]
    assert site.api.delete(f"/api/v1/runs/{other}").json()["id"] == other and len(site.get("runs")) == 1


def says_that_it_is_away(site):
    answer = site.post("projects", name="while it is away")
    return answer.status_code == 503 and answer.json()["detail"].startswith("the database is locked, full or gone")


def test_a_locked_sqlite_is_said_in_one_line_and_comes_back(home):
    site = Site(wait_s=0.2)
    with site.database.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        assert says_that_it_is_away(site)
        assert "locked" in site.page.post("/web/projects", data={"name": "form"}).text
        assert site.api.get("/api/v1/projects").status_code == 200  # readers of a WAL go on
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN")
    assert site.post("projects", name="after").status_code == 201


def test_a_sqlite_that_is_gone_or_another_file_is_not_made_anew_and_comes_back(home):
    site = Site()
    site.project("kept")
    site.database.engine.dispose()
    path = paths.DATA / "dashboard/dashboard.db"
    path.rename(path.with_suffix(".away"))
    assert says_that_it_is_away(site) and not path.exists()
    assert [one.status_code for one in (site.api.get("/api/v1/projects"), site.page.get("/web/projects"))] == [503] * 2
    path.with_suffix(".away").rename(path)
    assert [row["name"] for row in site.get("projects")] == ["kept"]
    path.rename(path.with_suffix(".away"))
    path.write_bytes(b"")  # while a connection to the first file is open
    assert says_that_it_is_away(site)


@pytest.mark.parametrize("url, line", [
    ("nonsense", "no URL of a database"), ("mysql://host/name", "is of mysql; it takes sqlite or postgresql"),
    ("sqlite://", "SQLite takes a file"), ("postgresql://me:secret@localhost:1/x", r"me:\*\*\*@localhost:1/x cannot be used")])
def test_a_url_of_no_database_is_refused_in_one_line_that_keeps_the_password(home, url, line):
    with refused(line) as error:
        Database(url)
    assert "secret" not in str(error.value)


def test_a_database_of_an_older_version_and_a_file_that_is_none_are_refused(home):
    site = Site()
    with site.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN gpu_indices")
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN dispatcher TEXT")
    with refused(r"older version, with other columns \(runs\.dispatcher, runs\.gpu_indices\)"):
        Site()
    assert (paths.DATA / "dashboard/dashboard.db").stat().st_mode & 0o077 == 0
    path = paths.DATA / "other.db"
    path.write_bytes(b"no database" * 100)
    with refused(f"^{path} cannot be used as a database"):
        Database(f"sqlite:///{path}")
