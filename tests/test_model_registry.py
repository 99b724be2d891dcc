"""The registry of layer models: what is registered comes back, and a registry that fails is one line."""

import hashlib
import os
import pickle
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib import paths
from lib.errors import InputError
from lib.tensorrt.models import layer_model, model_registry
from lib.tensorrt.models.model_registry import Registry
from tests import refusal
from tests.conftest import full_disk
from tests.test_layer_models import layers

pytestmark = pytest.mark.slow


NO_NETWORK = """if True:
    import pathlib
    import sys
    def no_network(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            raise SystemExit(f"{event} {arguments}")
    sys.addaudithook(no_network)
    from lib.tensorrt.models import layer_model, model_registry
    assert "mlflow" not in sys.modules
    model = layer_model.LayerModel.load(pathlib.Path("model.json"))
    registry = model_registry.Registry()
    registry.register("m", model, "champion")
    assert registry.load("m") == model
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a registry in a process of its own, in which nothing may be connected to; return its home and what it printed."""
    home = tmp_path_factory.mktemp("made")
    fitted = layer_model.fit(layers(), "dense", "runtime", "rtx-3060", source="EdgeProfiler", licence="Apache-2.0")
    fitted.save(home / "model.json")
    environment = {name: value for name, value in os.environ.items() if name not in model_registry._QUIET}
    done = subprocess.run([sys.executable, "-c", NO_NETWORK], cwd=home, capture_output=True, text=True, check=False,
                          env={**environment, "PYTHONPATH": str(paths.ROOT), "LIB_OUTPUT": str(home)})
    return home, done.stdout + done.stderr


@pytest.fixture
def registry(made, home):
    """Give a copy of that registry, in which the model m has one version: MLflow takes seconds to make one."""
    shutil.copytree(made[0] / "data/mlflow", paths.DATA / "mlflow")
    return Registry()


@pytest.fixture
def model(made):
    return layer_model.LayerModel.load(made[0] / "model.json")


def refused(call, *arguments):
    """Return the line that a call is refused with."""
    with pytest.raises(InputError) as error:
        call(*arguments)
    return str(error.value)


def versions(registry):
    return [(one.name, one.number) for one in registry.versions()]


def change(path, statement):
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()


def test_a_registry_is_made_without_telemetry_network_chatter_or_files_elsewhere(made):
    home, printed = made
    assert printed == ""
    assert sorted(path.name for path in home.iterdir()) == ["data", "model.json"]
    assert sorted(path.name for path in (home / "data/mlflow").iterdir()) == [".mlflow.db.lock", "artifacts", "mlflow.db"]


def test_a_model_comes_back_by_number_and_alias_with_its_scores_and_where_it_is_from(registry, model, home):
    other = layer_model.fit(layers(seed=5), "dense", "power", "rtx-3060")
    assert registry.register("m", other) == 2
    assert registry.register("another", other) == 1
    assert registry.load("m") == model
    assert registry.load("m", 2) == registry.load("another", "1") == other
    registry.set_alias("m", "champion", 2)
    assert [(one.name, one.number, one.aliases) for one in registry.versions()] == [
        ("another", 1, ()), ("m", 1, ()), ("m", 2, ("champion",))]
    first, _ = registry.versions("m")
    origin = {"target": "runtime", "device": "rtx-3060", "source": "EdgeProfiler", "licence": "Apache-2.0"}
    assert origin.items() <= first.tags.items()
    assert {**model.scores, **{f"rows.{kind}": count for kind, count in model.rows.items()}}.items() <= first.scores.items()


def test_a_moved_registry_keeps_its_models(registry, model, home):
    shutil.move(home / "data/mlflow", home / "elsewhere")
    assert Registry(f"sqlite:///{home / 'elsewhere' / 'mlflow.db'}").load("m") == model
    assert "there is no registry" in refused(registry.load, "m")


def test_a_full_disk_is_one_line_and_the_registry_stays(registry, model):
    with full_disk(10_000):
        assert "the registry does not answer" in refused(registry.register, "n", model)
    assert versions(registry) == [("m", 1)]
    assert registry.register("n", model) == 1


def test_unknown_names_versions_and_aliases_are_answered_with_the_choices(registry, model):
    assert "has no model 'n'; it has: m" in refused(registry.load, "n")
    assert "m has no version or alias 7; it has versions 1, aliases: champion" in refused(registry.load, "m", 7)
    assert "no version or alias 7" in refused(registry.set_alias, "m", "best", 7)
    for name, alias in (("../x", "x"), ("", "x"), ("m", "latest"), ("m", "1")):
        assert " is no " in refused(registry.register, name, model, alias)
    assert versions(registry) == [("m", 1)]


