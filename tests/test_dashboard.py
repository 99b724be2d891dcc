"""The dashboard: who gets in, what the API refuses, what pages show, and what of a run's folder is served."""

import html
import json
import re
import socket
import subprocess
from html import unescape
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from lib import paths
from lib.cli import dashboard
from lib.dashboard import access, configurations
from lib.dashboard import tables as db
from lib.dashboard.pages import pages
from lib.schedule.run.queue import QueueJob
from tests import FEW, called, refusal, refused, until
from tests.dashboards import BEARER, NOTEBOOK, TINY, TOKEN, Site

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
    every = [(method, re.sub(r"{[^}]*}", NOBODY, path))
             for path, methods in site.get("openapi.json")["paths"].items() for method in methods]
    assert len(every) >= 38
    every += [("get", "/api/v1/openapi.json"), ("get", "/api/none")]
    wrong = [{"Authorization": f"Basic {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"},
             {"Cookie": f"dashboard={access.cookie(TOKEN)}"}]
    for request, headers in [*((request, {}) for request in every), *((every[0], headers) for headers in wrong)]:
        answer = site.stranger.request(*request, params={"token": TOKEN}, headers=headers)
        assert answer.status_code == 401 and list(answer.json()) == ["detail"], (request, headers)


def test_every_page_sends_a_stranger_to_the_login(site):
    every = {route.path for route in pages.routes} - {"/login", "/logout"}
    assert len(every) >= 14
    for route in (*every, "/web/none", "/", "/openapi.json", "/loginx", "/static"):
        path = re.sub(r"{[^}]*}", NOBODY, route)
        for headers in ({}, BEARER, {"Cookie": "dashboard=9999999999.0"}):
            answer = site.stranger.get(path, headers=headers)
            assert answer.status_code == 303 and answer.headers["location"][:11] == "/login?next", path
    assert site.stranger.get("/login").status_code == site.stranger.get("/static/poll.js").status_code == 200


@pytest.mark.parametrize("method, how", [("post", "data"), ("get", "params")])
def test_a_form_or_a_link_with_the_token_logs_in_by_a_signed_cookie_that_ends(site, monkeypatch, method, how):
    def log_in(token):
        given = {"token": token, "next": "/web/agents"}
        return site.stranger.request(method, "/login", headers=HERE, **{how: given})

    assert log_in("wrong").status_code == 401
    answer = log_in(TOKEN)
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie and answer.headers["location"] == "/web/agents" and answer.status_code == 303
    value = cookie.partition("=")[2].partition(";")[0]
    end, mark = value.split(".")

    def status(value):
        return site.stranger.get("/web/agents", headers={"Cookie": f"dashboard={value}"}).status_code

    assert status(value) == 200
    for forged in (f"{int(end) + 1}.{mark}", f"{end}.{mark[:-1]}", f"{end}."):
        assert status(forged) == 303
    monkeypatch.setattr(access.time, "time", lambda: int(end) + 1.0)
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
    cookie = {"Cookie": f"dashboard={access.cookie(TOKEN)}"}
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
        assert "default-src 'none'; script-src 'self'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_token_is_kept_where_only_its_owner_reads_it(home, monkeypatch):
    monkeypatch.delenv("DASHBOARD_TOKEN", raising=False)
    token, path = access.read_token(home / "own")
    assert len(token) >= 40 and path.stat().st_mode & 0o077 == 0
    assert access.read_token(home / "own") == (token, path)
    for bad in ("", "short", "ümlaut-and-long-enough"):
        monkeypatch.setenv("DASHBOARD_TOKEN", bad)
        with refused("a token is of 16 to 200") as error:
            access.read_token(home / "own")
        assert not bad or bad not in str(error.value)


# --- the verb
@pytest.fixture
def verb(home, monkeypatch):
    """Return what the verb does where the server does not run: its applications, status and output."""
    served = []
    monkeypatch.setattr("lib.dashboard.runner.Runner", lambda rows, address: Mock())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: served.append(server.config.app))
    monkeypatch.delenv("DASHBOARD_TOKEN", raising=False)

    def call(*words):
        return served, *called("dashboard", "--port", "0", "--mlflow-port", "0", *words)

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


