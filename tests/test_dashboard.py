"""The dashboard: who gets in, what the API refuses, what pages show, and that a page that comes again misses nothing."""

import html
import json
import re
import socket
import threading
from datetime import timedelta
from html import unescape
from unittest.mock import Mock

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from lib import locks, paths
from lib.cli import dashboard
from lib.dashboard import configurations, events, security
from lib.dashboard import database as db
from tests import FEW, called, refusal, refused
from tests.agents import serving
from tests.dashboards import BEARER, NOTEBOOK, TINY, TOKEN, Site, remembering

pytestmark = pytest.mark.slow

NOBODY = "00000000-0000-4000-8000-000000000000"
HERE = {"Origin": "http://dashboard"}
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


def filled(site, page, to="", **fields):
    """Send a form that a page has with these fields; return the answer."""
    text = site.shown(page)
    assert [name for name in fields if f'name="{name}"' not in text] == []
    return site.page.post(f"/web/{to or page}", data=fields)


# --- who gets in
def test_every_endpoint_refuses_a_missing_or_a_wrong_token(site):
    every = [(method, re.sub(r"{[^}]*}", NOBODY, path)) for path, methods in site.get("openapi.json")["paths"].items()
             for method in methods]
    assert len(every) >= 38
    every += [("get", "/api/v1/openapi.json"), ("get", "/api/none")]
    wrong = [{"Authorization": f"Basic {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"},
             {"Cookie": f"dashboard={security.cookie(TOKEN)}"}]
    for request, headers in [*((request, {}) for request in every), *((every[0], headers) for headers in wrong)]:
        answer = site.stranger.request(*request, params={"token": TOKEN}, headers=headers)
        assert answer.status_code == 401 and list(answer.json()) == ["detail"], (request, headers)


def test_every_page_sends_a_stranger_to_the_login(site):
    run = f"/web/runs/{NOBODY}"
    for path in ("/web/projects", f"/web/projects/{NOBODY}/configs", f"/web/projects/{NOBODY}/runs", run, f"{run}/events",
                 f"{run}/log", f"{run}/files/x", f"{run}/notebook/x", "/web/agents", "/web/schedule", "/web/changes/runs",
                 "/web/none", "/", "/docs", "/openapi.json", "/loginx", "/static"):
        for headers in ({}, BEARER, {"Cookie": "dashboard=9999999999.0"}):
            answer = site.stranger.get(path, headers=headers)
            assert answer.status_code == 303 and answer.headers["location"][:11] == "/login?next", path
    assert site.stranger.get("/login").status_code == site.stranger.get("/static/live.js").status_code == 200


@pytest.mark.parametrize("method, how", [("post", "data"), ("get", "params")])
def test_a_form_or_a_link_with_the_token_logs_in_by_a_cookie_that_is_no_token_and_that_only_this_site_sends(
        site, monkeypatch, method, how):
    def log_in(token):
        return site.stranger.request(method, "/login", headers=HERE, **{how: {"token": token, "next": "/web/agents"}})

    assert log_in("wrong").status_code == 401
    answer = log_in(TOKEN)
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie and answer.headers["location"] == "/web/agents" and answer.status_code == 303
    value = cookie.partition("=")[2].partition(";")[0]
    until, mark = value.split(".")

    def status(value):
        return site.stranger.get("/web/agents", headers={"Cookie": f"dashboard={value}"}).status_code

    assert status(value) == 200
    assert [status(forged) for forged in (f"{int(until) + 1}.{mark}", f"{until}.{mark[:-1]}", f"{until}.")] == [303] * 3
    monkeypatch.setattr(security.time, "time", lambda: int(until) + 1.0)
    assert status(value) == 303


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "\n/web", HOSTILE])
def test_the_login_takes_the_token_alone_and_leads_nowhere_else(site, target):
    right, wrong = (site.stranger.post("/login", data={"token": token, "next": target}, headers=HERE)
                    for token in (TOKEN, "wrong"))
    assert right.headers["location"] == "/" and "set-cookie" not in wrong.headers
    assert "this is not the token" in wrong.text and "<script>alert" not in wrong.text


@pytest.mark.parametrize("origin", [None, "null", "http://dashboard.evil.example", "http://dashboard:81"])
def test_a_form_of_another_site_changes_nothing(site, origin):
    headers = {} if origin is None else {"Origin": origin}
    cookie = {"Cookie": f"dashboard={security.cookie(TOKEN)}"}
    assert site.stranger.post("/web/projects", data={"name": "x"}, headers=headers | cookie).status_code == 403
    assert site.stranger.post("/login", data={"token": TOKEN}, headers=headers).status_code == 403
    assert site.get("projects") == []


