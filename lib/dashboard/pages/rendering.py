"""How a page is made of a template, and what becomes of a form that it sent."""

import datetime
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.dashboard import database as db
from lib.dashboard.schemas import FieldsError
from lib.errors import InputError

FOLDER = Path(__file__).parent.parent


def _size(size: float) -> str:
    """Return a size in bytes as people read it."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _seconds(value: float | None) -> str:
    """Return a time span as people read it."""
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else str(datetime.timedelta(seconds=round(value)))


def _taken(run: db.Run) -> float | None:
    """Return for how many seconds a run has run."""
    return ((run.finished_at or db.now()) - run.started_at).total_seconds() if run.started_at else None


_environment = Environment(loader=FileSystemLoader(FOLDER / "templates"), undefined=StrictUndefined, autoescape=True,
                           trim_blocks=True, lstrip_blocks=True)
_environment.filters |= {"json": partial(json.dumps, indent=1, ensure_ascii=False), "size": _size, "seconds": _seconds,
                         "taken": _taken, "time": lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""}
_templates = Jinja2Templates(env=_environment)


def render(request: Request, name: str, status: int = 200, headers: Any = None, /, **facts: Any) -> Response:
    """Return a page."""
    return _templates.TemplateResponse(request, name, facts, status, headers)


async def _form(request: Request) -> dict[str, str]:
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


Texts = Mapping[str, str]
NOTHING: Texts = MappingProxyType({})
Form = Annotated[dict[str, str], Depends(_form)]


def sent(change: Callable[[], str], again: Callable[..., Response], form: Mapping[str, str], field: str) -> Response:
    """Make a change and go to the page that it returns; where it is refused show the form ``again``, 422, as it was filled in.

    What is wrong stands beside its field, and what is of no field in particular beside ``field``.
    """
    try:
        return RedirectResponse(change(), 303)
    except InputError as error:
        return again(422, error.errors if isinstance(error, FieldsError) else {field: str(error)}, form)