def test_mlflow_is_served_to_this_machine_alone_gets_no_secret_and_its_end_is_said(home, monkeypatch, capfd):
    started = []

    class Server(subprocess.Popen):
        def __init__(self, words, env, **rest):
            started.append((words, env, self))
            super().__init__(["sleep", "60"], env=env, **rest)

    monkeypatch.setenv("DASHBOARD_TOKEN", TOKEN)
    monkeypatch.setenv("DASHBOARD_DB_URL", "postgresql://me:secret@host/name")
    monkeypatch.setattr("subprocess.Popen", Server)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with refused(f"port {port} of 127.0.0.1 is taken; name another port with --mlflow-port"), dashboard._mlflow(port):
            pass
    with dashboard._mlflow(port):
        ((words, environment, _),) = started
    assert words[words.index("--host") + 1] == "127.0.0.1" and words[words.index("--port") + 1] == str(port)
    assert TOKEN not in environment.values() and "DASHBOARD_DB_URL" not in environment
    with dashboard._mlflow(port):
        started[-1][-1].kill()
        said = until(lambda: capfd.readouterr().err)
    assert said == f"MLflow's pages ended with status -9: see {home}/data/mlflow/server.log\n"


def test_a_port_that_is_taken_is_said_in_one_line_and_an_ipv6_address_is_in_brackets(verb):
    with socket.create_server(("127.0.0.1", 0)) as other:
        served, status, _, error = verb("--port", other.getsockname()[1])
    assert status == 2 and served == [] and "of 127.0.0.1 is taken; name another port with --port" in error
    _, status, out, _ = verb("--host", "::1")
    assert status == 0 and re.match(r"http://\[::1\]:\d+  ", out)


# --- the API
def test_the_same_content_is_no_new_version_and_other_content_is(site):
    other = {**NOTEBOOK, "parameters": {"source": "replay", "seed": 7}}
    again = {"parameters": {"workload": "W1", **NOTEBOOK["parameters"]}, "notebook": NOTEBOOK["notebook"]}
    project = site.project().id
    answers = [site.post("configs", project_id=project, name="one", config_json=config)
               for config in (NOTEBOOK, other, again)]
    assert [answer.json().get("version") for answer in answers] == [1, 2, None]
    assert answers[2].status_code == 409 and "version 1" in answers[2].json()["detail"]


def test_a_run_by_hand_is_not_in_the_queue_and_one_that_ended_is_not_cancelled(site):
    run = site.run(enqueue=False)
    assert site.post(f"runs/{run.id}/priority", priority=1).status_code == 409
    assert site.post(f"runs/{run.id}/start").json()["state"] == "running"
    ended = site.post(f"runs/{run.id}/finish", state="failed", reason="power cut").json()
    assert ended["state"] == "failed" and ended["reason"] == "power cut" and ended["job"] is None
    assert site.post(f"runs/{run.id}/cancel").status_code == 409
    queued = site.run(run.config)
    assert "in the queue" in site.post(f"runs/{queued.id}/start").json()["detail"]
    site.move(queued, "done", attempt=1, start_s=1e9, end_s=1e9 + 5)
    answer = site.post(f"runs/{queued.id}/cancel")
    assert answer.status_code == 409 and answer.json()["detail"] == "the run is finished already"
    ended = site.get(f"runs/{queued.id}")
    assert (ended["state"], ended["started_at"][:19], ended["finished_at"][:19]) == (
        "finished", "2001-09-09T01:46:40", "2001-09-09T01:46:45")