def test_a_request_that_is_too_large_is_refused(home):
    site = Site(most_bytes=5000)
    many = (b"x" * 1000 for _ in range(10))
    for content in (b"x" * 5001, many):
        answer = site.api.post("/api/v1/projects", content=content)
        assert answer.status_code == 413 and len(answer.text.splitlines()) == 1
    assert site.page.post("/web/projects", content=b"x" * 5001).status_code == 413
    assert site.post("projects", name="x" * 120).status_code == 201


def test_browsers_are_told_to_run_nothing_but_our_script(site):
    for answer in (site.page.get("/web/projects"), site.stranger.get("/login"), site.api.get("/api/v1/none")):
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
    for bad in ("", "short", "ümlaut-and-long-enough"):
        monkeypatch.setenv("DASHBOARD_TOKEN", bad)
        with refused("a token is of 16 to 200") as error:
            security.read_token(home / "own")
        assert not bad or bad not in str(error.value)


@pytest.fixture
def verb(home, monkeypatch):
    """Return what the verb does where the server does not run: the applications that it would serve, status and output."""
    served = []
    monkeypatch.setattr("lib.dashboard.dispatcher.Dispatcher", lambda rows, folder: remembering(rows))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: served.append(server.config.app))
    monkeypatch.delenv("DASHBOARD_TOKEN", raising=False)

    def call(*words):
        return served, *called("dashboard", "--port", "0", "--no-agent", *words)

    return call


def test_the_verb_prints_where_the_token_is_and_not_the_token(verb, home):
    served, status, out, error = verb("--demo")
    token = (home / "data/dashboard/token").read_text().strip()
    assert status == 0
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+  \(token: {home}/data/dashboard/token\)\n", out)
    assert token not in out + error
    assert verb("--demo")[1] == 0  # a second time adds nothing
    api = TestClient(served[1], headers={"Authorization": f"Bearer {token}"})
    (project,) = api.get("/api/v1/projects").json()
    configs = api.get(f"/api/v1/configs/project/{project['id']}").json()
    assert sorted(config["kind"] for config in configs) == ["finetune", "notebook"]


def test_the_agent_of_a_server_gets_its_token_and_not_the_address_of_its_database(monkeypatch):
    started = []
    monkeypatch.setenv("DASHBOARD_DB_URL", "postgresql://me:secret@host/name")
    monkeypatch.setattr("subprocess.Popen", lambda words, env: started.append(env) or Mock())
    with dashboard._agent("http://127.0.0.1:1", "T"):
        assert started[0]["DASHBOARD_TOKEN"] == "T" and "secret" not in str(started)


def test_a_port_that_is_taken_is_said_in_one_line_and_an_address_of_the_sixth_version_is_in_brackets(verb):
    with socket.create_server(("127.0.0.1", 0)) as other:
        served, status, _, error = verb("--port", other.getsockname()[1])
    assert status == 2 and served == [] and "of 127.0.0.1 is taken; name another port with --port " in error
    _, status, out, _ = verb("--host", "::1")
    assert status == 0 and re.match(r"http://\[::1\]:\d+  ", out)


@pytest.mark.parametrize("lock", ["queue/run.sqlite", "dashboard.db"])
def test_a_server_that_another_one_keeps_from_starting_says_so_in_one_line(home, monkeypatch, lock):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with locks.writer(paths.DATA / "dashboard" / lock):
        assert "is being written by another process" in refusal("dashboard", "--port", "0", "--no-agent")


# --- the API
def test_the_same_content_is_no_new_version_and_other_content_is(site):
    other = {**NOTEBOOK, "parameters": {"source": "replay", "seed": 7}}
    again = {"parameters": {"workload": "W1", **NOTEBOOK["parameters"]}, "notebook": NOTEBOOK["notebook"]}  # its default
    project = site.project().id
    answers = [site.post("configs", project_id=project, name="one", config=config) for config in (NOTEBOOK, other, again)]
    assert [answer.json().get("version") for answer in answers] == [1, 2, None]
    assert answers[2].status_code == 409 and "it is version 1" in answers[2].json()["detail"]


