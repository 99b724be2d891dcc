"""The registry of layer models: names, versions, aliases and scores in MLflow; each model itself is its JSON file alone.

By default the registry is an SQLite file in data/mlflow with the artifacts beside it; any other is named by its address.
Nothing is pickled, no flavour of MLflow is used, and what is loaded goes through ``LayerModel.load``: none of it is executed.
"""

import contextlib
import hashlib
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lib import files, locks, paths, store
from lib.errors import InputError, choices, one_line
from lib.tensorrt.models.layer_model import LayerModel

CHAMPION = "champion"
EXPERIMENT, ARTIFACT = "layer models", "layer_model.json"
_PARAMETERS = ("schema", "rates", "setting")
_ALIAS = r"(?!latest$|[vV]\d+$)[A-Za-z][A-Za-z0-9_-]{0,99}"
_SERVERS = ("http://", "https://")
_WAIT_S, _WRITER_S = 5, 60.0
_LARGEST_MB = 10
_TABLES = {"experiments", "runs", "params", "metrics", "tags", "registered_models", "model_versions", "model_version_tags",
           "registered_model_aliases"}  # without these MLflow would begin to make its own, in somebody's file
_LONGEST = 5000  # characters of a parameter that MLflow takes
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
          "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
          "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_WAIT_S), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
          "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": str(6 * _WAIT_S),
          "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}  # no connection outlives its file


@dataclass(frozen=True)
class Version:
    """A registered version of a model, as the registry tells it; ``scores`` by name, ``mape``."""

    name: str
    number: int
    aliases: tuple[str, ...]
    tags: dict[str, str]
    scores: dict[str, float]


def _facts(content: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[str, float]]:
    """Return what a model's file says as tags (texts), parameters (rates, settings, lists) and metrics (numbers) of MLflow.

    Nested names are joined by dots, ``scores.`` is left out; scores come first.
    """
    import pandas as pd

    tags, parameters, metrics = {}, {}, {}
    leaves = pd.json_normalize(content).iloc[0].to_dict()
    for name, value in sorted(leaves.items(), key=lambda leaf: not leaf[0].startswith("scores.")):
        if isinstance(value, list):
            parameters[name] = choices(value)[:_LONGEST]
        elif isinstance(value, str):
            tags[name] = value
        elif isinstance(value, bool | dict) or name.partition(".")[0] in _PARAMETERS:
            parameters[name] = value
        else:
            metrics[name.removeprefix("scores.")] = float(value)
    return tags, parameters, metrics


