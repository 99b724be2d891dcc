"""The dashboard: who gets in, what the API refuses, what pages show, and that a page that comes again misses nothing."""

import gc
import itertools
import json
import re
import socket
import sys
import threading
from unittest.mock import Mock

import httpx
import pandas as pd
import pytest
import schemathesis
import sqlalchemy
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import escape

from lib import locks, paths
from lib.cli import dashboard as cli_dashboard
from lib.cli.main import main
from lib.dashboard import database as db
from lib.dashboard import events, operations, security
from lib.errors import InputError
from tests.agents import serving
from tests.dashboards import BEARER, NOTEBOOK, TINY, TOKEN, Remembering, Site

NOBODY = "00000000-0000-4000-8000-000000000000"
HOSTILE = """<script>alert('x')</script>"'><img src=x onerror=alert(1)>{{7*7}}</title>&amp;"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Have one site for the tests of this file, with its data in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "DATA", tmp_path_factory.mktemp("shared") / "data")
        patch.setattr(paths, "TRAINING", paths.DATA / "training", raising=False)
        yield Site()


@pytest.fixture
def site(shared):
    """Give the site as new."""
    shared.clear()
    return shared


def endpoints(site):
    paths_ = site.api.get("/api/v1/openapi.json").json()["paths"]
    return [(method, re.sub(r"{[^}]*}", NOBODY, path)) for path, methods in paths_.items() for method in methods]


# --- who gets in
def test_every_endpoint_refuses_a_missing_or_a_wrong_token(site):
    every = endpoints(site)
    assert len(every) >= 38
    wrong = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN},
             {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer "}, {"Cookie": f"dashboard={TOKEN}"},
             {"Cookie": f"dashboard={security.cookie(TOKEN)}"}]
    for (method, path), headers in itertools.product([*every, ("get", "/api/v1/openapi.json"), ("get", "/api/none")], wrong):
        answer = site.stranger.request(method, f"{path}?token={TOKEN}", headers=headers)
        assert (answer.status_code, list(answer.json())) == (401, ["detail"]), (method, path, headers)


def test_every_page_sends_a_stranger_to_the_login(site):
    pages = ("projects", f"projects/{NOBODY}/configs", f"projects/{NOBODY}/runs", f"runs/{NOBODY}", f"runs/{NOBODY}/events",
             f"runs/{NOBODY}/log", f"runs/{NOBODY}/files/x", f"runs/{NOBODY}/notebook/x", "agents", "schedule", "changes/runs",
             "none")
    for path in (*(f"/web/{page}" for page in pages), "/", "/docs", "/openapi.json", "/loginx", "/static"):
        for headers in ({}, {"Cookie": f"dashboard={TOKEN}"}, BEARER, {"Cookie": "dashboard=9999999999.0"}):
            answer = site.stranger.get(path, headers=headers)
            assert (answer.status_code, answer.headers["location"][:11]) == (303, "/login?next"), path
    assert site.stranger.get("/login").status_code == site.stranger.get("/static/live.js").status_code == 200


def test_the_cookie_is_no_token_and_only_this_site_sends_it(site, monkeypatch):
    answer = site.stranger.post("/login", data={"token": TOKEN, "next": "/web/agents"}, headers={"Origin": "http://dashboard"})
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert answer.headers["location"] == "/web/agents"
    value = cookie.partition("=")[2].partition(";")[0]
    until, mark = value.split(".")
    for forged, status in ((value, 200), (f"{int(until) + 1}.{mark}", 303), (f"{until}.{mark[:-1]}", 303), (f"{until}.", 303)):
        assert site.stranger.get("/web/agents", headers={"Cookie": f"dashboard={forged}"}).status_code == status
    monkeypatch.setattr(security.time, "time", lambda: int(until) + 1.0)
    assert site.stranger.get("/web/agents", headers={"Cookie": f"dashboard={value}"}).status_code == 303


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "\n/web", "/web?x", "/logout"])
def test_the_login_leads_nowhere_else(site, target):
    answer = site.stranger.post("/login", data={"token": TOKEN, "next": target}, headers={"Origin": "http://dashboard"})
    assert answer.headers["location"] == "/"


def test_a_wrong_token_is_refused_at_the_login(site):
    answer = site.stranger.post("/login", data={"token": "wrong", "next": HOSTILE}, headers={"Origin": "http://dashboard"})
    assert answer.status_code == 401
    assert "this is not the token" in answer.text
    assert "<script>alert" not in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://dashboard.evil.example", "http://dashboard:81"])
def test_a_form_of_another_site_changes_nothing(site, origin):
    headers = {} if origin is None else {"Origin": origin}
    cookie = {"Cookie": f"dashboard={security.cookie(TOKEN)}"}
    assert site.stranger.post("/web/projects", data={"name": "x"}, headers=headers | cookie).status_code == 403
    assert site.stranger.post("/login", data={"token": TOKEN}, headers=headers).status_code == 403
    assert site.api.get("/api/v1/projects").json() == []


def test_a_request_that_is_too_large_is_refused(home):
    site = Site(most_bytes=5000)
    many = (b"x" * 1000 for _ in range(10))
    for content in (b"x" * 5001, many):
        answer = site.api.post("/api/v1/projects", content=content)
        assert (answer.status_code, len(answer.text.splitlines())) == (413, 1)
    assert site.page.post("/web/projects", content=b"x" * 5001).status_code == 413
    assert site.api.post("/api/v1/projects", json={"name": "x" * 120}).status_code == 201


def test_browsers_are_told_to_run_nothing_but_our_script(site):
    for answer in (site.page.get("/web/projects"), site.page.get("/web/none"), site.stranger.get("/login"),
                   site.api.get("/api/v1/none")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_token_is_kept_where_only_its_owner_reads_it(home, monkeypatch):
    monkeypatch.delenv("DASHBOARD_TOKEN", raising=False)
    token, path = security.read_token(home / "own")
    assert len(token) >= 40
    assert path.stat().st_mode & 0o077 == 0
    assert security.read_token(home / "own") == (token, path)
    monkeypatch.setenv("DASHBOARD_TOKEN", "given-by-somebody-0123")
    assert security.read_token(home / "own") == ("given-by-somebody-0123", None)
    for bad in ("", "short", "with spaces in it but long", "ümlaut-and-long-enough"):
        monkeypatch.setenv("DASHBOARD_TOKEN", bad)
        with pytest.raises(InputError, match="a token is of 16 to 200") as error:
            security.read_token(home / "own")
        assert not bad or bad not in str(error.value)


@pytest.fixture
def verb(home, monkeypatch, capsys):
    """Return what the verb does where the server does not run: the applications that it would serve, and what it printed."""
    served = []
    monkeypatch.setattr("lib.dashboard.dispatcher.Dispatcher", lambda rows, folder: Remembering(rows))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: served.append(server.config.app))
    monkeypatch.delenv("DASHBOARD_TOKEN", raising=False)

    def call(*words):
        status = main(["dashboard", "--port", "0", "--no-agent", *words])
        return status, served, capsys.readouterr()

    return call


def test_the_verb_prints_where_the_token_is_and_not_the_token(verb, home):
    status, served, printed = verb("--demo")
    token = (home / "data/dashboard/token").read_text().strip()
    assert status == 0
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+  \(token: {home}/data/dashboard/token\)\n", printed.out)
    assert token not in printed.out + printed.err
    assert verb("--demo")[0] == 0  # a second time adds nothing
    api = TestClient(served[1], headers={"Authorization": f"Bearer {token}"})
    (project,) = api.get("/api/v1/projects").json()
    configs = api.get(f"/api/v1/configs/project/{project['id']}").json()
    assert sorted(config["kind"] for config in configs) == ["finetune", "notebook"]


def test_a_port_that_is_taken_is_said_in_one_line(verb):
    with socket.create_server(("127.0.0.1", 0)) as other:
        status, served, printed = verb("--port", str(other.getsockname()[1]))
    assert (status, served) == (1, [])
    assert "Address already in use" in printed.err


# --- the API
@pytest.mark.parametrize("lock", ["queue/run.sqlite", "dashboard.db"])
def test_a_server_that_another_one_keeps_from_starting_says_so_in_one_line(home, monkeypatch, capsys, lock):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with locks.writer(paths.DATA / "dashboard" / lock):
        status = main(["dashboard", "--port", "0", "--no-agent"])
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and "is being written by another process" in error


def test_an_agent_of_the_server_gets_its_token_and_not_its_database(monkeypatch):
    monkeypatch.setenv("DASHBOARD_DB_URL", "postgresql://me:secret@host/name")
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda words, env: started.append(env) or Mock())
    with cli_dashboard._agent("http://127.0.0.1:1", TOKEN):
        (environment,) = started
    assert environment["DASHBOARD_TOKEN"] == TOKEN and "PATH" in environment and "DASHBOARD_DB_URL" not in environment


def test_an_address_of_the_sixth_version_is_in_brackets(verb):
    status, _, printed = verb("--host", "::1")
    assert status == 0 and re.match(r"http://\[::1\]:\d+  ", printed.out)


def test_a_run_from_a_project_to_its_cancellation(site):
    api = site.api
    project = api.post("/api/v1/projects", json={"name": "retina", "description": "of eyes"}).json()
    group = api.post("/api/v1/groups", json={"name": "first", "project_id": project["id"]}).json()
    config = api.post("/api/v1/configs", json={"project_id": project["id"], "group_id": group["id"], "name": "profile",
                                               "config": NOTEBOOK}).json()
    assert (config["version"], config["kind"], config["config_json"]["parameters"]["workload"]) == (1, "notebook", "W1")
    assert api.post(f"/api/v1/configs/{config['id']}/validate").json() == {"valid": True, "errors": {}}
    assert [one["id"] for one in api.get(f"/api/v1/configs/project/{project['id']}").json()] == [config["id"]]
    run = api.post(f"/api/v1/runs/from-config/{config['id']}", json={"priority": 3, "docker_image": "kept/only:1"}).json()
    assert (run["state"], run["job"]["priority"], run["docker_image"]) == ("queued", 3, "kept/only:1")
    assert site.dispatcher.submitted[0].config.config_json == config["config_json"]
    assert (paths.DATA / run["folder"]).is_dir()
    assert api.post(f"/api/v1/runs/{run['id']}/priority", json={"priority": 9}).json()["job"]["priority"] == 9
    assert site.dispatcher.reordered == [(run["id"], 9)]
    waiting = api.get("/api/v1/runs", params={"state": "queued", "project_id": project["id"]}).json()
    assert [one["id"] for one in waiting] == [run["id"]]
    assert api.post(f"/api/v1/runs/{run['id']}/cancel").json()["state"] == "cancelled"
    assert api.post(f"/api/v1/runs/{run['id']}/cancel").status_code == 409
    assert api.get("/api/v1/runs", params={"state": "queued"}).json() == []
    assert api.get("/api/v1/auth").json() == {"authenticated": True}


def test_the_same_content_is_no_new_version_and_other_content_is(site):
    project = site.project()
    body = {"project_id": project.id, "name": "one", "config": NOTEBOOK}
    other = {**NOTEBOOK, "parameters": {"source": "replay", "seed": 7}}
    again = {"parameters": {**NOTEBOOK["parameters"], "workload": "W1"}, "notebook": NOTEBOOK["notebook"]}  # its default
    answers = [site.api.post("/api/v1/configs", json={**body, "config": config}) for config in (NOTEBOOK, other, again)]
    assert [answer.status_code for answer in answers] == [201, 201, 409]
    assert [answer.json()["version"] for answer in answers[:2]] == [1, 2]
    assert "it is version 1" in answers[2].json()["detail"]


def test_a_run_that_is_carried_out_by_hand_is_not_in_the_queue(site):
    run = site.run(enqueue=False)
    assert not site.dispatcher.submitted
    assert site.api.post(f"/api/v1/runs/{run.id}/priority", json={"priority": 1}).status_code == 409
    assert site.api.post(f"/api/v1/runs/{run.id}/start").json()["state"] == "running"
    ended = site.api.post(f"/api/v1/runs/{run.id}/finish", json={"state": "failed", "reason": "power cut"}).json()
    assert (ended["state"], ended["reason"], ended["job"]) == ("failed", "power cut", None)
    queued = site.run(site.config(site.project("other")))
    assert "in the queue" in site.api.post(f"/api/v1/runs/{queued.id}/start").json()["detail"]


def test_agents_and_cards_by_hand(site):
    agent = site.api.post("/api/v1/agents/manual", json={"name": "ws", "host": "ws-1"}).json()
    card = {"agent_id": agent["id"], "index": 1, "name": "a card", "total_mem_mb": 24000, "compute_capability": "8.9"}
    assert site.api.post("/api/v1/agents/gpus", json=card).status_code == 201
    assert "gpu 1 already" in site.api.post("/api/v1/agents/gpus", json=card).json()["detail"]
    at = f"/api/v1/agents/{agent['id']}/gpus"
    answers = [site.api.post(f"{at}/1/{what}") for what in ("reserve", "reserve", "release", "release")]
    assert [answer.status_code for answer in answers] == [200, 409, 200, 409]
    assert [gpu["is_allocated"] for gpu in site.api.get(at).json()] == [False]
    assert [one["gpus"][0]["name"] for one in site.api.get("/api/v1/agents").json()] == ["a card"]
    assert site.api.post(f"/api/v1/agents/{agent['id']}/refresh").json()["host"] == "ws-1"


def test_the_schedule_says_why(site):
    site.dispatcher.planned = pd.DataFrame([{"job_id": "a", "device": "ws/cpu", "start_s": 1.0, "end_s": float("inf"),
                                             "status": "planned", "reason": "earliest end"}])
    row = site.api.get("/api/v1/schedule").json()[0]
    assert (row["end_s"], row["reason"]) == (None, "earliest end")


def test_a_run_that_fits_no_slot_is_shown_to_wait(site):
    site.dispatcher.planned = pd.DataFrame([
        {"job_id": "a", "device": "", "start_s": float("nan"), "end_s": float("nan"), "status": "waiting", "reason": "large"},
        {"job_id": "b", "device": "ws/cpu", "start_s": -1.0, "end_s": 5.0, "status": "running", "reason": "earliest end"}])
    assert [row["start_s"] for row in site.api.get("/api/v1/schedule").json()] == [None, -1.0]
    page = site.page.get("/web/schedule")
    assert page.status_code == 200 and "waits" in page.text and "large" in page.text
    assert page.text.count("<rect") == 1


def test_folders_of_the_project_and_names_of_the_hub_are_taken(site):
    project = site.project()
    for number, values in enumerate(({"root": "data/pictures"}, {"root": str(paths.DATA / "pictures")},
                                     {"root": "medmnist:pathmnist"}, {"model_flavour": "google/vit-base-patch16-224-in21k"})):
        site.config(project, f"c{number}", {**TINY, **values})


def test_more_runs_wait_than_are_shown(site):
    run = site.run()
    with site.database.writing() as session:
        columns = {name: getattr(run, name) for name in ("project_id", "config_id", "name")}
        session.execute(sqlalchemy.insert(db.Run), [{**columns, "folder": f"f{number}"} for number in range(600)])
    assert "601 waiting" in site.page.get("/web/schedule").text


def test_a_run_that_ended_a_moment_ago_is_not_cancelled(site):
    run = site.run()
    site.move(run, "running")
    site.dispatcher.ended.add(run.id)
    answer = site.api.post(f"/api/v1/runs/{run.id}/cancel")
    assert (answer.status_code, answer.json()["detail"]) == (409, "the run has just ended by itself")
    assert site.move(run, "finished")


def test_pages_of_a_list_have_limits(site):
    for number in range(5):
        site.project(f"p{number}")
    pages = [site.api.get("/api/v1/projects", params={"limit": 2, "offset": offset}).json() for offset in (0, 2, 4)]
    assert [row["name"] for page in pages for row in page] == ["p4", "p3", "p2", "p1", "p0"]
    assert site.api.get("/api/v1/projects", params={"limit": 501}).status_code == 422


WRONG = [
    ("post", "/projects", {"name": ""}, 422, "name: String should have at least 1 character"),
    ("post", "/projects", {"name": " x"}, 422, "name"), ("post", "/projects", {"name": "a\0b"}, 422, "name"),
    ("post", "/projects", {"name": "x", "colour": 1}, 422, "colour: is no known field"),
    ("post", "/projects", {"name": "x" * 121}, 422, "at most 120"), ("post", "/projects", [], 422, "value"),
    ("post", "/groups", {"name": "g", "project_id": NOBODY}, 404, f"there is no project {NOBODY}"),
    ("post", "/groups", {"name": "g", "project_id": "7"}, 422, "project_id"),
    ("post", "/datasets", {"name": "d", "facts": {"a": "\0"}}, 422, "facts"),
    ("post", "/datasets", {"name": "d", "facts": {"a": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}}, 422, "16 levels"),
    ("post", "/configs", {"project_id": NOBODY, "name": "c", "config": NOTEBOOK}, 404, "there is no project"),
    ("post", f"/runs/from-config/{NOBODY}", {}, 404, "there is no trainconfig"),
    ("post", f"/runs/{NOBODY}/cancel", None, 404, "there is no run"), ("get", "/runs/none", None, 422, "run_id"),
    ("get", f"/runs/{NOBODY}/events", None, 404, "there is no run"), ("get", "/runs?state=odd", None, 422, "state"),
    ("get", "/runs?limit=0", None, 422, "limit"), ("get", f"/runs/{NOBODY}/logs?after=-1", None, 422, "after"),
    ("post", "/agents/gpus", {"agent_id": NOBODY, "index": 0}, 404, "there is no agent"),
    ("post", f"/agents/{NOBODY}/gpus/0/reserve", None, 404, "has no GPU 0"),
    ("post", f"/agents/{NOBODY}/gpus/99999999999999999999/reserve", None, 422, "index"),
    ("get", "/none", None, 404, "Not Found"), ("delete", "/projects", None, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "line"), WRONG)
def test_wrong_input_is_said_in_one_line(shared, method, path, body, status, line):
    answer = shared.api.request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == status
    assert line in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"name": "\\ud800"}', b'{"name": 1e400}',
                                     b'{"name": "d", "facts": {"a": NaN}}',
                                     b'{"name": "d", "facts": {"a": ' + b"9" * 5000 + b"}}"])
def test_a_body_that_is_no_json_is_refused(shared, content):
    answer = shared.api.post("/api/v1/datasets", content=content, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]


@pytest.mark.parametrize(("config", "fields"), [
    ({"notebook": "notebooks/02_profile.ipynb", "parameters": {"epochs": 0, "devise": "cpu", "lr": "fast"}},
     {"parameters.epochs", "parameters.devise", "parameters.lr"}),
    ({"notebook": "../../etc/passwd", "parameters": 3, "more": 1}, {"notebook", "parameters", "more"}),
    ({"notebook": ["notebooks/02_profile.ipynb"]}, {"notebook"}),
    ({**TINY, "hf_token": "hf_secret"}, {"hf_token"}),
    ({**TINY, "root": "/etc", "model_flavour": "../elsewhere", "epochs": 10**30}, {"root", "model_flavour", "epochs"}),
    ({**TINY, "root": "~/pictures"}, {"root"}), ({**TINY, "root": "data/../../pictures"}, {"root"}),
    ({"notebook": "notebooks/05_roofline.ipynb", "parameters": {"nsight": "/etc/passwd"}}, {"parameters.nsight"}),
    ({"notebook": "notebooks/08_layer_power.ipynb", "parameters": {"recordings": "../x", "engine": "~x"}},
     {"parameters.recordings", "parameters.engine"}),
    ({"notebook": "notebooks/04_complexity.ipynb", "parameters": {"models": "W1,os:system"}}, {"parameters.models"}),
    ({**TINY, "epochs": 0, "lr": "fast", "colour": "red", "loss_name": "none", "hf_token": "hf_secret"},
     {"epochs", "lr", "colour", "loss_name", "hf_token"})])
def test_all_errors_of_a_configuration_come_at_once_by_field(shared, config, fields):
    answer = shared.api.post("/api/v1/configs", json={"project_id": NOBODY, "name": "c", "config": config})
    assert answer.status_code == 422
    assert set(answer.json()["errors"]) == fields
    assert "hf_secret" not in answer.text


def test_no_input_makes_the_server_fail(shared):
    """Schemathesis over the OpenAPI document, with ids that are there as often as ids that are not."""
    config = shared.config(shared.project("fuzzed"))
    run = shared.run(config)
    agent = operations.add(shared.database, db.Agent, {"name": "fuzzed"})
    known = {"project_id": config.project_id, "config_id": config.id, "run_id": run.id, "agent_id": agent.id,
             "row_id": config.project_id}
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", shared.app, headers=BEARER)
    visited = set()

    def check(case, real):
        if real:
            case.path_parameters |= {name: known[name] for name in case.path_parameters if name in known}
        answer = case.call(headers=BEARER)
        assert answer.status_code < 500, (case.operation.path, answer.text)
        visited.add(answer.status_code)

    for operation in (result.ok() for result in schema.get_all_operations()):
        if not operation.path.endswith("/events"):  # whose answer ends with its run
            settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)(
                given(operation.as_strategy(), st.booleans())(check))()
    assert {200, 201, 404, 409, 422} <= visited


# --- pages
def visible(site):
    """Return every page of a site as text."""
    project = site.api.get("/api/v1/projects").json()[0]["id"]
    run = site.api.get("/api/v1/runs").json()[0]["id"]
    return {path: site.page.get(path) for path in ("/web/projects", f"/web/projects/{project}/configs", f"/web/runs/{run}",
                                                   f"/web/projects/{project}/runs", "/web/agents", "/web/schedule")}


def test_what_people_write_is_shown_as_text(site):
    project = operations.add(site.database, db.Project, {"name": HOSTILE, "description": HOSTILE})
    config = site.config(project, HOSTILE)
    agent = operations.add(site.database, db.Agent, {"name": HOSTILE, "host": HOSTILE, "labels": {HOSTILE: HOSTILE},
                                                     "load": {HOSTILE: 1}, "slots": [{"name": HOSTILE}]})
    operations.add(site.database, db.Gpu, {"agent_id": agent.id, "index": 0, "name": HOSTILE})
    run = site.run(config)
    site.move(run, "running", agent_id=agent.id, device=HOSTILE, placement=HOSTILE)
    site.move(run, "failed", HOSTILE)
    (paths.DATA / run.folder / "<script>alert('x')<").mkdir()
    (paths.DATA / run.folder / "<script>alert('x')<" / "script>.png").write_bytes(b"")
    site.dispatcher.planned = pd.DataFrame([{"job_id": run.id, "device": HOSTILE, "start_s": 0.0, "end_s": 9.0,
                                             "status": "planned", "reason": HOSTILE}])
    for path, page in visible(site).items():
        assert page.status_code == 200, path
        assert "alert" in page.text, path
        assert not re.search(r"<script>|<img src=x|49<|onerror=alert\(1\)>", page.text.replace("{{7*7}}", "")), path
        assert len(re.findall("<script", page.text)) == 1, path
    again = site.page.post("/web/projects", data={"name": HOSTILE, "description": HOSTILE})
    assert again.status_code == 422
    assert "<script>alert" not in again.text


def test_forms_make_a_project_configurations_and_runs(site):
    page = site.page
    made = page.post("/web/projects", data={"name": "retina"})
    project = re.search(r"/web/projects/([0-9a-f-]+)/configs", str(made.url))[1]
    at = f"/web/projects/{project}"
    assert page.post(f"{at}/groups", data={"group": "first"}).status_code == 200
    pasted = {"source": "json", "name": "pasted", "config": json.dumps(NOTEBOOK)}
    assert page.post(f"{at}/configs", data=pasted).status_code == 200
    assert page.post(f"{at}/configs", data={"source": "notebook", "name": "chosen", "notebook": NOTEBOOK["notebook"],
                                            "parameters": '{"seed": 3}'}).status_code == 200
    fields = {f"field.{name}": str(value) for name, value in TINY.items()} | {"field.eval_topk": "[2]", "field.lr": "0.01"}
    assert page.post(f"{at}/configs", data={"source": "fields", "name": "filled", **fields}).status_code == 200
    configs = {row["name"]: row for row in site.api.get(f"/api/v1/configs/project/{project}").json()}
    assert [configs[name]["kind"] for name in ("pasted", "chosen", "filled")] == ["notebook", "notebook", "finetune"]
    assert (configs["filled"]["config_json"]["eval_topk"], configs["filled"]["config_json"]["lr"]) == ([2], 0.01)
    queued = page.post(f"{at}/runs", data={"config_id": configs["pasted"]["id"], "priority": "4", "agent_id": ""})
    run = re.search(r"/web/runs/([0-9a-f-]+)$", str(queued.url))[1]
    assert page.post(f"/web/runs/{run}/priority", data={"priority": "7"}).status_code == 200
    assert site.dispatcher.reordered == [(run, 7)]
    assert "cancelled" in page.post(f"/web/runs/{run}/cancel").text
    assert page.post(f"/web/runs/{run}/cancel").status_code == 409


@pytest.mark.parametrize(("data", "reasons"), [
    ({"source": "json", "name": "c", "config": '{"root": '}, ["Invalid JSON: EOF"]),
    ({"source": "json", "name": "c", "config": json.dumps({**TINY, "epochs": 0, "lr": "fast"})},
     ["<b>epochs</b>", "<b>lr</b>"]),
    ({"source": "fields", "name": "c", "field.root": "x", "field.model_flavour": "y", "field.loss_name": "cross_entropy",
      "field.epochs": "many", "field.eval_topk": "[1"}, ["valid integer", "valid tuple"]),
    ({"source": "notebook", "name": "c", "notebook": "x", "parameters": "[]"}, ["should be an object"]),
    ({"source": "notebook", "name": "", "notebook": NOTEBOOK["notebook"]}, ["Field required"])])
def test_a_wrong_form_comes_back_as_it_was_with_its_errors(site, data, reasons):
    project = site.project()
    answer = site.page.post(f"/web/projects/{project.id}/configs", data=data)
    assert answer.status_code == 422
    for reason in reasons:
        assert reason in answer.text
    typed = next(value for name, value in data.items() if name in ("config", "field.root", "parameters", "notebook"))
    assert str(escape(typed)) in answer.text
    assert site.api.get(f"/api/v1/configs/project/{project.id}").json() == []


def test_forms_of_agents(site):
    assert site.page.post("/web/agents", data={"name": "ws"}).status_code == 200
    agent = site.api.get("/api/v1/agents").json()[0]["id"]
    assert site.page.post("/web/agents/gpus", data={"agent_id": agent, "index": "0", "name": "a card"}).status_code == 200
    assert "GPU" in site.page.post("/web/agents/gpus", data={"agent_id": agent, "index": "x"}).text
    assert "Release" in site.page.post(f"/web/agents/{agent}/gpus/0/reserve").text
    assert site.page.post(f"/web/agents/{agent}/gpus/0/eat").status_code == 422
    assert site.page.post("/web/agents", data={"name": "ws"}).status_code == 422


# --- files
def test_files_of_a_run_are_served_and_nothing_else(site):
    run = site.run()
    folder = paths.DATA / run.folder
    (folder / "figures").mkdir()
    (folder / "figures/confusion val.png").write_bytes(b"png")
    (folder / "best.pt").write_bytes(b"weights")
    (folder / "page.html").write_text("<script>")
    (paths.DATA / "secret").write_text("secret")
    (folder / "link").symlink_to(paths.DATA / "secret")
    at = f"/web/runs/{run.id}/files"
    picture, weights, page = (site.page.get(f"{at}/{name}") for name in ("figures/confusion%20val.png", "best.pt", "page.html"))
    assert (picture.content, picture.headers["content-type"]) == (b"png", "image/png")
    assert (weights.content, page.headers["content-type"]) == (b"weights", "application/octet-stream")
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.headers["content-security-policy"] == "default-src 'none'; sandbox"
    for name in ("../../../secret", "..%2f..%2f..%2fsecret", "%2e%2e/%2e%2e/%2e%2e/secret", str(paths.DATA / "secret"), "link",
                 "", ".", "figures", "a%00b", "x" * 5000, f"../{folder.name}/../../../secret", "//etc/passwd"):
        for kind in ("files", "notebook"):
            answer = site.page.get(f"/web/runs/{run.id}/{kind}/{name}")
            assert answer.status_code == 404, name
            assert "secret</" not in answer.text
    text = site.page.get(f"/web/runs/{run.id}").text
    assert "figures/confusion%20val.png" in text
    assert "best.pt" in text
    with site.database.writing() as session:
        session.get(db.Run, run.id).folder = "../.."
    assert site.page.get(f"{at}/etc/passwd").status_code == 404


def test_an_executed_notebook_is_shown_without_what_a_browser_would_run(site):
    import nbformat

    run = site.run()
    output = nbformat.v4.new_output("display_data", {"text/html": "<em>two</em><script>bad()</script>"})
    cell = nbformat.v4.new_code_cell("1 + 1", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A title <img src=x onerror=bad()>"), cell]),
                   paths.DATA / run.folder / "executed.ipynb")
    assert f"/web/runs/{run.id}/notebook/executed.ipynb" in site.page.get(f"/web/runs/{run.id}").text
    text = site.page.get(f"/web/runs/{run.id}/notebook/executed.ipynb").text
    assert "A title" in text
    assert "<em>two</em>" in text
    assert not re.search("<script>bad|onerror", text)
    (paths.DATA / run.folder / "broken.ipynb").write_text("{")
    assert site.page.get(f"/web/runs/{run.id}/notebook/broken.ipynb").status_code == 422


def test_the_whole_log_as_text(site):
    run = site.run()
    with site.database.writing() as session:
        db.add_logs(session, run.id, 1, [(n, f"<b>{n}</b>") for n in range(1, 6001)])
    answer = site.page.get(f"/web/runs/{run.id}/log")
    assert answer.text.splitlines() == [f"<b>{n}</b>" for n in range(1, 6001)]
    assert answer.headers["content-type"].startswith("text/plain")


# --- live
def stream(client, url, last, most):
    """Read up to ``most`` messages; return them, and the last id."""
    seen = []
    headers = BEARER | ({"Last-Event-ID": last} if last else {})
    with client.stream("GET", url, headers=headers, timeout=10) as answer:
        assert answer.status_code == 200
        message = {}
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                message[name] = value
                continue
            if "event" in message:
                last = message.get("id", last)
                seen.append((message["event"], json.loads(message["data"])))
            message = {}
            if len(seen) >= most or (seen and seen[-1][0] == "end"):
                break
    return seen, last


def test_a_page_that_comes_again_misses_no_line_and_sees_none_twice(site):
    """600 lines and as many values are written while a page leaves after every two messages and comes again."""
    run = site.run()
    site.move(run, "running")

    def write():
        for n in range(1, 601):
            with site.database.writing() as session:
                db.add_logs(session, run.id, 1 + n // 301, [(n % 301 + n // 301, f"line {n}")])
                db.add_metrics(session, run.id, n, {"loss": 1 / n})
        site.move(run, "finished", epoch=2)

    writer, seen, last, visits = threading.Thread(target=write), [], "", 0
    with serving(site.app) as url, httpx.Client() as client:
        writer.start()
        while not seen or seen[-1][0] != "end":
            more, last = stream(client, f"{url}/api/v1/runs/{run.id}/events", last, 2)
            seen += more
            visits += 1
        writer.join()
    lines = [line for name, content in seen if name == "log" for _, _, line in content]
    values = [step for name, content in seen if name == "metric" for step, *_ in content]
    assert lines == [f"line {n}" for n in range(1, 601)]
    assert values == list(range(1, 601))
    assert visits > 3
    assert [content for name, content in seen if name == "state"][-1]["state"] == "finished"


def test_a_page_that_leaves_between_two_messages_gets_the_second(site):
    run = site.run()
    with site.database.writing() as session:
        db.add_logs(session, run.id, 1, [(1, "a line")])
        db.add_metrics(session, run.id, 1, {"loss": 1.0})
    with serving(site.app) as url, httpx.Client() as client:
        first, last = stream(client, f"{url}/api/v1/runs/{run.id}/events", "", 1)
        second, _ = stream(client, f"{url}/api/v1/runs/{run.id}/events", last, 1)
    assert [first[0][0], second[0][0]] == ["log", "metric"]


@pytest.mark.parametrize("last", ["x", "1", "1.-2", "9" * 30 + ".1", "1.2.3", "٣.٣"])
def test_a_wrong_last_id_is_refused(shared, last):
    run = shared.api.get("/api/v1/runs").json() or [{"id": shared.run(shared.config(shared.project("sse"))).id}]
    answer = shared.api.get(f"/api/v1/runs/{run[0]['id']}/events", params={"after": last})
    assert answer.status_code == 422


def test_a_page_is_told_that_a_list_has_changed(site, monkeypatch):
    monkeypatch.setattr(events, "_TOPIC_PAUSE_S", 0.05)
    with serving(site.app) as url, httpx.Client(cookies={"dashboard": security.cookie(TOKEN)}) as client:
        with client.stream("GET", f"{url}/web/changes/projects", timeout=5) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("event"))
            assert next(lines) == "event: changed"
            site.project()
            assert next(lines) == "event: changed"
        assert client.get(f"{url}/web/changes/tokens").status_code == 404


def test_the_dispatcher_starts_and_closes_with_the_server(site):
    with serving(site.app):
        assert site.dispatcher.started
        assert not site.dispatcher.closed
    assert site.dispatcher.closed


def test_while_it_serves_threads_take_shorter_turns_and_no_garbage_is_sought_in_what_was_there(site):
    usual_s = sys.getswitchinterval()
    with serving(site.app):
        assert gc.get_freeze_count() > 10_000 and sys.getswitchinterval() < usual_s
    assert gc.get_freeze_count() == 0 and sys.getswitchinterval() == usual_s


def test_fifty_runs_take_as_many_statements_as_one(site):
    """No list asks the database once a row."""
    from sqlalchemy import event

    counts, statements = [], []
    event.listen(site.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    config = site.config(site.project())
    for many in (1, 50):
        for _ in range(many):
            site.run(config)
        statements.clear()
        for path in ("/web/schedule", "/web/agents", f"/web/projects/{config.project_id}/runs"):
            assert site.page.get(path).status_code == 200
        assert len(site.api.get("/api/v1/runs").json()) >= many
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_a_run_in_a_list_is_as_the_run_alone(site):
    """With a job and an agent, and without; the pages name the agent."""
    config = site.config(site.project())
    agent = operations.add(site.database, db.Agent, {"name": "lab", "manual": True})
    queued, by_hand = site.run(config), site.run(config, enqueue=False)
    with site.database.writing() as session:
        db.transition(session, queued.id, db.RUNNING, agent_id=agent.id, device="cpu[0]")
    listed = {row["id"]: row for row in site.api.get("/api/v1/runs").json()}
    assert [listed[run.id] for run in (queued, by_hand)] == [site.api.get(f"/api/v1/runs/{run.id}").json()
                                                             for run in (queued, by_hand)]
    assert listed[queued.id]["job"]["run_id"] == queued.id and listed[by_hand.id]["job"] is None
    for path in (f"/web/projects/{config.project_id}/runs", "/web/schedule"):
        assert "lab/cpu[0]" in site.page.get(path).text