def test_the_schedule_says_what_runs_and_waits_in_which_order_and_why_there(site):
    waits = site.run()
    running, first, ended, _ = (site.run(waits.config, **wanted) for wanted in ({}, {"priority": 3}, {}, {"enqueue": False}))
    assert "being predicted" in site.shown(f"projects/{waits.project_id}/runs")
    site.move(running, "running", device="cpu[0]", placement="free first", predicted_s=9.0, start_s=1.0)
    site.move(ended, "done", device="cpu[1]", predicted_s=61.0, start_s=1.0, end_s=6.5)
    rows = site.get("schedule")
    assert [(row["id"], row["state"], row["placement"]) for row in rows] == [
        (running.id, "running", "free first"), (first.id, "queued", ""), (waits.id, "queued", "")]
    page = site.shown("schedule")
    assert re.findall(r'<a href="/web/runs/(.*?)"', page) == [row["id"] for row in rows] + [ended.id]
    assert "free first" in page and 'data-name="Predicted" class="number">0:01:01<' in page
    assert 'data-name="Took" class="number">5.5 s<' in page


def test_a_container_and_variables_are_refused_with_what_to_do_and_nulls_are_taken(site):
    config = site.config(site.project())
    for name, value in (("docker_image", "lab/torch:2"), ("env", {"KEY": "secret-123"}), ("env", {})):
        errors = site.post(f"runs/from-config/{config.id}", **{name: value}).json()["errors"]
        assert list(errors) == [name] and errors[name].startswith("is refused: a run starts no container")
    wrong = {**TINY, "docker_image": "lab/torch:2"}
    answer = site.post("configs", project_id=config.project_id, name="c", config_json=wrong)
    assert list(answer.json()["errors"]) == ["docker_image"]
    assert site.get("runs") == []
    assert site.post(f"runs/from-config/{config.id}", docker_image=None, env=None).status_code == 201


def test_a_run_is_deleted_once_it_has_ended_and_its_folder_stays(site):
    run = site.run()
    answer = site.api.delete(f"/api/v1/runs/{run.id}")
    assert answer.status_code == 409 and answer.json()["detail"] == "the run is queued; cancel it first"
    site.move(run, "cancelled")
    assert site.page.post(f"/web/runs/{run.id}/delete").status_code == 200
    assert site.get(f"runs/{run.id}")["detail"] == f"there is no run {run.id}"
    assert (paths.DATA / run.folder).is_dir()
    with site.database.reading() as session:
        assert session.query(QueueJob).count() == 0
    first, second = site.run(run.config), site.run(run.config)
    site.move(first, "cancelled")
    site.api.delete(f"/api/v1/runs/{first.id}")
    assert [second.name, site.run(run.config).name] == ["tiny 2", "tiny 3"]  # no name twice


def test_paths_in_the_project_are_taken_and_a_data_root_for_images_alone(site, tmp_path, monkeypatch):
    project, root = site.project(), tmp_path / "elsewhere"
    (root / "pets").mkdir(parents=True)
    (root / "link").symlink_to("/etc")
    values = {**TINY, "root": str(root / "pets")}
    answer = site.post("configs", project_id=project.id, name="c", config_json=values)
    assert "or in a --data-dir of the server" in answer.text
    monkeypatch.setattr(configurations, "data_roots", [root])
    for number, taken in enumerate((values, {**TINY, "root": "data/pictures"},
                                    {**TINY, "model_flavour": "google/vit-base-patch16-224-in21k"})):
        site.config(project, f"c{number}", taken)
    for other in ({"model_flavour": str(root / "pets")}, {"root": str(root / "link")}):
        answer = site.post("configs", project_id=project.id, name="e", config_json={**values, **other})
        assert set(answer.json()["errors"]) == set(other)
    refusal("dashboard", "--data-dir", root / "none")


@pytest.mark.parametrize("path, body, status, line", [
    ("projects", b'{"name": ""}', 422, "name: String should have at least 1 character"),
    ("projects", b'{"name": "x", "colour": 1}', 422, "colour: is no known field"),
    ("datasets", b'{"name": "d", "class_map": {"a": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}}', 422, "16 levels"),
    ("datasets", b'{"name": "d", "class_map": {"a": NaN}}', 422, ""), ("datasets", b"\xff\xfe", 422, ""),
    ("datasets", b"[" * 100_000, 400, ""),
    ("groups", b'{"name": "g", "project_id": "%s"}' % NOBODY.encode(), 404, "no project"),
    (f"agents/{NOBODY}/gpus/0/reserve", b"{}", 404, "has no GPU 0"), ("runs/none", None, 422, "run_id"),
    ("runs?state=odd&limit=501", None, 422, "state"), (f"runs/{NOBODY}/logs?after=x", None, 422, "after"),
    ("none", None, 404, "Not Found")])