class Registry:
    """A registry by its address (default: an SQLite file in data/); InputError for what cannot be one.

    ``mlflow ui --backend-store-uri`` takes the same addresses.
    Every method raises InputError, in one line, where the registry is locked, gone, damaged, of a newer MLflow, or silent.
    """

    def __init__(self, uri: str = ""):
        self.uri = uri or f"sqlite:///{paths.DATA / 'mlflow' / 'mlflow.db'}"
        self.shown = re.sub(r"//[^/@]*@", "//***@", self.uri)
        local = re.fullmatch(r"sqlite:///([^?#%]*[^/?#%])", self.uri)
        self.file = Path(local[1]) if local else None
        if not local and not self.uri.startswith(_SERVERS):
            raise InputError(f"{self.shown!r} is no address of a registry; it is sqlite:///FILE (without ?, # and %), or that "
                             f"of an MLflow server: {choices(_SERVERS)}")

    def register(self, name: str, model: LayerModel, alias: str = "") -> int:
        """Add a model as the next version of ``name``; return its number. ``alias`` then names this version."""
        _check(files.NAME, name, "name of a model")
        if alias:
            _check(_ALIAS, alias, "alias")
        with self._writing() as client, tempfile.TemporaryDirectory() as scratch:
            path = model.save(Path(scratch) / ARTIFACT)
            tags, parameters, metrics = _facts(store.read_json(path))
            tags["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            run = client.create_run(self._experiment(client), run_name=name, tags=tags).info
            for key, value in parameters.items():
                client.log_param(run.run_id, key, value)
            for key, value in metrics.items():
                client.log_metric(run.run_id, key, value)
            if self.file:
                files.create(files.folder(self._artifact(run.run_id).parent) / ARTIFACT, path.read_bytes())
            else:
                client.log_artifact(run.run_id, str(path))
            if name not in self._models(client):
                client.create_registered_model(name)
            described = choices(f"{key} {value:.4g}" for key, value in metrics.items())
            number = int(client.create_model_version(name, f"{run.artifact_uri}/{ARTIFACT}", run.run_id, tags=tags,
                                                     description=described).version)
            client.set_terminated(run.run_id)
            if alias:
                client.set_registered_model_alias(name, alias, str(number))
            return number

    def check(self) -> None:
        """Raise InputError where nothing could be registered; a database that is not there yet is made."""
        with self._writing() as client:
            self._models(client)

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Let an alias name a version, instead of the one that it named before."""
        _check(_ALIAS, alias, "alias")
        with self._writing() as client:
            self._version(client, name, number)
            client.set_registered_model_alias(name, alias, str(number))

    def versions(self, name: str = "") -> list[Version]:
        """Return every version of a model, or of all of them, by name and number."""
        with self._reading() as client:
            return [Version(entry.name, number, tuple(sorted(alias for alias, named in model.aliases.items()
                                                             if int(named) == number)),
                            dict(entry.tags), dict(client.get_run(entry.run_id).data.metrics))
                    for model in self._models(client, name or None).values()
                    for number, entry in _numbered(client, model.name).items()]

    def load(self, name: str, version: int | str = CHAMPION) -> LayerModel:
        """Return a model by its name, and number or alias; InputError names the choices."""
        with self._reading() as client, tempfile.TemporaryDirectory() as scratch:
            entry = self._version(client, name, version)
            path = self._artifact(entry.run_id) if self.file else \
                Path(client.download_artifacts(entry.run_id, ARTIFACT, scratch))
            where = f"{self.shown}: {name} {version}"
            if not path.is_file():
                raise InputError(f"{where}: its file {path} is gone; bring it back, or register the model again")
            if path.stat().st_size > _LARGEST_MB * 1e6:
                raise InputError(f"{where}: {path} has more than {_LARGEST_MB} MB; it is no layer model")
            if hashlib.sha256(path.read_bytes()).hexdigest() != entry.tags.get("sha256"):
                raise InputError(f"{where}: {path} is not what was registered (its SHA-256 differs); register the model again")
            return LayerModel.load(path)

    # -------------------------------------------------------------------------------------------- MLflow

    def _experiment(self, client) -> str:
        """Return the experiment whose runs hold what the models' files say: what MLflow's page shows and compares."""
        experiment = client.get_experiment_by_name(EXPERIMENT)
        place = (self.file.parent / "artifacts").absolute().as_uri() if self.file else None
        return experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT, place)

    def _artifact(self, run_id: str) -> Path:
        """Return where the file of a version lies: beside the database, wherever that was moved, and nowhere else."""
        _check("[0-9a-f]{32}", run_id, f"run of {self.shown}")
        return self.file.absolute().parent / "artifacts" / run_id / "artifacts" / ARTIFACT

    def _models(self, client, name: str | None = None) -> dict[str, Any]:
        """Return the models by name, all or one, as MLflow has them; InputError lists them where there is none of a name."""
        models = {model.name: model for model in _all_pages(client.search_registered_models)}
        if name is not None and name not in models:
            raise InputError(f"{self.shown} has no model {name!r}; it has: {choices(sorted(models)) or 'none yet'}")
        return {each: models[each] for each in (sorted(models) if name is None else [name])}

    def _version(self, client, name: str, version: int | str) -> Any:
        """Return a version as MLflow has it, by number or alias."""
        aliases, numbers = self._models(client, name)[name].aliases, _numbered(client, name)
        number = int(version) if str(version).isdecimal() else int(aliases.get(str(version), 0))
        if number not in numbers:
            raise InputError(f"{self.shown}: {name} has no version or alias {version!r}; it has versions "
                             f"{choices(numbers)}, aliases: {choices(sorted(aliases)) or 'none'}")
        return numbers[number]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        if self.file and not self.file.is_file():
            raise InputError(f"{self.shown}: there is no registry; register a model first, or name another")
        with self._answering():
            self._check_file("ro", "BEGIN")
            yield self._client

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """Give the client to one writer at a time; a new database appears whole or not at all."""
        with locks.writer(self.file, _WRITER_S) if self.file else contextlib.nullcontext(), self._answering():
            if self.file:
                with files.scratch(self.file) as scratch:  # what a death left of one goes first
                    if not self.file.exists():
                        _client(f"sqlite:///{scratch}/{self.file.name}").search_registered_models()
                        files.move(scratch / self.file.name, self.file)
            self._check_file("rw", "BEGIN IMMEDIATE")
            yield self._client

    @cached_property
    def _client(self):
        return _client(f"sqlite:///{self.file.absolute()}" if self.file else self.uri)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn what MLflow and what is below it raise into an InputError that names the registry."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of MLflow, its databases and HTTP; there are as many classes as back ends
            reason = one_line(error).replace(self.uri, self.shown)
            hint = "; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" if " 401 " in reason else ""
            raise InputError(f"{self.shown}: the registry does not answer as one: {reason}{hint}") from None

    def _check_file(self, mode: str, begin: str) -> None:
        """Refuse an SQLite that is locked, damaged, or not of this MLflow, before MLflow waits for it or changes it."""
        if not self.file:
            return
        try:
            with contextlib.closing(sqlite3.connect(f"file:{quote(str(self.file.absolute()))}?mode={mode}", uri=True,
                                                    timeout=_WAIT_S)) as database:
                database.execute(begin)
                if (first := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise sqlite3.DatabaseError(first)
                revisions = [revision for revision, in database.execute("SELECT version_num FROM alembic_version")]
                tables = {name for name, in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if not revisions or not tables >= _TABLES:
                    raise sqlite3.DatabaseError("it has no schema")
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise locks.HeldError(f"{self.file} is locked by another process; try again when it ends") from None
            raise InputError(f"{self.file} is damaged, or no registry of MLflow ({error}); restore a copy, or move it away") \
                from None
        from mlflow.store import db_migrations

        versions = Path(db_migrations.__file__).parent / "versions"
        if unknown := [revision for revision in revisions if not any(versions.glob(f"{revision}_*.py"))]:
            raise InputError(f"{self.file} has the schema {choices(unknown)} of another, newer MLflow; install that one, or "
                             "name another registry")


def _all_pages(search, **options) -> Iterator[Any]:
    """Give what a search of MLflow's client finds, page after page."""
    token = None
    while True:
        page = search(page_token=token, **options)
        yield from page
        if not (token := page.token):
            return


def _numbered(client, name: str) -> dict[int, Any]:
    """Return the versions of a model as MLflow has them, by number."""
    pages = _all_pages(client.search_model_versions, filter_string=f"name='{name}'")
    return {int(entry.version): entry for entry in sorted(pages, key=lambda entry: int(entry.version))}


def _client(uri: str):
    """Return MLflow's client of a registry: no telemetry, log lines or long waits, unless the environment says otherwise."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs the stack of what it raises, too
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _check(pattern: str, text: str, noun: str) -> None:
    """Refuse what is no plain name."""
    if not re.fullmatch(pattern, text):
        raise InputError(f"{text!r} is no {noun}: a letter or digit first, then letters, digits, dashes and underscores")
