"""The dashboard as one ASGI application: the gate, the API, the pages, and how errors are answered."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPMethod

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import DataError, IntegrityError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from lib import __version__
from lib.dashboard import api, database
from lib.dashboard.fields import FieldsError, fields
from lib.dashboard.operations import Operations
from lib.dashboard.pages import lists, rendering
from lib.dashboard.security import gate
from lib.errors import InputError

_UNKEEPABLE = 422, "a number or text is none that the database can keep"
_UNAVAILABLE = 503, "the database is locked, full or gone; nothing was changed, try again"
# the status of an error and its line, of None that of the error itself; the first type that fits counts
_ERRORS = {database.NotFoundError: (404, None), database.ConflictError: (409, None), InputError: (422, None),
           DataError: _UNKEEPABLE, OverflowError: _UNKEEPABLE,
           IntegrityError: (409, "somebody else has changed the same meanwhile; look again, and repeat it"),
           **dict.fromkeys(database.UNAVAILABLE, _UNAVAILABLE)}


def create_app(operations: Operations, token: str, most_bytes: int = 1_000_000) -> FastAPI:
    """Return the application; it starts and closes the dispatcher. ``most_bytes`` is the size of the largest request."""
    dispatcher = operations.dispatcher

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        dispatcher.start()
        try:
            yield
        finally:
            dispatcher.close()

    app = FastAPI(title="Dashboard", version=__version__, lifespan=lifespan, openapi_url="/api/v1/openapi.json", docs_url=None,
                  redoc_url=None, max_body_size=most_bytes)
    app.include_router(api.router(operations))
    app.include_router(dispatcher.router, prefix="/api/v1", **api.PROTECTED)
    app.include_router(lists.router(operations, token), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=rendering.FOLDER / "static"))
    app.middleware("http")(partial(gate, token))
    for kind in (*_ERRORS, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    return app


def _answer(request: Request, error: Exception) -> Response:
    """Answer an error with its status and one line, as JSON or as a page."""
    if isinstance(error, RequestValidationError):
        error = FieldsError(fields(error.errors(), drop=1))
    if isinstance(error, HTTPException):
        status, line = error.status_code, str(error.detail)
    else:
        status, line = next(answer for kind, answer in _ERRORS.items() if isinstance(error, kind))
    headers = {"Retry-After": "1"} if status == 503 else getattr(error, "headers", None)
    if status == 405:  # the error names the method of one route of the path alone
        routes = [route for route in request.app.routes if not isinstance(route, Mount)]
        allowed = [method for method in HTTPMethod
                   if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)]
        headers = {"Allow": ", ".join(allowed)} if allowed else headers
    line = line or str(error)
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": line, "errors": getattr(error, "errors", {})}, status, headers)
    return rendering.render(request, "error.html", status, headers, status=status, line=line)