def test_wrong_input_is_said_in_one_line(shared, path, body, status, line):
    method = "get" if body is None else "post"
    answer = shared.api.request(method, f"/api/v1/{path}", content=body, headers={"Content-Type": "application/json"})
    detail = answer.json()["detail"]
    assert answer.status_code == status and line in detail and "\n" not in detail


@pytest.mark.parametrize("config, fields", [
    ({"notebook": "notebooks/02_profile.ipynb", "parameters": {"epochs": 0, "devise": "cpu", "lr": "fast"}},
     {"parameters.epochs", "parameters.devise", "parameters.lr"}),
    ({"notebook": "../../etc/passwd", "parameters": 3, "more": 1}, {"notebook", "parameters", "more"}),
    ({**TINY, "root": "~/pictures", "model_flavour": "data/../../networks", "epochs": 10**30},
     {"root", "model_flavour", "epochs"}),
    ({"notebook": "notebooks/08_layer_power.ipynb", "parameters": {"recordings": "../x"}}, {"parameters.recordings"}),
    ({"notebook": "notebooks/04_complexity.ipynb", "parameters": {"models": "W1,os:system"}}, {"parameters.models"}),
    ({**TINY, "root": "synthetic:none"}, {"config_json"}), ({**TINY, "load_pretrained": True}, {"config_json"}),
    ({**TINY, "epochs": 0, "lr": "fast", "colour": "red", "loss_name": "none", "hf_token": "hf_secret"},
     {"epochs", "lr", "colour", "loss_name", "hf_token"})])
def test_all_errors_of_a_configuration_come_at_once_by_field(shared, config, fields):
    answer = shared.post("configs", project_id=NOBODY, name="c", config_json=config)
    assert answer.status_code == 422 and set(answer.json()["errors"]) == fields
    assert "hf_secret" not in answer.text


def test_no_input_makes_the_server_fail(shared):
    """Schemathesis over the OpenAPI document, with ids that are there as often as ids that are not."""
    import schemathesis  # a second that other tests need not wait for
    from schemathesis.python.asgi import shutdown_lifespans

    config = shared.config(shared.project("fuzzed"))
    run, agent = shared.run(config), shared.database.add(db.Agent, {"name": "fuzzed"})
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
            FEW(given(operation.as_strategy(), st.booleans())(check))()
    finally:
        shutdown_lifespans()  # otherwise the application runs until the process ends
    assert {200, 201, 404, 409, 422} <= visited


# --- pages
def test_what_people_write_is_shown_as_text(site):
    project = site.database.add(db.Project, {"name": HOSTILE, "description": HOSTILE})
    agent = site.database.add(db.Agent, {"name": HOSTILE, "host": HOSTILE, "labels": {HOSTILE: HOSTILE},
                                         "slots": [HOSTILE]})
    site.database.add(db.Gpu, {"agent_id": agent.id, "index": 0, "name": HOSTILE})
    run = site.run(site.config(project, HOSTILE))
    site.move(run, "failed", device=HOSTILE, placement=HOSTILE, reason=HOSTILE, start_s=1.0, end_s=2.0)
    site.write(run, "log.txt", HOSTILE)
    site.report(run, (0, 0, "x<img src=x onerror=alert(1)>/loss", 1.0))
    (paths.DATA / run.folder / "<script>alert('x')<").mkdir()
    (paths.DATA / run.folder / "<script>alert('x')</script>.png").write_bytes(b"")
    at = f"projects/{project.id}"
    shown = [site.page.get(f"/web/{path}") for path in
             ("projects", f"{at}/configs", f"{at}/runs", f"runs/{run.id}", "agents", "schedule")]
    shown += [site.page.post("/web/projects", data={"name": HOSTILE, "description": HOSTILE})]
    assert [page.status_code for page in shown] == [200] * 6 + [409]
    for page in shown:
        assert "alert" in page.text, page.url
        text = page.text.replace("{{7*7}}", "")
        assert not re.search(r"<script>|<img src=x|49<|onerror=alert\(1\)>", text), page.url
        assert page.text.count("<script") == 1, page.url


