"""How a page is made from a template, and what happens to the forms on it."""

import datetime
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.dashboard import database as db
from lib.dashboard.fields import FieldsError
from lib.errors import InputError

Facts = dict[str, Any]  # what a page shows, by its name in the template
FOLDER = Path(__file__).parent.parent
_LATE = datetime.timedelta(seconds=6)  # an agent says something each second


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else str(datetime.timedelta(seconds=round(value)))


def _moment(at_s: float) -> str:
    """Return a time, in seconds from now, in words."""
    return f"in {_seconds(at_s)}" if at_s > 0 else f"{_seconds(-at_s)} ago"


def _taken(run: db.Run) -> float | None:
    """Return the seconds of a run's last attempt, until now while it runs; None while it waits."""
    return ((run.finished_at or db.now()) - run.started_at).total_seconds() if run.started_at else None


_environment = Environment(loader=FileSystemLoader(FOLDER / "templates"), undefined=StrictUndefined, autoescape=True,
                           trim_blocks=True, lstrip_blocks=True)
_environment.filters |= {"json": partial(json.dumps, indent=1, ensure_ascii=False), "seconds": _seconds, "moment": _moment,
                         "taken": _taken, "is_late": lambda at: at and db.now() - at > _LATE,
                         "time": lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""}
_templates = Jinja2Templates(env=_environment)


def render(request: Request, name: str, status: int = 200, headers: Any = None, /, **facts: Any) -> Response:
    """Return a page."""
    return _templates.TemplateResponse(request, name, facts, status, headers)


async def _form(request: Request) -> dict[str, str]:
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


Form = Annotated[dict[str, str], Depends(_form)]


def add_page(pages: APIRouter, path: str, template: str, facts: Callable[..., Facts],
             *forms: tuple[str, Callable[..., str], str]) -> None:
    """Add a page at ``path`` that shows ``facts``, a dependency of FastAPI, and the forms on it.

    A form is its address, a change, and a field. The change takes the form and the parameters of the path, and returns the page
    to go to. Where it is refused the page is shown again with the form as it was filled in (422); a reason that belongs to no
    field in particular stands beside the field named here.
    """
    @pages.get(path)
    def shown(request: Request, facts: Annotated[Facts, Depends(facts)]):
        return render(request, template, **{"errors": {}, "form": {}, **facts})

    def sent(change: Callable[..., str], field: str, request: Request, form: Form,
             facts: Annotated[Facts, Depends(facts)]):
        try:
            return RedirectResponse(change(form, **request.path_params), 303)
        except InputError as error:
            errors = error.errors if isinstance(error, FieldsError) else {field: str(error)}
            return render(request, template, 422, **{**facts, "errors": errors, "form": form})

    for address, *change in forms:
        pages.post(address)(partial(sent, *change))
