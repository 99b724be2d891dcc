"""The dashboard's database, on SQLite and on a real PostgreSQL: states, lines and values, and what happens when it is away."""

import itertools
import threading
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.orm import joinedload

from lib import paths
from lib.dashboard import database as db
from lib.dashboard import events
from lib.dashboard.database_engine import Database, served
from tests import refused
from tests.dashboards import NOTEBOOK, Site, postgres  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request, home):
    if request.param == "sqlite":
        yield Site()
        return
    server = request.getfixturevalue("postgres")
    site = Site(server.url)
    yield site
    db.Base.metadata.drop_all(site.database.engine)
    site.database.engine.dispose()


def now(site, run):
    """Return a run as it is now."""
    with site.database.reading() as session:
        return session.get(db.Run, run.id, options=[joinedload(db.Run.job)])


def at_once(*calls):
    """Make calls in threads of their own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_a_run_takes_only_the_steps_of_the_table(home):
    site = Site()
    config = site.config(site.project())
    for first, then in itertools.product(db.STATES, db.STATES):
        run = site.run(config)
        for step in {"queued": (), "running": ("running",)}.get(first, ("running", first)):
            assert site.move(run, step)
        if then in db.TRANSITIONS[first]:
            assert site.move(run, then, "because")
            assert now(site, run).state == then and now(site, run).reason == "because"
        elif then == first:
            assert not site.move(run, then, "again") and now(site, run).reason == ""
        else:
            with pytest.raises(db.ConflictError, match=f"the run is {first}, which leads to .*; not to {then}"):
                site.move(run, then)
            assert now(site, run).state == first


def test_what_a_step_notes(site):
    run = site.run()
    assert site.move(run, "running", device="cpu[0]", attempt=1, epoch=2**40, seed=2**62)
    started = now(site, run).started_at
    assert started.utcoffset().total_seconds() == 0
    site.move(run, "queued", "the agent\0is gone")
    assert now(site, run).started_at is None, "waiting is no time of a run, also where it is cancelled meanwhile"
    site.move(run, "running", device="cpu[1]", attempt=2)
    site.move(run, "finished", best_value=float("nan"))
    run = now(site, run)
    assert (run.started_at > started, run.device, run.attempt, run.best_value, run.seed) == (True, "cpu[1]", 2, None, 2**62)
    assert run.finished_at >= started and run.job.retries == 1 and run.job.last_error == "the agent\ufffdis gone"
    with pytest.raises(db.NotFoundError):
        site.move(db.Run(id="no"), "running")


def test_of_many_who_lead_a_run_on_at_once_one_does(site):
    run, led = site.run(), []
    for thread in at_once(*[lambda: led.append(site.move(run, "running"))] * 6):
        thread.join()
    assert sorted(led) == [False] * 5 + [True]


def test_lines_and_values_are_there_once_whoever_sends_them_again(site):
    run = site.run()
    for _ in range(3):
        site.output(run.id, (1, "one"), (2, "a\0b"), step=2**40, values={"loss": 0.5, "wi\0d": float("inf")}, epoch=2**40,
                    split="val")
    site.output(run.id, (1, "again"), attempt=2)
    lines, values = site.get(f"runs/{run.id}/logs"), site.get(f"runs/{run.id}/metrics")
    assert [(row["attempt"], row["n"], row["line"]) for row in lines] == [(1, 1, "one"), (1, 2, "a\ufffdb"), (2, 1, "again")]
    assert [(row["key"], row["value"], row["step"], row["split"]) for row in values] == [
        ("loss", 0.5, 2**40, "val"), ("wi\ufffdd", None, 2**40, "val")]
    with pytest.raises(db.NotFoundError):
        site.output("no", (1, "x"))


def test_lines_of_many_writers_become_visible_in_the_order_of_their_ids(site):
    """A reader that goes on after the last id it saw misses nothing, though transactions end in any order."""
    run, seen, last = site.run(), [], 0

    def write(attempt):
        for n in range(25):
            site.output(run.id, (n, "x"), attempt=attempt)

    writers, over = at_once(*(partial(write, attempt) for attempt in range(3))), False
    while not over:
        over = not any(writer.is_alive() for writer in writers)
        lines = site.database.rows_after(db.RunLog, run.id, last, 1000)
        seen += [(line.attempt, line.n) for line in lines]
        last = lines[-1].id if lines else last
    assert sorted(seen) == list(itertools.product(range(3), range(25)))


def test_bodies_of_the_originals_clients_are_taken(site):
    project = site.post("projects", name="original").json()["id"]
    config = site.post("configs", project_id=project, name="original", config_json=NOTEBOOK).json()
    run = site.post(f"runs/from-config/{config['id']}", docker_image=None, env=None).json()
    assert config["config_json"]["notebook"] == NOTEBOOK["notebook"] and run["docker_image"] == "" and run["env"] == {}
    bodies = {"agents": {"name": "ws", "host": None},
              "groups": {"project_id": project, "name": "g", "description": None, "tags": ["a", "b"]},
              "datasets": {"name": "d", "root_path": "data/pets", "split_layout": {"train": "train"}},
              "models": {"label": "m", "hf_checkpoint_id": "google/vit", "notes": "large", "default_pretrained": False},
              "augmentations": {"name": "flip", "type": "gpu", "params": {"p": 0.5}}}
    rows = {path: site.post(path, **body).json() for path, body in bodies.items()}
    assert (rows["agents"]["host"], rows["agents"]["manual"]) == ("", True)
    assert rows["groups"]["description"] == "tags: a, b"
    assert rows["datasets"]["root"] == "data/pets" and rows["datasets"]["facts"] == {"split_layout": {"train": "train"}}
    model = {"name": "m", "flavour": "google/vit", "description": "large", "facts": {"default_pretrained": False}}
    assert model.items() <= rows["models"].items()
    assert rows["augmentations"]["params"] == {"type": "gpu", "p": 0.5}


def test_a_run_from_a_project_to_its_cancellation_and_every_list_and_page_of_it(site):
    project = site.post("projects", name="retina", description="of eyes").json()["id"]
    group = site.post("groups", name="first", project_id=project).json()["id"]
    config = site.post("configs", project_id=project, group_id=group, name="profile", config=NOTEBOOK).json()
    assert config["version"] == 1 and config["kind"] == "notebook" and config["config_json"]["parameters"]["workload"] == "W1"
    assert site.post(f"configs/{config['id']}/validate").json() == {"valid": True, "errors": {}}
    agent = site.post("agents", name="ws", host="ws-1").json()["id"]
    card = {"agent_id": agent, "index": 1, "name": "a card", "total_mem_mb": 24000, "compute_capability": "8.9"}
    assert site.post("agents/gpus", **card).status_code == 201
    assert "gpu 1 already" in site.post("agents/gpus", **card).json()["detail"]
    answers = [site.post(f"agents/{agent}/gpus/1/{what}") for what in ("reserve", "reserve?reserved=false", "release")]
    assert [answer.json().get("is_allocated", answer.status_code) for answer in answers] == [True, 409, False]
    wanted = {"gpu_indices": [1], "tags": ["first"]}
    run = site.post(f"runs/from-config/{config['id']}", priority=3, agent_id=agent, **wanted).json()
    own, at = f"runs/{run['id']}", f"projects/{project}"
    assert run["state"] == "queued" and run["job"]["priority"] == 3 and run["only_agent_id"] == agent
    assert wanted.items() <= run.items()
    site.dispatcher.submit.assert_called_once_with(run["id"])
    assert (paths.DATA / run["folder"]).is_dir()
    assert site.post(f"{own}/priority", priority=9).json()["job"]["priority"] == 9
    assert site.get("runs", state="queued", project_id=project) == [site.get(own)]
    site.move(db.Run(id=run["id"]), "running", agent_id=agent, device="cuda:0")
    site.output(run["id"], (1, "a line"), step=1, values={"loss": 1.0})
    lists = ["projects", "groups", "runs", "agents", f"{own}/logs", f"{own}/metrics", f"agents/{agent}/gpus"]
    assert [len(site.get(path)) for path in lists] == [1] * len(lists) and site.get(f"configs/project/{project}") == [config]
    assert site.post(f"agents/{agent}/refresh").json() == site.get("agents")[0]
    pages = ["projects", "agents", "schedule", own, f"{own}/log", f"{at}/runs", f"{at}/configs"]
    assert {site.page.get(f"/web/{path}").status_code for path in pages} == {200}
    state, lines, values, *after = events.read(site.database, run["id"], 0, 0)
    assert state["place"] == "ws cuda:0" and lines == [[1, 1, "a line"]] and values == [[1, None, "loss", 1.0, "train"]]
    assert events.read(site.database, run["id"], *after)[1:3] == ([], [])
    assert site.post(f"{own}/cancel").json()["state"] == "cancelled"
    assert site.get("runs", state="running") == []


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
    assert site.api.get("/api/v1/projects").status_code == 503


def test_a_postgresql_has_one_server(postgres):  # noqa: F811
    one, other = Database(postgres.url), Database(postgres.url)
    with served(one), refused("another dashboard serves postgresql"), served(other):
        pass
    with served(other):
        pass


def test_a_postgresql_that_is_gone_comes_back(home, postgres):  # noqa: F811
    site = Site(postgres.url, wait_s=0.2)
    try:
        site.project("kept")
        postgres.stop()
        assert says_that_it_is_away(site)
        postgres.start()
        assert [row["name"] for row in site.get("projects")] == ["kept"]
        with site.database.engine.connect() as other:
            other.execute(text("LOCK TABLE projects"))
            assert says_that_it_is_away(site)
        assert not says_that_it_is_away(site)
    finally:
        db.Base.metadata.drop_all(site.database.engine)
        site.database.engine.dispose()


@pytest.mark.parametrize("url, line", [
    ("nonsense", "is no URL of a database"), ("mysql://host/name", "is of mysql; it takes sqlite or postgresql"),
    ("sqlite://", "SQLite takes a file"), ("postgresql://me:secret@localhost:1/x", r"me:\*\*\*@localhost:1/x cannot be used")])
def test_a_url_of_no_database_is_refused_in_one_line_that_keeps_the_password(home, url, line):
    with refused(line) as error:
        Database(url)
    assert "secret" not in str(error.value)


def test_a_database_of_an_older_version_gets_columns_that_may_be_empty_and_is_refused_without_others(home):
    site = Site()
    run = site.run()
    with site.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN notes")
    site = Site()
    assert site.post(f"runs/{run.id}/notes", notes="kept").json()["notes"] == "kept"
    with site.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN placement")
    with refused(r"older version, without runs\.placement"):
        Site()


def test_only_its_owner_reads_the_file_and_one_that_is_no_database_is_refused(home):
    path = paths.DATA / "dashboard/dashboard.db"
    Database().engine.dispose()
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"no database" * 100)
    with refused("cannot be used as a database"):
        Database()