def test_a_registry_that_another_process_holds_is_said_to_be_locked(registry, model, monkeypatch):
    monkeypatch.setattr(model_registry, "_WAIT_S", 0.2)
    with closing(sqlite3.connect(registry.file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for line in (refused(registry.load, "m"), refused(registry.register, "m", model)):
            assert "is locked by another process" in line
    assert registry.load("m") == model


@pytest.mark.parametrize("damage, words", [
    (lambda path: path.write_bytes(b"no database at all" * 100), "is damaged, or no registry of MLflow"),
    (lambda path: path.write_bytes(path.read_bytes()[:20_000]), "is damaged"),
    (lambda path: change(path, "UPDATE alembic_version SET version_num = 'ffff0000'"), "ffff0000 of another, newer MLflow"),
    (lambda path: change(path, "DROP TABLE registered_models"), "it has no schema"),
    (lambda path: change(path, "ALTER TABLE experiments RENAME COLUMN name TO other"), "the registry does not answer")])
def test_a_damaged_registry_and_one_of_a_newer_schema_are_refused_and_left_as_they_are(registry, model, damage, words, capfd):
    """Where tables are missing, MLflow would begin to make its own, and log what fails then."""
    damage(registry.file)
    before = registry.file.read_bytes()
    assert words in refused(registry.register, "n", model)
    refused(registry.check if "schema" in words else registry.versions)
    assert registry.file.read_bytes() == before
    assert capfd.readouterr().err == ""


def test_what_a_death_left_goes_with_the_next_registration_and_nothing_else(registry, model):
    folder = registry.file.parent
    for name in (".new-mlflow.db", ".new-other.db"):
        (folder / name).mkdir()
        (folder / name / "mlflow.db").write_text("half")
    registry.register("m", model)
    assert [path.name for path in folder.glob(".new-*")] == [".new-other.db"], "that one has another writer"


@pytest.mark.parametrize("uri", ["ftp://x", "http://127.0.0.1:9", "sqlite:////dev/null/x.db"])
def test_a_registry_that_takes_nothing_is_refused_before_anything_is_trained(home, monkeypatch, uri):
    training = min(paths.REFERENCE.glob("*/layer_power/training_data"))
    monkeypatch.setattr(layer_model, "fit", lambda *_: pytest.fail("trained"))
    refusal("layer-power", "train", training, "--device", "x", "--out", home / "models", "--register", uri)
    assert not (home / "models").exists()


def test_what_is_not_what_was_registered_is_never_loaded(registry, model):
    (path,) = (registry.file.parent / "artifacts").rglob("*.json")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"rtx-3060", b"rtx-9999"))
    assert "its SHA-256 differs" in refused(registry.load, "m")
    path.unlink()
    assert "is gone" in refused(registry.load, "m")
    path.write_bytes(whole)
    change(registry.file, "UPDATE model_versions SET source = 'http://127.0.0.1:9/x', storage_location = 'file:///etc/passwd'")
    assert registry.load("m") == model
    change(registry.file, "UPDATE model_versions SET run_id = '../../../../etc'")
    assert "is no run of" in refused(registry.load, "m")


class Trap:
    """What runs a command where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_nothing_of_a_registered_file_is_executed(registry, tmp_path, monkeypatch):
    """Whoever writes to a registry can exchange the file and its digest."""
    monkeypatch.chdir(tmp_path)
    (path,) = (registry.file.parent / "artifacts").rglob("*.json")
    for content in (pickle.dumps(Trap()), b"{}", b'{"py/reduce": [{"py/function": "os.mkdir"}, ["sprung"]]}'):
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        change(registry.file, f"UPDATE model_version_tags SET value = '{digest}' WHERE key = 'sha256'")
        assert str(path) in refused(registry.load, "m")
        assert not (tmp_path / "sprung").exists()


def test_a_server_that_does_not_answer_is_asked_once_and_is_one_line(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Registry(f"http://me:secret@127.0.0.1:{silent.getsockname()[1]}")
        line = refused(server.load, "m")
        assert "the registry does not answer" in line and "secret" not in line
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert "the registry does not answer" in refused(server.check)


def test_a_server_with_a_login_gets_it_from_the_environment(monkeypatch):
    """Where nobody logs in, the answer is as of MLflow's basic-auth app."""
    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            right = self.headers["Authorization"] == f"Basic {b64encode(b'owner:token').decode()}"
            self.send_response(200 if right else 401)
            self.end_headers()
            self.wfile.write(b"{}" if right else b"You are not authenticated.")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        registry = Registry(f"http://127.0.0.1:{served.server_port}/owner/repository.mlflow")
        line = refused(registry.check)
        assert "error code 401" in line and line.endswith("; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "owner")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "token")
        registry.check()
        served.shutdown()


@pytest.mark.parametrize("uri", ["file:///tmp/x", "mlruns", "sqlite:///x/", "sqlite:///x.db?mode=ro", "postgresql://me@host/x"])
def test_what_is_no_address_of_a_registry_is_refused(uri):
    assert "is no address of a registry" in refused(Registry, uri)


def test_two_that_register_at_once_each_make_a_version(registry, model):
    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(lambda _: Registry().register("m", model), range(2))) == [2, 3]
    assert registry.load("m", 2) == registry.load("m", 3) == model