def test_a_run_by_hand_is_not_in_the_queue_and_one_that_ended_a_moment_ago_is_not_cancelled(site):
    run = site.run(enqueue=False)
    assert not site.dispatcher.submit.called
    assert site.post(f"runs/{run.id}/priority", priority=1).status_code == 409
    assert site.post(f"runs/{run.id}/start").json()["state"] == "running"
    ended = site.post(f"runs/{run.id}/finish", state="failed", reason="power cut").json()
    assert ended["state"] == "failed" and ended["reason"] == "power cut" and ended["job"] is None
    queued = site.run(site.config(site.project("other")))
    assert "in the queue" in site.post(f"runs/{queued.id}/start").json()["detail"]
    site.move(queued, "running")
    site.dispatcher.has_ended.return_value = True
    answer = site.post(f"runs/{queued.id}/cancel")
    assert answer.status_code == 409 and answer.json()["detail"] == "the run has just ended by itself"


def test_the_schedule_says_when_where_and_why_also_of_earlier_attempts_and_what_waits_for_a_slot(site):
    run = site.run()
    nan = float("nan")
    site.dispatcher.planned = [("a", "", nan, nan, "waiting", "large", nan),
                               (run.id, "ws/cpu", -1.0, 5.0, "running", "earliest end", 0.971),
                               ("c", "ws/cpu", 5.0, float("inf"), "planned", "free first", nan)]
    site.dispatcher.tried = [(run.id, "ws/cuda:0", -300.0, -200.0, "lost", "the agent is gone")]
    assert [(row["start_s"], row["end_s"], row["reason"]) for row in site.get("schedule")] == [
        (None, None, "large"), (-1.0, 5.0, "earliest end"), (5.0, None, "free first")]
    page = site.shown("schedule")
    assert "waits" in page and "large" in page and page.count("<rect") == 3 and "bar lost" in page and "1 waiting" in page
    assert re.findall(r'"(?:Starts|Ends)" class="number">(.*?)<', page) == [
        "waits", "not known", "1.0 s ago", "in 5.0 s", "in 5.0 s", "not known"]
    assert page.count(" %</td>") == page.count("97 %</td>") == 1


def test_the_schedule_counts_waiting_runs_that_are_being_predicted_and_has_round_ticks(site):
    run = site.run()
    site.run(run.config, enqueue=False)  # by hand: nothing predicts it
    assert "1 waiting; the times of 1 are being predicted" in site.shown("schedule")
    assert "being predicted" in site.shown(f"projects/{run.project_id}/runs")
    site.dispatcher.planned = [(run.id, "ws/cpu", -7.6, 4.1, "planned", "earliest end")]
    page = site.shown("schedule")
    assert 'class="number">next<' in page and "starts next on ws/cpu" in site.shown(f"runs/{run.id}")
    listed = site.shown(f"projects/{run.project_id}/runs")
    assert "starts next<" in listed and 'data-name="Predicted" class="number">11.7 s<' in listed
    assert "being predicted" not in page and re.findall(r"(now|in [\d.]+ s|[\d.]+ s ago)</text>", page) == ["5.0 s ago", "now"]


def test_the_page_of_the_api_shows_every_call_and_body_behind_the_login_and_loads_nothing_from_elsewhere(site):
    answer, document = site.page.get("/docs"), site.get("openapi.json")
    assert answer.status_code == 200 and document == site.page.get("/docs/openapi.json").json()
    shown = re.findall(r"<summary><b>(\w+)</b> <code>(.*?)</code>", answer.text)
    assert shown == [(method.upper(), path) for path, calls in document["paths"].items() for method in calls]
    assert set(re.findall(r'href="#(\w+)"', answer.text)) <= set(re.findall(r'<div class="card" id="(\w+)"', answer.text))
    assert 'href="#RunIn">RunIn</a>' in answer.text and not re.search(r'(src|href)="(http|//)', answer.text)
    login = site.stranger.post("/login", data={"token": TOKEN, "next": "/docs"}, headers=HERE)
    assert login.headers["location"] == "/docs"


def test_the_form_of_a_fine_tune_has_choices_for_what_is_needed(site, tmp_path, monkeypatch):
    (tmp_path / "pets/train").mkdir(parents=True)
    monkeypatch.setattr(configurations, "data_roots", [tmp_path])
    fields = configurations.form_fields()
    assert fields["root"]["examples"][:2] == [str(tmp_path / "pets"), "synthetic:pathmnist"]
    assert {"simple_cnn", "resnet50"} <= set(fields["model_flavour"]["examples"])
    assert "cross_entropy" in fields["loss_name"]["enum"]
    assert not {"hf_token", "docker_image", "env"} & set(fields) and set(configurations.BASIC) <= set(fields)
    page = site.shown(f"projects/{site.project().id}/configs")
    assert '<option value="">choose one</option>\n<option>cross_entropy</option>' in page
    assert f'list="root-examples">\n<datalist id="root-examples"><option value="{tmp_path}/pets">' in page


