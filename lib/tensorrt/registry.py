"""Layer models in an MLflow registry: JSON artifacts of runs, loaded without executing code."""

import contextlib
import re
import tempfile
from pathlib import Path

from lib import mlflow_store
from lib.errors import InputError, entry, one_line
from lib.tensorrt.layer_model import LayerModel

EXPERIMENT, ARTIFACT, CHAMPION = "layer models", "layer_model.json", "champion"


class Registry:
    """An MLflow registry: ``sqlite:///FILE`` or a server's URL (default: the store of runs).

    Raises InputError where it does not answer, and for a missing file unless ``create`` is set.
    """

    def __init__(self, uri: str = "", create: bool = False):
        self.uri = uri or mlflow_store.store_uri()
        self.shown = re.sub(r"//[^/@]*@", "//***@", self.uri)  # without a password
        self.file = mlflow_store.sqlite_file(self.uri)
        if self.file and not create and not self.file.exists():
            raise InputError(f"{self.shown}: there is no registry; register a model first, or name "
                             "another")
        with self.answering():
            self.client = mlflow_store.client(self.uri)
            self.client.search_experiments(max_results=1)  # fails before any training

    @contextlib.contextmanager
    def answering(self):
        """Turn what MLflow raises into an InputError without passwords."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            text = re.sub(r"//[^/@]*@", "//***@", one_line(error))
            raise InputError(f"{self.shown}: the registry refuses: {text}") from None

    def register(self, name: str, model: LayerModel) -> int:
        """Add a model as the next version of ``name`` and its champion; return the version."""
        with self.answering(), tempfile.TemporaryDirectory() as scratch:
            if not self.client.get_experiment_by_name(EXPERIMENT):
                # where the server keeps artifacts; beside the file of SQLite
                folder = self.file.with_name("artifacts").as_uri() if self.file else None
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
        """Return MLflow's model versions, all or of one model; each with its aliases and tags.

        Raises InputError for a model without versions.
        """
        with self.answering():
            found = self.client.search_model_versions()
            if name:
                entry(sorted({each.name for each in found}), name, "model", f"in {self.shown}")
            found = [self.client.get_model_version(each.name, each.version) for each in found
                     if name in ("", each.name)]
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
