"""All pages together, and the way in."""

import re

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from sse_starlette.sse import EventSourceResponse

from lib.dashboard import events, security
from lib.dashboard.database import NotFoundError
from lib.dashboard.engine import Database
from lib.dashboard.operations import Dispatcher
from lib.dashboard.pages import lists, run
from lib.dashboard.pages.rendering import Form, render
from lib.errors import choices


def router(database: Database, dispatcher: Dispatcher, token: str) -> APIRouter:
    """Return all pages."""
    pages = APIRouter()
    for part in (_login(database, token), lists.projects(database), lists.configs(database), lists.runs(database, dispatcher),
                 run.run(database, dispatcher), run.files(database), lists.agents(database),
                 lists.schedule(database, dispatcher)):
        pages.include_router(part)
    return pages


def _login(database: Database, token: str) -> APIRouter:
    part = APIRouter()

    @part.get("/")
    def home():
        return RedirectResponse("/web/projects", 303)

    @part.get("/login")
    def login(request: Request, next: str = "/"):
        return render(request, "login.html", next=next, error="")

    @part.post("/login")
    def enter(request: Request, form: Form):
        target = form.get("next", "/")
        if not security.same(form.get("token", "").strip(), token):
            return render(request, "login.html", 401, next=target, error="this is not the token")
        own = re.fullmatch(r"/(web/[\w/.-]*)?", target, re.ASCII)
        response = RedirectResponse(target if own else "/", 303)
        security.set_cookie(response, token, request.url.scheme == "https")
        return response

    @part.post("/logout")
    def leave():
        response = RedirectResponse("/login", 303)
        response.delete_cookie(security.COOKIE)
        return response

    @part.get("/web/changes/{topic}")
    def changes(topic: str):
        if topic not in events.TOPICS:
            raise NotFoundError(f"there is no topic {topic}; there are: {choices(events.TOPICS)}")
        return EventSourceResponse(events.changes(database, topic))

    return part