def test_an_image_of_a_container_and_variables_are_refused_with_what_to_do_and_empty_ones_are_taken(site):
    config = site.config(site.project())
    for name, value in (("docker_image", "lab/torch:2"), ("env", {"KEY": "secret-123"})):
        for path, body in ((f"runs/from-config/{config.id}", {name: value}), ("configs", {
                "project_id": config.project_id, "name": "c", "config": {**TINY, name: value}})):
            errors = site.post(path, **body).json()["errors"]
            assert list(errors) == [name] and errors[name].startswith("is refused, because a run ")
            assert "secret" not in errors[name]
    assert site.get("runs") == []
    assert site.post(f"runs/from-config/{config.id}", docker_image="", env={}).status_code == 201


def test_the_document_of_the_api_names_every_call(site):
    for calls in site.get("openapi.json")["paths"].values():
        for call in calls.values():
            assert not re.match("Partial|New|<|$", call["summary"]) and "partial(" not in call.get("description", "")


# --- runs side by side
def test_runs_are_compared_by_curves_and_by_what_differs(site):
    project = site.project()
    runs = [site.run(site.config(project, f"c{lr}", {**TINY, "lr": lr})) for lr in (0.125, 0.25)]
    for number, run in enumerate(runs):
        site.output(run.id, values={"loss": 1.0 + number, "other": 9.0}, step=3)
    query = "&".join(f"run={run.id}" for run in runs)
    page = site.shown(f"compare?{query}")
    curves = json.loads(unescape(re.search('data-curves="([^"]*)"', page)[1]))
    assert curves == {"loss": [{"run": number, "split": "train", "points": [[3, 1.0 + number]]} for number in (0, 1)]}
    assert [name for name in ("lr", "0.125", "0.25") if f">{name}<" not in page] == [] and "<b>batch_size</b>" not in page
    alone = f"run={runs[0].id}"
    assert "2 to 8 runs can be compared; chosen: 1." in site.shown(f"compare?{alone}&{alone}")
    for wrong, status in (("", 422), (alone, 422), (f"{query}&run={NOBODY}", 404)):
        assert site.page.get(f"/web/compare?{wrong}").status_code == status


def test_runs_are_found_by_name_state_tag_and_best_value(site):
    project = site.project()
    first, second, third = (site.run(site.config(project, name, {**TINY, "seed": seed}), tags=tags) for seed, (name, tags) in
                            enumerate({"50%_a": ["å, b"], "50xa": ["c"], "z": []}.items()))
    for run, value in ((first, 0.5), (second, 0.75)):
        site.move(run, "running")
        site.move(run, "finished", best_value=value)

    def found(query):
        page = site.shown(f"projects/{project.id}/runs?{query}")
        return re.findall('name="run" value="([^"]*)"', page)

    for query, runs in (("text=50%25_A", [first]), ("state=queued", [third]), ("tag=%C3%A5,+b", [first]), ("tag=%C3%A5", []),
                        ("sort=best", [second, first, third]), ("state=&sort=&archived=true", [])):
        assert found(query) == [run.id for run in runs], query
    assert site.page.get(f"/web/projects/{project.id}/runs?sort=odd").status_code == 422


def test_a_run_is_noted_archived_and_deleted_once_it_has_ended(site):
    run = site.run()
    page, listed = f"runs/{run.id}", f"/web/projects/{run.project_id}/runs"
    assert filled(site, page, f"{page}/notes", notes="looks <odd>", tags=" a, b ,").status_code == 200
    assert site.get(page)["tags"] == ["a", "b"] and "looks &lt;odd&gt;" in site.shown(page)
    assert "notes: " in site.post(f"{page}/notes", notes="x" * 5001).json()["detail"]
    refused = filled(site, page, f"{page}/notes", notes="x" * 5001, tags="c")
    assert refused.status_code == 422 and "x" * 5001 in refused.text and 'value="c"' in refused.text
    site.post(f"{page}/archive")
    assert run.id not in site.page.get(listed).text and run.id in site.page.get(f"{listed}?archived=true").text
    site.post(f"{page}/restore")
    answer = site.api.delete(f"/api/v1/{page}")
    assert answer.status_code == 409 and answer.json()["detail"] == "the run is queued; cancel it first"
    site.output(run.id, (1, "a line"), step=1, values={"loss": 1.5})
    assert site.shown(f"{page}/metrics.csv") == "step,epoch,key,split,value\n1,,loss,train,1.5\n"
    site.move(run, "cancelled")
    assert site.page.post(f"/web/{page}/delete").status_code == 200 and site.get(page)["detail"] == f"there is no run {run.id}"
    assert (paths.DATA / run.folder).is_dir()
    with site.database.reading() as session:
        assert session.query(db.RunLog).count() == session.query(db.RunMetric).count() == session.query(db.Job).count() == 0
    first, second = (site.run(run.config) for _ in range(2))
    site.move(first, "cancelled")
    site.operations.delete(first.id)
    assert [second.name, site.run(run.config).name] == ["tiny 2", "tiny 3"]  # no name twice


