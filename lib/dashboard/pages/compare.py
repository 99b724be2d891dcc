"""The page that compares runs: their curves in one chart each, and the values of their configurations that differ."""

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
    table = {name: [content.get(name) for content in contents] for name in sorted(set().union(*contents) - {"parameters"})}
    same = {name: values[0] for name, values in table.items() if values.count(values[0]) == len(runs)}
    return {name: values for name, values in table.items() if name not in same}, same


def curves(database: Database, runs: Sequence[db.Run]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of loss, rate and monitored metrics by name: each of a run (its number) and a split, with its points."""
    names = {"loss", "images_per_sec", *(run.monitor_metric.removeprefix("val_") for run in runs if run.monitor_metric)}
    keys = {split + name: name for name in names for split in _SPLITS}
    numbers, metric, lines, charts = {run.id: number for number, run in enumerate(runs)}, db.RunMetric, defaultdict(list), {}
    rows = select(metric.run_id, metric.key, metric.split, metric.step, metric.value).where(
        metric.run_id.in_(numbers), metric.key.in_(keys), metric.value.is_not(None)).order_by(metric.step)
    with database.reading() as session:
        for run_id, key, split, step, value in session.execute(rows):
            lines[keys[key], numbers[run_id], split].append((step, value))
    for (name, number, split), points in sorted(lines.items()):
        stride = -(-len(points) // _MOST_POINTS)
        charts.setdefault(name, []).append({"run": number, "split": split, "points": [*points[:-1:stride], points[-1]]})
    return charts
