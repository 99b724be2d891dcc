"""Layer models in an MLflow registry: JSON artifacts of runs, loaded without executing code."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

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
        with self.answering():
            from mlflow import MlflowClient

            self.client = MlflowClient(self.uri, self.uri)
            self.client.search_experiments(max_results=1)  # fails before any training

    @contextlib.contextmanager
    def answering(self):
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
        with self.answering(), tempfile.TemporaryDirectory() as scratch:
            if not self.client.get_experiment_by_name(EXPERIMENT):
                folder = None  # where the server keeps artifacts; beside the file of SQLite
                if self.uri.startswith("sqlite:///"):
                    file = Path(self.uri.removeprefix("sqlite:///")).absolute()
                    folder = file.with_name("artifacts").as_uri()
                self.client.create_experiment(EXPERIMENT, folder)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            run = self.client.create_run(experiment.experiment_id, run_name=name).info
            self.client.log_artifact(run.run_id, str(model.save(Path(scratch) / ARTIFACT)))
            for score, value in model.scores.items():
                self.client.log_metric(run.run_id, score, value)
            self.client.set_terminated(run.run_id)
            if not self.client.search_registered_models(f"name = '{name}'"):
                self.client.create_registered_model(name)
            tags = {"device": model.device, "source": model.source, "licence": model.licence,
                    "mape_pct": f"{100 * model.scores['mape']:.1f}"}
            version = self.client.create_model_version(name, f"{run.artifact_uri}/{ARTIFACT}",
                                                       run.run_id, tags).version
            self.client.set_registered_model_alias(name, CHAMPION, version)
        return int(version)

    def versions(self, name: str = "") -> list:
        """Return MLflow's model versions, all or of one model; each with its aliases and tags."""
        with self.answering():
            found = self.client.search_model_versions(f"name = '{name}'" if name else None)
            found = [self.client.get_model_version(each.name, each.version) for each in found]
        return sorted(found, key=lambda version: (version.name, int(version.version)))

    def load(self, name: str, version: str = CHAMPION) -> LayerModel:
        """Return a model by its name and alias or number."""
        with self.answering(), tempfile.TemporaryDirectory() as scratch:
            if version.isdecimal():
                entry = self.client.get_model_version(name, version)
            else:
                entry = self.client.get_model_version_by_alias(name, version)
            path = self.client.download_artifacts(entry.run_id, ARTIFACT, scratch)
            return LayerModel.load(Path(path))