def test_an_agent_without_a_sign_of_life_is_silent_before_it_is_gone(site):
    for name, age_s in (("alive", 0), ("killed", 9)):
        site.operations.add(db.Agent, {"name": name, "manual": False, "connected": True,
                                       "last_heartbeat_at": db.now() - timedelta(seconds=age_s)})
    shown = re.findall(r"<h2>(\w+)\s+<span[^>]*>([a-z ]+)", site.shown("agents"))
    assert shown == [("alive", "connected"), ("killed", "silent since ")]


def test_a_copy_of_a_configuration_is_edited_into_the_next_version(site):
    project = site.project()
    config = site.config(project, "tiny", TINY)
    text = unescape(re.search('<textarea name="config"[^>]*>(.*?)</textarea>', site.page.get(
        f"/web/projects/{project.id}/configs?source_id={config.id}").text, re.S)[1])
    assert json.loads(text) == config.config_json
    changed = json.dumps(config.config_json | {"lr": 0.5})
    assert filled(site, f"projects/{project.id}/configs", source="json", name="tiny", config=changed).status_code == 200
    assert [(row["version"], row["config_json"]["lr"]) for row in site.get(f"configs/project/{project.id}")] == [
        (2, 0.5), (1, config.config_json["lr"])]


def test_an_agent_of_the_server_that_ends_is_started_again(monkeypatch, capsys):
    for name, value in {"_LOOK_S": 0.01, "_FIRST_PAUSE_S": 0.01, "_LONGEST_PAUSE_S": 0.02}.items():
        monkeypatch.setattr(dashboard, name, value)
    started, again = [], threading.Event()

    def start(*_, **__):
        started.append(process := Mock(returncode=-9, **{"poll.return_value": -9 if len(started) < 2 else None}))
        again.set() if len(started) == 3 else None
        return process

    monkeypatch.setattr("subprocess.Popen", start)
    with dashboard._agent("http://127.0.0.1:1", TOKEN):
        assert again.wait(10)
    assert len(started) == 3 and started[-1].terminate.called
    assert capsys.readouterr().err.count("the agent of this machine was killed (signal 9)") == 2


def test_paths_within_the_project_are_taken_and_a_data_root_of_the_server_for_images_alone(site, tmp_path, monkeypatch):
    project, root = site.project(), tmp_path / "elsewhere"
    (root / "pets").mkdir(parents=True)
    (root / "link").symlink_to("/etc")
    values = {**TINY, "root": str(root / "pets")}
    assert "or in a --data-root of the server" in site.post("configs", project_id=project.id, name="c", config=values).text
    monkeypatch.setattr(configurations, "data_roots", [root])
    for number, taken in enumerate((values, {**TINY, "root": "data/pictures"},
                                    {**TINY, "model_flavour": "google/vit-base-patch16-224-in21k"})):
        site.config(project, f"c{number}", taken)
    for other in ({"model_flavour": str(root / "pets")}, {"root": str(root / "link")}):
        answer = site.post("configs", project_id=project.id, name="e", config={**values, **other})
        assert set(answer.json()["errors"]) == set(other)
    refusal("dashboard", "--data-root", root / "none")


@pytest.mark.parametrize("path, body, status, line", [
    ("projects", b'{"name": ""}', 422, "name: String should have at least 1 character"),
    ("projects", b'{"name": "x", "colour": 1}', 422, "colour: is no known field"),
    ("datasets", b'{"name": "d", "facts": {"a": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}}', 422, "16 levels"),
    ("datasets", b'{"name": "d", "facts": {"a": NaN}}', 422, ""), ("datasets", b"\xff\xfe", 422, ""),
    ("datasets", b"[" * 100_000, 400, ""),
    ("groups", b'{"name": "g", "project_id": "%s"}' % NOBODY.encode(), 404, "no project"),
    (f"agents/{NOBODY}/gpus/0/reserve", b"{}", 404, "has no GPU 0"), ("runs/none", None, 422, "row_id"),
    ("runs?state=odd&limit=501", None, 422, "state"), (f"runs/{NOBODY}/events?after=x", None, 422, "after"),
    ("none", None, 404, "Not Found")])
