"""A run in MLflow: its config, and the metrics of each epoch and of the test."""

import contextlib
import math
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import files, locks, mlflow_store, paths
from lib.errors import one_line, refused

RUN_ID = "mlflow_run_id"
_WAIT_S = 60.0  # for another process that makes the same store


@contextlib.contextmanager
def opened_store() -> Iterator[Any]:
    """Give a client of MLflow's store, made if missing, to one process at a time; InputError."""
    uri = mlflow_store.store_uri()
    with refused(f"MLflow's store {uri} cannot be used: ", "; move it, name another by "
                 "MLFLOW_TRACKING_URI, or set mlflow to false"), \
            locks.writer(files.folder(paths.DATA / "mlflow") / "mlflow.db", _WAIT_S):
        if file := mlflow_store.sqlite_file(uri):  # MLflow would try a wrong file for minutes
            with contextlib.closing(sqlite3.connect(file, timeout=_WAIT_S)) as database:
                database.execute("BEGIN IMMEDIATE")
        yield mlflow_store.client(uri)


class TrackedRun:
    """The run of a folder in MLflow's store: a new one, or the one whose id is in the folder.

    As a context manager it ends the run: FINISHED, or FAILED by an error, or KILLED. A store that
    cannot be used is refused at once; what cannot be written later is said in one line.
    """

    def __init__(self, folder: Path, experiment: str, config: Mapping[str, Any]):
        path = folder / RUN_ID
        with opened_store() as self._client:
            from mlflow import MlflowException

            self.id = path.read_text() if path.exists() else "none"
            try:
                self._client.update_run(self.id, status="RUNNING")
            except MlflowException:  # a new run, or one of another store
                self.id = self._new(folder, experiment, config)
        files.replace(path, self.id.encode())

    def _new(self, folder: Path, experiment: str, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        run = self._client.create_run(number, run_name=folder.name, tags={"folder": str(folder)})
        params = [Param(name, str(value)[:6000]) for name, value in config.items()]
        self._client.log_batch(run.info.run_id, params=params)  # 6000 characters at most
        return run.info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics by name; ``@`` becomes ``_at_``, since MLflow refuses it."""
        from mlflow.entities import Metric

        now_ms = round(time.time() * 1000)
        with _said():
            self._client.log_batch(self.id, [
                Metric(name.replace("@", "_at_"), value, now_ms, step)
                for name, value in values.items() if not math.isnan(value)])

    def __enter__(self) -> "TrackedRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        ended = "FAILED" if issubclass(kind or Exception, Exception) else "KILLED"
        with _said():
            self._client.set_terminated(self.id, ended if kind else "FINISHED")


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Print in one line what MLflow cannot write."""
    try:
        yield
    except Exception as error:  # of MLflow, its databases and HTTP
        print(f"not logged in MLflow, but in history.csv: {one_line(error)}", flush=True)


def serve(options: Sequence[str]) -> None:
    """Be MLflow's server of the store; it does not make that while a run does."""
    with opened_store():
        from mlflow import cli
    cli.cli(["server", "--backend-store-uri", mlflow_store.store_uri(), *options])


if __name__ == "__main__":
    serve(sys.argv[1:])
