"""The dashboard's database, on SQLite and on a real PostgreSQL: states, lines and values, and what happens when it is away."""

import itertools
import threading

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, select, text

from lib import paths
from lib.dashboard import configurations, events
from lib.dashboard import database as db
from lib.dashboard.engine import Database, served
from lib.errors import InputError
from tests.dashboards import Site, postgres  # noqa: F401


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


def state_of(site, run):
    with site.database.reading() as session:
        return session.get(db.Run, run.id)


def test_a_run_takes_only_the_steps_of_the_table(home):
    site = Site()
    config = site.config(site.project())
    for first, then in itertools.product(db.STATES, db.STATES):
        run = site.run(config)
        for step in {"queued": (), "running": ("running",)}.get(first, ("running", first)):
            assert site.move(run, step)
        before = state_of(site, run)
        if then in db.TRANSITIONS[first]:
            assert site.move(run, then, "because")
            assert (state_of(site, run).state, state_of(site, run).reason) == (then, "because")
        elif then == first:
            assert not site.move(run, then, "again")
            assert (state_of(site, run).updated_at, state_of(site, run).reason) == (before.updated_at, "")
        else:
            with pytest.raises(db.ConflictError, match=f"the run is {first}, which leads to .*; not to {then}"):
                site.move(run, then)
            assert state_of(site, run).state == first


def test_what_a_step_notes(site):
    run = site.run()
    assert site.move(run, "running", device="cpu[0]", attempt=1)
    started = state_of(site, run).started_at
    assert started.utcoffset().total_seconds() == 0
    site.move(run, "queued", "the agent is gone")
    site.move(run, "running", device="cpu[1]", attempt=2)
    site.move(run, "finished", best_value=float("nan"))
    with site.database.reading() as session:
        run = session.get(db.Run, run.id)
        assert (run.started_at, run.device, run.attempt, run.best_value) == (started, "cpu[1]", 2, None)
        assert run.finished_at >= started
        assert (run.job.retries, run.job.last_error) == (1, "the agent is gone")
    with pytest.raises(db.NotFoundError):
        site.move(db.Run(id="no"), "running")