def test_wrong_input_is_said_in_one_line(shared, path, body, status, line):
    method = "get" if body is None else "post"
    answer = shared.api.request(method, f"/api/v1/{path}", content=body, headers={"Content-Type": "application/json"})
    detail = answer.json()["detail"]
    assert answer.status_code == status and line in detail and "\n" not in detail


@pytest.mark.parametrize("method, path, allowed", [
    ("delete", "projects", "GET, POST"), ("delete", f"projects/{NOBODY}", "GET"), ("get", "configs", "POST")])
def test_a_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(shared, method, path, allowed):
    answer = shared.api.request(method, f"/api/v1/{path}")
    assert answer.status_code == 405 and answer.headers["Allow"] == allowed and answer.json()["detail"] == "Method Not Allowed"


@pytest.mark.parametrize("config, fields", [
    ({"notebook": "notebooks/02_profile.ipynb", "parameters": {"epochs": 0, "devise": "cpu", "lr": "fast"}},
     {"parameters.epochs", "parameters.devise", "parameters.lr"}),
    ({"notebook": "../../etc/passwd", "parameters": 3, "more": 1}, {"notebook", "parameters", "more"}),
    ({**TINY, "root": "~/pictures", "model_flavour": "data/../../networks", "epochs": 10**30},
     {"root", "model_flavour", "epochs"}),
    ({"notebook": "notebooks/08_layer_power.ipynb", "parameters": {"recordings": "../x", "engine": "~x"}},
     {"parameters.recordings", "parameters.engine"}),
    ({"notebook": "notebooks/04_complexity.ipynb", "parameters": {"models": "W1,os:system"}}, {"parameters.models"}),
    ({**TINY, "root": "synthetic:none"}, {"config"}), ({**TINY, "load_pretrained": True}, {"config"}),  # that no machine has
    ({**TINY, "epochs": 0, "lr": "fast", "colour": "red", "loss_name": "none", "hf_token": "hf_secret"},
     {"epochs", "lr", "colour", "loss_name", "hf_token"})])
def test_all_errors_of_a_configuration_come_at_once_by_field(shared, config, fields):
    answer = shared.post("configs", project_id=NOBODY, name="c", config=config)
    assert answer.status_code == 422 and set(answer.json()["errors"]) == fields
    assert "hf_secret" not in answer.text


def test_no_input_makes_the_server_fail(shared):
    """Schemathesis over the OpenAPI document, with ids that are there as often as ids that are not."""
    import schemathesis  # a second that other tests need not wait for
    from schemathesis.python.asgi import shutdown_lifespans

    config = shared.config(shared.project("fuzzed"))
    run = shared.run(config)
    agent = shared.operations.add(db.Agent, {"name": "fuzzed"})
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

    try:
        for operation in (result.ok() for result in schema.get_all_operations()):
            if not operation.path.endswith("/events"):  # whose answer ends with its run
                FEW(given(operation.as_strategy(), st.booleans())(check))()
    finally:
        shutdown_lifespans()  # otherwise the application runs until the process ends
    assert {200, 201, 404, 409, 422} <= visited


# --- pages
def test_what_people_write_is_shown_as_text(site):
    project = site.operations.add(db.Project, {"name": HOSTILE, "description": HOSTILE})
    agent = site.operations.add(db.Agent, {"name": HOSTILE, "host": HOSTILE, "labels": {HOSTILE: HOSTILE},
                                                     "load": {HOSTILE: 1}, "slots": [{"name": HOSTILE}]})
    site.operations.add(db.Gpu, {"agent_id": agent.id, "index": 0, "name": HOSTILE})
    run = site.run(site.config(project, HOSTILE))
    site.move(run, "running", agent_id=agent.id, device=HOSTILE, placement=HOSTILE)
    site.move(run, "failed", HOSTILE)
    (paths.DATA / run.folder / "<script>alert('x')<").mkdir()
    (paths.DATA / run.folder / "<script>alert('x')</script>.png").write_bytes(b"")
    site.dispatcher.planned = [(run.id, HOSTILE, 0.0, 9.0, "planned", HOSTILE)]
    at = f"projects/{project.id}"
    pages = [site.page.get(f"/web/{path}") for path in ("projects", f"{at}/configs", f"{at}/runs", f"runs/{run.id}", "agents",
                                                        "schedule")]
    again = site.page.post("/web/projects", data={"name": HOSTILE, "description": HOSTILE})
    assert [page.status_code for page in (*pages, again)] == [200] * 6 + [422]
    for page in (*pages, again):
        assert "alert" in page.text, page.url
        assert not re.search(r"<script>|<img src=x|49<|onerror=alert\(1\)>", page.text.replace("{{7*7}}", "")), page.url
        assert page.text.count("<script") == 1, page.url


