"""Layer models in an MLflow registry: JSON artifacts of runs, loaded without executing code."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

import pandas as pd

from lib import files, paths
from lib.errors import InputError, one_line
from lib.tensorrt.layer_model import LayerModel

EXPERIMENT, ARTIFACT, CHAMPION = "layer models", "layer_model.json", "champion"
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
          "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
          "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


class Registry:
    """An MLflow registry: ``sqlite:///FILE`` (default: data/mlflow/mlflow.db) or a server's URL."""

    def __init__(self, uri: str = ""):
        self.uri = uri or f"sqlite:///{files.folder(paths.DATA / 'mlflow') / 'mlflow.db'}"
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        with self._answering():
            self.client = MlflowClient(self.uri, self.uri)
            self.client.search_experiments(max_results=1)  # fails before any training

    @contextlib.contextmanager
    def _answering(self):
        """Turn what MLflow raises into an InputError without passwords."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            text = f"{self.uri}: the registry refuses: {one_line(error)}"
            raise InputError(re.sub(r"//[^/@]*@", "//***@", text)) from None

    def register(self, name: str, model: LayerModel) -> int:
        """Add a model as the next version of ``name`` and its champion; return the version."""
        with self._answering(), tempfile.TemporaryDirectory() as scratch:
            run = self.client.create_run(self._experiment(), run_name=name).info
            self.client.log_artifact(run.run_id, str(model.save(Path(scratch) / ARTIFACT)))
            for score, value in model.scores.items():
                self.client.log_metric(run.run_id, score, value)
            self.client.set_terminated(run.run_id)
            if not self.client.search_registered_models(f"name = '{name}'"):
                self.client.create_registered_model(name)
            version = self.client.create_model_version(
                name, f"{run.artifact_uri}/{ARTIFACT}", run.run_id,
                tags={"device": model.device, "source": model.source, "licence": model.licence})
            self.client.set_registered_model_alias(name, CHAMPION, version.version)
        return int(version.version)

    def _experiment(self) -> str:
        """Return the id of the experiment; the artifacts lie beside an SQLite registry."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment:
            return experiment.experiment_id
        folder = None
        if self.uri.startswith("sqlite:///"):
            database = Path(self.uri.removeprefix("sqlite:///"))
            folder = (database.parent / "artifacts").absolute().as_uri()
        return self.client.create_experiment(EXPERIMENT, folder)

    def versions(self, name: str = "") -> pd.DataFrame:
        """Return one row per version of a model (empty: all): name, version, aliases, scores."""
        rows = []
        with self._answering():
            for model in self.client.search_registered_models(name and f"name = '{name}'"):
                for entry in self.client.search_model_versions(f"name = '{model.name}'"):
                    aliases = [alias for alias, number in model.aliases.items()
                               if int(number) == int(entry.version)]
                    scores = self.client.get_run(entry.run_id).data.metrics
                    rows.append({"name": model.name, "version": int(entry.version),
                                 "aliases": aliases, **scores})
        table = pd.DataFrame(rows, columns=None if rows else ["name", "version"])
        return table.sort_values(["name", "version"])

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Let an alias name a version."""
        with self._answering():
            self.client.set_registered_model_alias(name, alias, version)

    def load(self, name: str, version: str = CHAMPION) -> LayerModel:
        """Return a model by its name and alias or number."""
        with self._answering(), tempfile.TemporaryDirectory() as scratch:
            find = self.client.get_model_version_by_alias
            if version.isdecimal():
                find = self.client.get_model_version
            run_id = find(name, version).run_id
            return LayerModel.load(Path(self.client.download_artifacts(run_id, ARTIFACT, scratch)))