def test_of_many_who_lead_a_run_on_at_once_one_does(site):
    run, led = site.run(), []
    threads = [threading.Thread(target=lambda: led.append(site.move(run, "running"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(led) == [False] * 5 + [True]


def test_lines_and_values_are_there_once_whoever_sends_them_again(site):
    run = site.run()
    for _ in range(3):
        with site.database.writing() as session:
            db.add_logs(session, run.id, 1, [(1, "one"), (2, "a\0b")])
            db.add_metrics(session, run.id, 4, {"loss": 0.5, "wild": float("inf")}, epoch=1, split="val")
    with site.database.writing() as session:
        db.add_logs(session, run.id, 2, [(1, "again")])
    with site.database.reading() as session:
        lines = session.execute(select(db.RunLog.attempt, db.RunLog.n, db.RunLog.line).order_by(db.RunLog.id)).all()
        values = session.execute(select(db.RunMetric.key, db.RunMetric.value, db.RunMetric.step, db.RunMetric.split)).all()
    assert lines == [(1, 1, "one"), (1, 2, "a\N{REPLACEMENT CHARACTER}b"), (2, 1, "again")]
    assert sorted(values) == [("loss", 0.5, 4, "val"), ("wild", None, 4, "val")]
    with pytest.raises(db.NotFoundError), site.database.writing() as session:
        db.add_logs(session, "no", 1, [(1, "x")])


def test_lines_of_many_writers_become_visible_in_the_order_of_their_ids(site):
    """A reader that goes on after the last id it saw misses nothing, though transactions end in any order."""
    run, seen, last = site.run(), [], 0
    done = threading.Event()

    def write(attempt):
        for n in range(1, 26):
            with site.database.writing() as session:
                db.add_logs(session, run.id, attempt, [(n, "x")])

    writers = [threading.Thread(target=write, args=(attempt,)) for attempt in range(1, 4)]
    for writer in writers:
        writer.start()
    while not done.is_set():
        if not any(writer.is_alive() for writer in writers):
            done.set()
        with site.database.reading() as session:
            rows = session.execute(select(db.RunLog.id, db.RunLog.attempt, db.RunLog.n).where(db.RunLog.id > last)
                                   .order_by(db.RunLog.id)).all()
        seen += [(row.attempt, row.n) for row in rows]
        last = rows[-1].id if rows else last
    assert sorted(seen) == [(attempt, n) for attempt in range(1, 4) for n in range(1, 26)]


def test_every_list_and_page_is_there_on_both(site):
    agent = site.api.post("/api/v1/agents/manual", json={"name": "ws"}).json()
    assert site.api.post("/api/v1/agents/gpus", json={"agent_id": agent["id"], "index": 0}).status_code == 201
    assert site.api.post(f"/api/v1/agents/{agent['id']}/gpus/0/reserve").json()["is_allocated"]
    run = site.run(tags=["first"], gpu_indices=[0], agent_id=agent["id"])
    site.move(run, "running", agent_id=agent["id"], device="cuda:0")
    with site.database.writing() as session:
        db.add_logs(session, run.id, 1, [(1, "a line")])
        db.add_metrics(session, run.id, 1, {"loss": 1.0})
    shown = site.api.get(f"/api/v1/runs/{run.id}").json()
    assert (shown["tags"], shown["gpu_indices"], shown["only_agent_id"]) == (["first"], [0], agent["id"])
    for path in ("projects", "groups", "datasets", "models", "augmentations", "runs", "agents", "schedule",
                 f"runs/{run.id}/logs", f"runs/{run.id}/metrics", f"configs/project/{run.project_id}",
                 f"agents/{agent['id']}/gpus"):
        assert site.api.get(f"/api/v1/{path}").status_code == 200, path
    for path in ("projects", "agents", "schedule", f"runs/{run.id}", f"runs/{run.id}/log", f"projects/{run.project_id}/runs",
                 f"projects/{run.project_id}/runs?offset=1", f"projects/{run.project_id}/configs"):
        assert site.page.get(f"/web/{path}").status_code == 200, path
    state, lines, values, *after = events.read(site.database, run.id, 0, 0)
    assert (state["place"], lines, values) == ("ws cuda:0", [[1, 1, "a line"]], [[1, None, "loss", 1.0, "train"]])
    assert events.read(site.database, run.id, *after)[1:3] == ([], [])


def test_a_failed_change_leaves_nothing(site):
    project = site.project()
    with pytest.raises(ZeroDivisionError), site.database.writing() as session:
        session.add(db.Group(project_id=project.id, name="half"))
        session.flush()
        raise ZeroDivisionError
    with site.database.reading() as session:
        assert session.scalar(select(db.Group.id)) is None


def test_what_is_asked_often_has_an_index(site):
    indexed = {(table, tuple(index["column_names"])) for table in ("runs", "run_logs", "run_metrics")
               for index in inspect(site.database.engine).get_indexes(table)}
    assert {("runs", ("state", "created_at")), ("runs", ("project_id", "created_at")), ("run_logs", ("run_id", "id")),
            ("run_metrics", ("run_id", "id"))} <= indexed


def refused(site):
    answer = site.api.post("/api/v1/projects", json={"name": "while it is away"})
    return answer.status_code == 503 and answer.json()["detail"].startswith("the database is locked, full or gone")


def test_a_locked_sqlite_is_said_in_one_line_and_comes_back(home):
    site = Site()
    with site.database.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        assert refused(site)
        assert "locked" in site.page.post("/web/projects", data={"name": "form"}).text
        assert site.api.get("/api/v1/projects").status_code == 200  # readers of a WAL go on
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN")
    assert site.api.post("/api/v1/projects", json={"name": "after"}).status_code == 201


def test_a_sqlite_that_is_gone_is_not_made_anew_and_comes_back(home):
    site = Site()
    site.project("kept")
    site.database.engine.dispose()
    path = paths.DATA / "dashboard/dashboard.db"
    path.rename(path.with_suffix(".away"))
    assert refused(site)
    assert site.api.get("/api/v1/projects").status_code == 503
    assert site.page.get("/web/projects").status_code == 503
    assert not path.exists()
    path.with_suffix(".away").rename(path)
    assert [row["name"] for row in site.api.get("/api/v1/projects").json()] == ["kept"]


def test_a_file_that_takes_the_place_of_the_database_is_not_mistaken_for_it(home):
    site, path = Site(), paths.DATA / "dashboard/dashboard.db"
    assert site.api.get("/api/v1/projects").status_code == 200
    path.rename(path.with_suffix(".away"))
    path.write_bytes(b"")
    assert site.api.get("/api/v1/projects").status_code == 503


def test_large_numbers_and_odd_signs_are_kept_or_refused(site):
    run = site.run()
    site.move(run, "running", epoch=2**40, seed=2**62)
    with site.database.writing() as session:
        db.add_metrics(session, run.id, 2**40, {"a\0b": 1.0}, 2**40)
    site.move(run, "failed", "a\0b")
    assert (state_of(site, run).reason, state_of(site, run).seed) == ("a\ufffdb", 2**62)
    other = site.run(site.config(site.project("other")))
    client = TestClient(site.app, base_url="http://dashboard", headers=site.api.headers, raise_server_exceptions=False)

    @site.app.get("/api/v1/large")
    def large():
        site.move(other, "running", epoch=2**70)

    answer = client.get("/api/v1/large")
    assert (answer.status_code, "none that the database can keep" in answer.text) == (422, True)


def test_a_postgresql_has_one_server(postgres):  # noqa: F811
    one, other = Database(postgres.url), Database(postgres.url)
    with served(one), pytest.raises(InputError, match="another dashboard serves postgresql"), served(other):
        pass
    with served(other):
        pass


def test_a_postgresql_that_is_gone_comes_back(home, postgres):  # noqa: F811
    site = Site(postgres.url)
    try:
        site.project("kept")
        postgres.stop()
        assert refused(site)
        postgres.start()
        assert [row["name"] for row in site.api.get("/api/v1/projects").json()] == ["kept"]
        with site.database.engine.connect() as other:
            other.execute(text("LOCK TABLE projects"))
            assert refused(site)
        assert not refused(site)
    finally:
        db.Base.metadata.drop_all(site.database.engine)
        site.database.engine.dispose()


@pytest.mark.parametrize(("url", "line"), [
    ("nonsense", "is no URL of a database"), ("mysql://host/name", "is of mysql; it takes sqlite or postgresql"),
    ("sqlite://", "SQLite takes a file"), ("postgresql://me:secret@localhost:1/x", r"me:\*\*\*@localhost:1/x cannot be used")])
def test_a_url_of_no_database_is_refused_in_one_line_that_keeps_the_password(home, url, line):
    with pytest.raises(InputError, match=line) as error:
        Database(url)
    assert "secret" not in str(error.value)


def test_a_database_of_an_older_version_is_refused(home):
    site = Site()
    with site.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN placement")
    with pytest.raises(InputError, match=r"older version, without runs\.placement"):
        Site()


def test_a_file_that_is_no_database_is_refused(home):
    path = paths.DATA / "dashboard/dashboard.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="cannot be used as a database"):
        Database()


def test_only_its_owner_reads_the_file(home):
    Site()
    assert (paths.DATA / "dashboard/dashboard.db").stat().st_mode & 0o077 == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["workload", "label"]), st.sampled_from(["W1", "W2"]), min_size=1), st.randoms())
def test_the_hash_of_a_configuration_is_that_of_its_content(values, shuffle):
    def digest(items):
        return configurations.check_config({"parameters": dict(items), "notebook": "notebooks/02_profile.ipynb"}).digest

    items = list(values.items())
    shuffled = shuffle.sample(items, len(items))
    assert digest(items) == digest(shuffled)
    assert digest([*items, ("seed", 7)]) != digest(items)
