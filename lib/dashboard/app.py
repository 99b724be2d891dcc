"""The dashboard as one ASGI application: the gate, the API, the pages, and answers to errors."""

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
from starlette.routing import Match

from lib import __version__
from lib.dashboard.access import gate
from lib.dashboard.api import Board, api
from lib.dashboard.bodies import FieldsError, reasons
from lib.dashboard.pages import FOLDER, pages, render
from lib.errors import InputError
from lib.schedule.run.database import AWAY, QueueAwayError


def create_app(board: Board, most_bytes: int = 1_000_000) -> FastAPI:
    """Return the application, which starts and closes the runner; larger requests are refused."""
    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        board.runner.start()
        try:
            yield
        finally:
            board.runner.close()

    app = FastAPI(title="Dashboard", version=__version__, lifespan=lifespan, docs_url=None,
                  redoc_url=None, openapi_url="/api/v1/openapi.json", max_body_size=most_bytes)
    app.state.board = board
    app.include_router(api)
    app.include_router(pages)
    app.mount("/static", StaticFiles(directory=FOLDER / "static"))
    app.middleware("http")(partial(gate, board.token))
    for kind in (RequestValidationError, HTTPException, InputError, IntegrityError, DataError,
                 OverflowError, *AWAY):
        app.add_exception_handler(kind, _answer)
    return app


def _answer(request: Request, error: Exception) -> Response:
    """Answer an error with its status and one line, as JSON or as a page."""
    if isinstance(error, RequestValidationError):
        error = FieldsError(reasons(error.errors(), drop=1))
    status, line = _status_and_line(error)
    headers = {"Retry-After": "1"} if status == 503 else getattr(error, "headers", None)
    if status == 405:  # the error names the methods of one route of the path alone
        headers = {"Allow": ", ".join(method for method in HTTPMethod if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in (*api.routes, *pages.routes)))}
    if request.url.path.startswith("/api/"):
        content = {"detail": line, "errors": getattr(error, "errors", {})}
        return JSONResponse(content, status, headers)
    return render(request, "error.html", status, headers, line=line, code=status)


def _status_and_line(error: Exception) -> tuple[int, str]:
    match error:
        case HTTPException():
            return error.status_code, str(error.detail)
        case InputError() if not isinstance(error, QueueAwayError):
            return getattr(error, "status", 422), str(error)
        case IntegrityError():
            return 409, "somebody else has changed the same meanwhile; look again, and repeat it"
        case DataError() | OverflowError():
            return 422, "a number or text is none that the database can keep"
        case _:
            return 503, "the database is locked, full or gone; nothing was changed, try again"
