"""MLflow's store of fine-tuning runs and layer models: its address, and a client of it."""

import os
from pathlib import Path
from typing import Any

from lib import paths

SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}  # a server may be away: do not wait long


def store_uri() -> str:
    """Return the address of MLflow's store: SQLite in data/mlflow, or what the environment says."""
    default = f"sqlite:///{paths.DATA / 'mlflow' / 'mlflow.db'}"
    return os.environ.get("MLFLOW_TRACKING_URI") or default


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for a server."""
    file = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(file).absolute() if uri.startswith("sqlite:///") else None


def client(uri: str) -> Any:
    """Return an ``MlflowClient`` of a store and its registry, with SETTINGS for this process."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(uri, uri)