def test_forms_make_a_project_configurations_and_runs(site):
    made = filled(site, "projects", name="retina")
    at = f"projects/{re.search(r'/web/projects/([0-9a-f-]+)/configs', str(made.url))[1]}"
    assert filled(site, f"{at}/configs", "groups", project_id=at.partition("/")[2], name="first").status_code == 200
    (group,) = site.get("groups")
    for name, content in (("notebook", NOTEBOOK), ("tiny", TINY)):
        form = {"name": name, "config_json": json.dumps(content), "group_id": group["id"]}
        assert filled(site, f"{at}/configs", **form).status_code == 200
    config, other = site.get(f"configs/{at.replace('projects', 'project')}")
    assert [config["kind"], other["kind"]] == ["finetune", "notebook"]
    site.database.add(db.Agent, {"name": "here", "manual": False, "slots": ["cpu[0]", "cuda:0"]})
    queued = filled(site, f"{at}/runs", config_id=config["id"], priority="4", agent_id="", gpu_indices="0, 1")
    run = re.search(r"/web/runs/([0-9a-f-]+)$", str(queued.url))[1]
    row, (job,) = site.get(f"runs/{run}"), site.database.queue.jobs()
    assert row["gpu_indices"] == [0, 1] and row["job"]["priority"] == 4 and job.device_types == ["cuda:0"]
    assert job.task == "lib.finetune.task:finetune" and job.arguments["config"] == config["config_json"]
    assert run in site.shown(f"{at}/runs?group_id={group['id']}&state=queued")
    assert run not in site.shown(f"{at}/runs?state=failed")
    filled(site, f"{at}/runs", f"runs/{run}/priority", priority="7")
    assert site.get(f"runs/{run}")["job"]["priority"] == 7
    cancelled, again = (site.page.post(f"/web/runs/{run}/cancel") for _ in range(2))
    assert "cancelled" in cancelled.text and again.status_code == 409


def test_a_copy_of_a_configuration_is_edited_into_the_next_version(site):
    config = site.config(site.project(), "tiny", TINY)
    at = f"projects/{config.project_id}/configs"
    text = re.search('<textarea name="config_json"[^>]*>(.*?)</textarea>', site.shown(f"{at}?source_id={config.id}"), re.S)[1]
    assert json.loads(unescape(text)) == config.config_json
    changed = json.dumps(config.config_json | {"lr": 0.5})
    assert filled(site, at, name="tiny", config_json=changed).status_code == 200
    rows = site.get(f"configs/project/{config.project_id}")
    assert [(row["version"], row["config_json"]["lr"]) for row in rows] == [(2, 0.5), (1, config.config_json["lr"])]


@pytest.mark.parametrize("text, reasons", [
    (json.dumps({**TINY, "epochs": 0, "lr": "<fast>"}), ["<b>epochs</b>", "<b>lr</b>"]),
    ('{"root": ', ["<b>config_json</b>", "EOF while parsing"])])
def test_a_wrong_configuration_comes_back_as_it_was_with_its_errors(site, text, reasons):
    at = f"projects/{site.project().id}/configs"
    answer = filled(site, at, name="c", config_json=text)
    assert answer.status_code == 422
    assert [part for part in (*reasons, str(escape(text))) if part not in answer.text] == []


