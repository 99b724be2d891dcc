"""The page that compares runs: their curves in one chart each, and the values of their configurations that differ."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import select

from lib.dashboard import database as db
from lib.dashboard.database_engine import Database
from lib.dashboard.fields import RowId
from lib.dashboard.operations import Operations
from lib.dashboard.pages.rendering import add_page
from lib.errors import InputError

_LEAST, _MOST, _MOST_POINTS = 2, 8, 500  # runs, and points of a line
_SPLITS = ("", "train_", "val_", "test_")


def add_compare(pages: APIRouter, operations: Operations) -> None:
    """Add the page."""
    def facts(run: Annotated[list[RowId], Query()] = ()) -> dict[str, Any]:
        chosen = dict.fromkeys(run)
        if not _LEAST <= len(chosen) <= _MOST:
            raise InputError(f"{_LEAST} to {_MOST} runs can be compared; chosen: {len(chosen)}. Go back and tick others.")
        runs = [operations.get(db.Run, run_id) for run_id in chosen]
        differing, same = differences(runs)
        return {"runs": runs, "differing": differing, "same": same, "curves": curves(operations.database, runs)}

    add_page(pages, "/web/compare", "compare.html", facts)


def differences(runs: Sequence[db.Run]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the values of configurations by name: where they differ one for each run, and those that all have."""
    contents = [{**run.config.config_json, **run.config.config_json.get("parameters", {})} for run in runs]
    names = sorted({name for content in contents for name in content} - {"parameters"})
    values = {name: [content.get(name) for content in contents] for name in names}
    alike = {name for name, given in values.items() if len({json.dumps(value, sort_keys=True) for value in given}) == 1}
    return ({name: given for name, given in values.items() if name not in alike},
            {name: values[name][0] for name in names if name in alike})


def curves(database: Database, runs: Sequence[db.Run]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of loss, rate and monitored metrics by name: each of a run (its number) and a split, with its points."""
    names = {"loss", "images_per_sec", *(run.monitor_metric.removeprefix("val_") for run in runs if run.monitor_metric)}
    keys = {split + name: name for name in names for split in _SPLITS}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, run in enumerate(runs):
        metric = db.RunMetric
        rows = select(metric.key, metric.split, metric.step, metric.value).where(
            metric.run_id == run.id, metric.key.in_(keys), metric.value.is_not(None)).order_by(metric.step)
        lines: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        with database.reading() as session:
            for key, split, step, value in session.execute(rows):
                lines[keys[key], split].append((step, value))
        for (name, split), points in sorted(lines.items()):
            stride = -(-len(points) // _MOST_POINTS)
            found[name].append({"run": number, "split": split, "points": [*points[:-1:stride], points[-1]]})
    return dict(sorted(found.items()))