def test_forms_make_a_project_configurations_and_runs(site):
    made = filled(site, "projects", name="retina")
    project = re.search(r"/web/projects/([0-9a-f-]+)/configs", str(made.url))[1]
    at = f"projects/{project}"
    fields = {f"field.{name}": str(value) for name, value in TINY.items()} | {"field.eval_topk": "[2]", "field.lr": "0.01"}
    filled(site, f"{at}/configs", f"{at}/groups", group="first")
    for form in ({"source": "json", "name": "pasted", "config": json.dumps(NOTEBOOK)},
                 {"source": "notebook", "name": "chosen", "notebook": NOTEBOOK["notebook"], "parameters": '{"seed": 3}'},
                 {"source": "fields", "name": "filled", **fields}):
        assert filled(site, f"{at}/configs", **form).status_code == 200
    configs = {row["name"]: row for row in site.get(f"configs/project/{project}")}
    assert [configs[name]["kind"] for name in ("pasted", "chosen", "filled")] == ["notebook", "notebook", "finetune"]
    assert configs["filled"]["config_json"]["eval_topk"] == [2] and configs["filled"]["config_json"]["lr"] == 0.01
    queued = filled(site, f"{at}/runs", config_id=configs["pasted"]["id"], priority="4", agent_id="", gpu_indices="0, 1",
                    deadline_s="600")
    run = re.search(r"/web/runs/([0-9a-f-]+)$", str(queued.url))[1]
    row = site.get(f"runs/{run}")
    assert row["gpu_indices"] == [0, 1] and row["job"]["deadline_s"] == 600
    filled(site, f"{at}/runs", f"runs/{run}/priority", priority="7")
    site.dispatcher.reorder.assert_called_once_with(run, 7)
    cancelled, again = (filled(site, f"runs/{run}", f"runs/{run}/cancel") for _ in range(2))
    assert "cancelled" in cancelled.text and again.status_code == 409


def test_the_runs_of_a_group_are_compared_the_best_first(site):
    project = site.project()
    group = site.post("groups", name="rates", project_id=project.id).json()["id"]
    for number, (value, within) in enumerate([(0.5, group), (None, group), (0.2, group), (0.1, None)]):
        content = {"name": f"lr-{number}", "config": {**TINY, "seed": number}, "group_id": within}
        config = site.post("configs", project_id=project.id, **content)
        site.move(site.run(db.TrainConfig(id=config.json()["id"])), "running", best_value=value, monitor_mode="min")
    page = site.shown(f"projects/{project.id}/runs?group_id={group}")
    assert re.findall(r'Configuration">(lr-\d)', page) == ["lr-2", "lr-0", "lr-1"]
    assert len(site.get("runs", group_id=group)) == 3


@pytest.mark.parametrize("data, reasons", [
    ({"source": "json", "config": json.dumps({**TINY, "epochs": 0, "lr": "fast"})}, ["<b>epochs</b>", "<b>lr</b>"]),
    ({"source": "fields", "field.root": "x", "field.epochs": "many", "field.eval_topk": "[1"},
     ["valid integer", "valid tuple"])])
def test_a_wrong_form_comes_back_as_it_was_with_its_errors(site, data, reasons):
    at = f"projects/{site.project().id}/configs"
    answer = filled(site, at, name="c", **data)
    typed = next(value for name, value in data.items() if name in ("config", "field.root"))
    assert answer.status_code == 422
    assert [text for text in (*reasons, str(escape(typed))) if text not in answer.text] == []
    assert site.get(f"configs/project/{at.split('/')[1]}") == []


# --- files
def test_the_whole_log_of_a_run_is_served_as_text(site):
    """Also what is beyond the page of rows that the database gives at once."""
    run, lines = site.run(), [f"<b>{n}</b>" for n in range(1, 5003)]
    site.output(run.id, *enumerate(lines, 1))
    answer = site.page.get(f"/web/runs/{run.id}/log")
    assert answer.text.splitlines() == lines and answer.headers["content-type"].startswith("text/plain")