# --- what a run has written
def test_a_run_page_shows_log_curves_and_a_link_to_mlflow(site):
    run = site.run(site.config(site.project(), "tiny", TINY))
    assert "<svg" not in site.shown(f"runs/{run.id}") and site.get(f"runs/{run.id}/logs") == []
    for step in range(1000):
        site.report(run, (step, step // 500, "train/step_loss", 1.0 / (step + 1)))
    site.report(run, (999, 1, "val/loss", 0.5), (999, 1, "val/acc@1", 0.75))
    site.write(run, "history.csv", "1000,2,val/los")  # torn
    site.write(run, "log.txt", "".join(f"<b>{n}</b>\n" for n in range(9000)))
    site.write(run, "mlflow_run_id", "0123456789abcdef\n")
    page = site.shown(f"runs/{run.id}")
    assert page.count("<svg") == 2 and page.count("<polyline") == 3 and "train/step_loss 0.001" in page
    lines = [points.split() for points in re.findall(r'points="([^"]*)"', page)]
    assert 200 < len(lines[0]) <= 301 and lines[0][0] == "0.00,0.00" and lines[0][-1].startswith("100.00,40.00")
    assert "&lt;b&gt;8999&lt;/b&gt;" in page and "&lt;b&gt;0&lt;" not in page  # its end alone
    assert 'href="http://127.0.0.1:5000/#/runs/0123456789abcdef"' in page
    rows = site.get(f"runs/{run.id}/logs", after=8998)
    assert rows == [{"n": 8999, "line": "<b>8998</b>"}, {"n": 9000, "line": "<b>8999</b>"}]
    live = re.search('<div id="output" data-live>(.*?)</div>', page, re.S)[1]
    assert f'href="/web/runs/{run.id}/files/log.txt"' in live
    answer = site.page.get(f"/web/runs/{run.id}/files/log.txt")
    assert len(answer.text.splitlines()) == 9000 and answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("text, words", [
    ("step,epo\n", "is damaged"), ("step,epoch,name,value,wall_time_s\n0,0,val/loss,1.0\n", "line 2 has 4 fields"),
    ("step,epoch,name,value,wall_time_s\n0,0,val/loss,one,1.0\n", "is damaged")])
def test_a_damaged_history_is_said_on_the_page_of_its_run_alone(site, text, words):
    run = site.run(site.config(site.project(), "tiny", TINY))
    other = site.run(run.config)
    site.write(run, "history.csv", text)
    site.report(other, (7, 1, "val/acc@1", 0.5))
    assert [row["epoch"] for row in site.get("runs")] == [1, None] and words in site.get(f"runs/{run.id}")["history_error"]
    assert words in site.shown(f"runs/{run.id}") and other.name in site.shown(f"projects/{run.project_id}/runs")
    assert site.post(f"runs/{run.id}/cancel").json()["state"] == "cancelled"


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
    for name in ("../../../secret", "..%2f..%2f..%2fsecret", "%2e%2e/%2e%2e/%2e%2e/secret", str(paths.DATA / "secret"),
                 "link", "figures", "a%00b", "x" * 5000, "//etc/passwd"):
        for kind in ("files", "notebook"):
            answer = site.page.get(f"{at}/{kind}/{name}")
            assert answer.status_code == 404 and "secret</" not in answer.text, name


def test_an_executed_notebook_is_shown_without_what_a_browser_would_run(site):
    from nbformat import v4, write

    run = site.run()
    folder, at = paths.DATA / run.folder, f"/web/runs/{run.id}"
    output = v4.new_output("display_data", {"text/html": "<em>two</em><script>bad()</script>"})
    write(v4.new_notebook(cells=[v4.new_code_cell("1 + 1", outputs=[output])]), folder / "executed.ipynb")
    (folder / "broken.ipynb").write_text("{")
    assert f"{at}/notebook/executed.ipynb" in site.page.get(at).text
    text = html.unescape(site.page.get(f"{at}/notebook/executed.ipynb").text)
    assert "<iframe" in text and " sandbox " in text and "<em>two</em>" in text and "bad(" not in text
    assert site.page.get(f"{at}/notebook/broken.ipynb").status_code == 422
