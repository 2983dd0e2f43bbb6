"""The calls of operators to a running server, for the command line."""

from __future__ import annotations

import http
import json
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from client.cli.opening import Here
from client.errors import ConfigurationError, Unreachable
from client.sources import is_server
from client.transports import answers
from client.transports.limits import DEFAULT_LIMITS
from client.transports.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATIENCE = 30.0
"""Seconds that a call may take which does not walk over entries."""
_JSON = {"Content-Type": "application/json"}


class AdminCalls:
    """The server at ``url``. Errors are those of `client.transports.base.Transport`."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._session = Session(url, environ, DEFAULT_LIMITS, time.monotonic)

    def call(self, method: str, path: str, value: Any = None, *, patience: float = PATIENCE) -> Any:
        """Send JSON, or nothing; return the answer's JSON, or None if it has none."""
        body, headers = (b"", {}) if value is None else (json.dumps(value).encode(), _JSON)
        with self._session.send(method, path, body, headers, answer_seconds=patience) as answer:
            if answer.status == http.HTTPStatus.NO_CONTENT:
                return answer.read_small(0) or None
            return answers.read_json(answer, answers.MAX_MANY)

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``."""
        with self._session.get(path) as got:
            if got is None:
                raise Unreachable(f"{self._session.address} answers, but not as a server of this version")
            return answers.read_json(got.answer, answers.MAX_MANY)

    def close(self) -> None:
        """Drop idle connections."""
        self._session.close()


@contextmanager
def admin_calls(url: str | None) -> Iterator[AdminCalls]:
    """Open the server that ``url`` or NEURON_CACHE_URL names; raises `ConfigurationError` if that is no server."""
    here = Here.open(url)
    if not is_server(here.url):
        raise ConfigurationError(f"{here.url} is no cache server: this command works on http:// and https:// addresses")
    with closing(AdminCalls(here.url, here.environ)) as calls:
        yield calls