def test_files_of_a_run_are_served_and_nothing_else(site):
    run = site.run()
    folder, at = paths.DATA / run.folder, f"/web/runs/{run.id}"
    (folder / "figures").mkdir()
    for name, content in (("figures/confusion val.png", b"png"), ("best.pt", b"weights"), ("page.html", b"<script>"),
                          (paths.DATA / "secret", b"secret")):
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to(paths.DATA / "secret")
    text = site.page.get(at).text
    assert "figures/confusion%20val.png" in text and "best.pt" in text
    picture, page = (site.page.get(f"{at}/files/{name}") for name in ("figures/confusion%20val.png", "page.html"))
    assert picture.content == b"png" and picture.headers["content-type"] == "image/png"
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.headers["content-security-policy"] == "default-src 'none'; sandbox"
    for name in ("../../../secret", "..%2f..%2f..%2fsecret", "%2e%2e/%2e%2e/%2e%2e/secret", str(paths.DATA / "secret"), "link",
                 "figures", "a%00b", "x" * 5000, "//etc/passwd"):
        for kind in ("files", "notebook"):
            answer = site.page.get(f"{at}/{kind}/{name}")
            assert answer.status_code == 404 and "secret</" not in answer.text, name


def test_an_executed_notebook_is_shown_without_what_a_browser_would_run(site):
    from nbformat import v4, write

    run = site.run()
    folder, at = paths.DATA / run.folder, f"/web/runs/{run.id}"
    output = v4.new_output("display_data", {"text/html": "<em>two</em><script>bad()</script>"})
    widget = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "x"},
                                            "text/plain": "10 of 10"})
    state = {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"x": {"model_id": "x"}}}}}
    write(v4.new_notebook(metadata=state, cells=[v4.new_code_cell("1 + 1", outputs=[output, widget])]),
          folder / "executed.ipynb")
    (folder / "broken.ipynb").write_text("{")
    assert f"{at}/notebook/executed.ipynb" in site.page.get(at).text
    text = html.unescape(site.page.get(f"{at}/notebook/executed.ipynb").text)
    assert "<iframe" in text and " sandbox " in text
    assert "<em>two</em>" in text and "10 of 10" in text and not re.search(r"bad\(|model_id", text)
    assert site.page.get(f"{at}/notebook/broken.ipynb").status_code == 422


# --- live
@pytest.fixture(scope="module")
def url(shared):
    """Serve the site."""
    with serving(shared.app) as url:
        yield url


@pytest.fixture
def browser(url):
    with httpx.Client(base_url=url, cookies={"dashboard": security.cookie(TOKEN)}, headers=BEARER, timeout=10) as client:
        yield client


def stream(browser, url, last, most):
    """Read up to ``most`` messages; return them, and the last id."""
    seen, message = [], {}
    with browser.stream("GET", url, headers={"Last-Event-ID": last} if last else {}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            message[name] = value
            if not line and "event" in message:
                last = message.get("id", last)
                seen.append((message["event"], json.loads(message["data"])))
                message = {}
            if len(seen) >= most or "end" in dict(seen):
                break
    return seen, last


def test_a_page_that_comes_again_misses_no_line_and_sees_none_twice(site, browser):
    """Lines and values are written while a page leaves after each message and comes again."""
    run = site.run()
    site.move(run, "running")
    address = re.search('data-events="(.*?)"', browser.get(f"/web/runs/{run.id}").text)[1]

    def write():
        for n in range(200):
            site.output(run.id, (n % 100, f"line {n}"), attempt=1 + n // 100, step=n, values={"loss": 1.0})
        site.move(run, "finished", epoch=2)

    writer, seen, last, visits = threading.Thread(target=write), {}, "", 0
    writer.start()
    while "end" not in seen:
        messages, last = stream(browser, address, last, 1 + visits % 3)
        for name, content in messages:
            seen.setdefault(name, []).append(content)
        visits += 1
    writer.join()
    assert [line for lines in seen["log"] for _, _, line in lines] == [f"line {n}" for n in range(200)]
    assert [step for values in seen["metric"] for step, *_ in values] == list(range(200))
    assert visits > 3 and seen["state"][-1]["state"] == "finished"


def test_a_page_is_told_that_a_list_has_changed(site, browser, monkeypatch):
    monkeypatch.setattr(events, "_TOPIC_PAUSE_S", 0.05)
    with browser.stream("GET", "/web/changes/projects") as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("event"))
        assert next(lines) == "event: changed"
        site.project()
        assert next(lines) == "event: changed"
    assert browser.get("/web/changes/tokens").status_code == 404
