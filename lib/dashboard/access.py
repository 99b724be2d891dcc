"""Access to the dashboard: one token, and the gate that every request passes first."""

import hmac
import os
import re
import secrets
import time
from pathlib import Path
from urllib.parse import quote

from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from lib import files
from lib.errors import InputError

COOKIE = "dashboard"
AGE_S = 30 * 86_400
HEADERS = {"Content-Security-Policy": "default-src 'none'; script-src 'self'; "
           "style-src 'self'; img-src 'self' data:; "
           "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
           "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
           "X-Frame-Options": "DENY", "Cache-Control": "no-store"}


def read_token(folder: Path) -> tuple[str, Path | None]:
    """Return the token and its file: DASHBOARD_TOKEN, else a file in ``folder``, made if missing.

    Only its owner can read the file. Raises InputError for a token that is too short.
    """
    token, path = os.environ.get("DASHBOARD_TOKEN"), None
    if token is None:
        path = files.folder(folder) / "token"
        if not path.exists():
            files.create(path, f"{secrets.token_urlsafe(32)}\n".encode(), files.PRIVATE)
        with files.writing(path):
            path.chmod(files.PRIVATE)
            token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"[!-~]{16,200}", token):
        raise InputError(f"{path or 'DASHBOARD_TOKEN'}: a token is of 16 to 200 letters, digits "
                         "and signs, without spaces")
    return token, path


def same(given: str, secret: str) -> bool:
    """Return whether a text is the secret, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def cookie(token: str) -> str:
    """Return the cookie of a browser that knows the token: its end and a signature."""
    return _signed(token, str(int(time.time()) + AGE_S))


def _signed(token: str, until: str) -> str:
    return f"{until}.{hmac.digest(token.encode(), f'page {until}'.encode(), 'sha256').hex()}"


async def gate(token: str, request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Let requests with the token pass: the API by Authorization: Bearer, pages by the cookie.

    All others are refused: 401, or for a page a redirect to /login; 403 for a form of another site.
    Answers get headers that keep a browser from running, framing or caching them.
    """
    answer = _refusal(token, request) or await call_next(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def _refusal(token: str, request: Request) -> Response | None:
    path, headers = request.url.path, request.headers
    if path.startswith("/api/"):
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and same(given.strip(), token):
            return None
        line = "the token is missing or wrong; send it as Authorization: Bearer TOKEN"
        return JSONResponse({"detail": line}, 401, {"WWW-Authenticate": "Bearer"})
    value = request.cookies.get(COOKIE, "")
    until = value.partition(".")[0]
    logged_in = same(value, _signed(token, until)) and int(until) > time.time()
    if not logged_in and path != "/login" and not path.startswith("/static/"):
        return RedirectResponse(f"/login?next={quote(path)}", 303)
    # browsers say where a form that changes something comes from
    origin = headers.get("origin", "").partition("://")[2]
    if request.method not in ("GET", "HEAD", "OPTIONS") and origin != headers.get("host"):
        return PlainTextResponse("this form was sent by another site; open the page here\n", 403)
    return None
