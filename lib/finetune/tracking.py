"""A run in MLflow: its config, and the metrics of each epoch and of the test.

The store is ``MLFLOW_TRACKING_URI``, or else SQLite in data/mlflow, beside the registry of layer
models. A store that cannot be used is refused before a run trains. What cannot be written later is
said in one line, and the run goes on: ``history.csv`` has the same numbers.
"""

import contextlib
import logging
import math
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import files, locks, paths
from lib.errors import one_line, refused

RUN_ID = "mlflow_run_id"
_LONGEST = 6000  # characters of a parameter that MLflow takes
_WAIT_S = 60.0  # for another process that makes the same store
_USUAL = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
          "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}  # a server that is away is no reason to wait long


def store_uri() -> str:
    """Return the address of MLflow's store."""
    default = f"sqlite:///{paths.DATA / 'mlflow' / 'mlflow.db'}"
    return os.environ.get("MLFLOW_TRACKING_URI") or default


class TrackedRun:
    """The run of a folder in MLflow's store: new, or, by the id in the folder, the one from before."""

    def __init__(self, folder: Path, experiment: str, config: Mapping[str, Any]):
        uri = store_uri()
        with refused(f"MLflow's store {uri} cannot be used: ",
                     "; move it, name another by MLFLOW_TRACKING_URI, or set mlflow to false"), \
                locks.writer(files.folder(paths.DATA / "mlflow") / "mlflow.db", _WAIT_S):
            self._client = _client(uri)
            self.id = self._existing(folder / RUN_ID) or self._new(folder, experiment, config)

    def _existing(self, path: Path) -> str:
        """Return the id of the run that a folder names, which goes on; empty where the store has none."""
        from mlflow import MlflowException

        try:
            run_id = path.read_text().strip()
            self._client.update_run(run_id, status="RUNNING")
        except (OSError, MlflowException):
            return ""
        return run_id

    def _new(self, folder: Path, experiment: str, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        run_id = self._client.create_run(number, run_name=folder.name).info.run_id
        values = [Param(name, str(value)[:_LONGEST]) for name, value in config.items()]
        self._client.log_batch(run_id, params=values)
        self._client.set_tag(run_id, "folder", str(folder))
        files.replace(folder / RUN_ID, run_id.encode())
        return run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics by name; ``@`` in a name becomes ``_at_``, since MLflow refuses it."""
        from mlflow.entities import Metric

        now_ms = round(time.time() * 1000)
        metrics = [Metric(name.replace("@", "_at_"), value, now_ms, step)
                   for name, value in values.items() if not math.isnan(value)]
        self._try(lambda: self._client.log_batch(self.id, metrics=metrics))

    def end(self, status: str) -> None:
        """End the run: FINISHED, FAILED or KILLED."""
        self._try(lambda: self._client.set_terminated(self.id, status))

    def _try(self, call) -> None:
        try:
            call()
        except Exception as error:  # of MLflow, its databases and HTTP
            print(f"not logged in MLflow, but in history.csv: {one_line(error)}", flush=True)


def _client(uri: str) -> Any:
    """Return MLflow's client of a store; MLflow itself would try for minutes to open an SQLite file."""
    if uri.startswith("sqlite:///"):
        path = uri.removeprefix("sqlite:///").partition("?")[0]
        with contextlib.closing(sqlite3.connect(path, timeout=_WAIT_S)) as database:
            database.execute("BEGIN IMMEDIATE")
    for name, value in _USUAL.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    return MlflowClient(tracking_uri=uri)
