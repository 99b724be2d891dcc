"""The agent's calls of the server: over HTTP, with the token."""

import os
from pathlib import Path
from typing import Any

import httpx

from lib import paths
from lib.config.base import parse
from lib.dashboard.agents.messages import Exchange, Registered, Registration, Reply
from lib.errors import InputError, one_line

_API = "/api/v1/agents"
_CONNECT_S = 5.0


class NoAnswerError(Exception):
    """The server did not answer; a later call may succeed."""


class SessionOverError(Exception):
    """The server no longer knows the session of this agent."""


class Client:
    """The two calls of the server."""

    def __init__(self, server: str, token: str):
        try:
            url = httpx.URL(server)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise InputError(f"--server {server!r} is no address; it is such as http://127.0.0.1:8000")
        self.server = server.rstrip("/")
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                                  trust_env=False)  # the token goes to the server, to no proxy

    def register(self, registration: Registration) -> Registered:
        """Begin a session."""
        return self._post("/register", registration, Registered, _CONNECT_S)

    def exchange(self, agent_id: str, exchange: Exchange, patience_s: float) -> Reply:
        """Exchange messages."""
        return self._post(f"/{agent_id}/exchange", exchange, Reply, patience_s + exchange.wait_s)

    def _post(self, path: str, content: Any, answer: type, patience_s: float) -> Any:
        """Return the answer. Raises InputError where trying again would not help, else NoAnswerError or SessionOverError."""
        try:
            response = self._http.post(f"{self.server}{_API}{path}", content=content.model_dump_json(), timeout=patience_s)
        except httpx.HTTPError as error:
            raise NoAnswerError(one_line(error)) from None
        status, where = response.status_code, f"what answers at {self.server}"
        if status == httpx.codes.OK:
            return parse(answer, response.content, where)
        reason = response.text[:300]
        if status == httpx.codes.GONE:
            raise SessionOverError(reason)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise InputError(f"{self.server} refuses this agent's token: give the file that the dashboard names at its start "
                             "as --token-file")
        if status == httpx.codes.CONFLICT:
            raise InputError(f"{self.server}: {reason}")
        if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
            raise NoAnswerError(f"status {status}: {reason}")
        raise InputError(f"{where} is no dashboard, or one of another version: status {status}, {reason}")


def read_token(path: Path | None) -> str:
    """Return the token from a file, from DASHBOARD_TOKEN, or from the dashboard's file on this machine.

    The variable is removed from the environment, so that no job gets the token.
    """
    stated = os.environ.pop("DASHBOARD_TOKEN", "")
    if path is None and stated:
        return stated
    path = path or paths.DATA / "dashboard" / "token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"no token for the server in {path} ({one_line(error)}); --token-file names the file that the "
                         "dashboard names at its start") from None
