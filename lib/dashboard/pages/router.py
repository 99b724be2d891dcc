"""All pages together, and the way in."""

import re

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from sse_starlette.sse import EventSourceResponse

from lib.dashboard import events, security
from lib.dashboard.database import NotFoundError
from lib.dashboard.operations import Operations
from lib.dashboard.pages import lists, run
from lib.dashboard.pages.rendering import Form, render
from lib.errors import choices


def router(operations: Operations, token: str) -> APIRouter:
    """Return all pages."""
    pages = APIRouter()
    lists.add_lists(pages, operations)
    run.add_run(pages, operations)
    run.add_files(pages, operations)
    _add_login(pages, token)

    @pages.get("/")
    def home():
        return RedirectResponse("/web/projects", 303)

    @pages.get("/web/changes/{topic}")
    def changes(topic: str):
        if topic not in events.TOPICS:
            raise NotFoundError(f"there is no topic {topic}; there are: {choices(events.TOPICS)}")
        return EventSourceResponse(events.changes(operations.database, topic))

    return pages


def _add_login(pages: APIRouter, token: str) -> None:
    @pages.get("/login")
    def login(request: Request, next: str = "/"):
        return render(request, "login.html", next=next, error="")

    @pages.post("/login")
    def enter(request: Request, form: Form):
        target = form.get("next", "/")
        if not security.same(form.get("token", "").strip(), token):
            return render(request, "login.html", 401, next=target, error="this is not the token")
        is_page = re.fullmatch(r"/(web/[\w/.-]*)?", target, re.ASCII)
        response = RedirectResponse(target if is_page else "/", 303)
        security.set_cookie(response, token, request.url.scheme == "https")
        return response

    @pages.post("/logout")
    def leave():
        response = RedirectResponse("/login", 303)
        response.delete_cookie(security.COOKIE)
        return response
