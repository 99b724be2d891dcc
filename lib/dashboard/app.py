"""The dashboard as one ASGI application: the gate, the API, the pages, and how errors are answered."""

import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http import HTTPMethod, HTTPStatus

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import DataError, IntegrityError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from lib import __version__
from lib.dashboard import api, database, schemas
from lib.dashboard.engine import Database
from lib.dashboard.operations import Dispatcher
from lib.dashboard.pages import rendering, router
from lib.dashboard.security import Gate
from lib.errors import InputError

_SWITCH_S = 1e-3  # a request changes threads several times, and waits so long each time where another one is busy


@dataclass(frozen=True)
class Settings:
    """What an application stands on; the files of runs lie in ``paths.DATA``."""

    database: Database
    token: str
    most_bytes: int = 1_000_000  # of a request


def create_app(settings: Settings, dispatcher: Dispatcher) -> FastAPI:
    """Return the application; it starts and closes ``dispatcher``."""
    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        dispatcher.start()
        try:
            with _responsive():
                yield
        finally:
            dispatcher.close()

    app = FastAPI(title="Dashboard", version=__version__, lifespan=lifespan, openapi_url="/api/v1/openapi.json", docs_url=None,
                  redoc_url=None, max_body_size=settings.most_bytes)
    app.include_router(api.router(settings.database, dispatcher))
    app.include_router(dispatcher.router, prefix="/api/v1", dependencies=[Depends(HTTPBearer(auto_error=False))],
                       responses=api.REFUSALS)
    app.include_router(router.router(settings.database, dispatcher, settings.token), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=rendering.FOLDER / "static"))
    app.add_middleware(Gate, token=settings.token)
    for kind in (InputError, RequestValidationError, HTTPException, IntegrityError, DataError, OverflowError,
                 *database.UNAVAILABLE):
        app.add_exception_handler(kind, _answer)
    return app


@contextlib.contextmanager
def _responsive() -> Iterator[None]:
    """Keep requests from waiting for busy threads, and for the search for garbage in all that is imported."""
    interval_s = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()


def _answer(request: Request, error: Exception) -> Response:
    """Answer an error with its status and one line, as JSON or as a page."""
    status, line, fields = _described(error)
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else getattr(error, "headers", None)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:  # the error names the method of one route of the path alone
        routes = [route for route in request.app.routes if not isinstance(route, Mount)]
        allowed = [method for method in HTTPMethod
                   if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)]
        headers = {"Allow": ", ".join(allowed)} if allowed else headers
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": line, "errors": fields}, status, headers)
    return rendering.render(request, "error.html", status, headers, status=status, line=line)


def _described(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Return the status of an error, its line, and the reasons by field."""
    match error:
        case database.NotFoundError():
            return HTTPStatus.NOT_FOUND, str(error), {}
        case database.ConflictError():
            return HTTPStatus.CONFLICT, str(error), {}
        case RequestValidationError():
            fields = schemas.FieldsError(schemas.fields(error.errors(), drop=1))
            return HTTPStatus.UNPROCESSABLE_ENTITY, str(fields), fields.errors
        case InputError():
            return HTTPStatus.UNPROCESSABLE_ENTITY, str(error), getattr(error, "errors", {})
        case DataError() | OverflowError():
            return HTTPStatus.UNPROCESSABLE_ENTITY, "a number or text is none that the database can keep", {}
        case HTTPException():
            return error.status_code, str(error.detail), {}
        case IntegrityError():
            return HTTPStatus.CONFLICT, "somebody else has changed the same meanwhile; look again, and repeat it", {}
    return HTTPStatus.SERVICE_UNAVAILABLE, "the database is locked, full or gone; nothing was changed, try again", {}
