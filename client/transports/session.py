"""Calls to one cache server: its address, its token, redirects, and what an unsuccessful answer means.

Each request carries an id of ours in ``X-Request-Id``, under which the server logs it and our messages name it.

A token never leaves the origin of the server's address: only GET follows a redirect, without the token where that leads
to another origin (an object store), and a body is sent nowhere but home.
"""

from __future__ import annotations

import http
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from client._version import __version__
from client.errors import ConfigurationError, Unreachable
from client.token_source import TokenSource
from client.transports import answers, patience
from client.transports.connection import REQUEST_ID, Answer, Connection, Request, Wire
from client.transports.endpoint import OwnRoute, parse_origin, parse_server, route_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from client.transports.endpoint import Origin
    from client.transports.limits import Limits
    from client.wire import Entry

_MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_SUCCESS = {http.HTTPStatus.OK, http.HTTPStatus.CREATED, http.HTTPStatus.NO_CONTENT}
_MAX_IGNORED = 1 << 20


class Got(NamedTuple):
    """A successful GET: its answer, the entry in a header on the way, and whether another origin gave it."""

    answer: Answer
    entry: Entry | None
    elsewhere: bool


class Session:
    """The server at ``url``; see `client.transports.http.HttpTransport` for the arguments."""

    def __init__(self, url: str, environ: Mapping[str, str], limits: Limits, monotonic: Callable[[], float]) -> None:
        self._origin, self._base = parse_server(url)
        self._environ = environ
        self._limits = limits
        self._monotonic = monotonic
        self._tokens = TokenSource(url, environ)
        self._token = None if self._tokens.takes_time else self._tokens.current()
        self._route = OwnRoute(self._origin, environ)
        self._wire = Wire(self._connect, monotonic)
        self.address = f"{self._origin}{self._base}"

    @contextmanager
    def get(self, path: str, *, encoded: bool = False) -> Iterator[Got | None]:
        """GET ``path``; None if there is nothing. ``encoded`` accepts outputs as zstd frames."""
        origin, target, entry = self._origin, self._base + path, None
        name = _request_id()
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {**self._headers(origin, name), "Accept-Encoding": "zstd" if encoded else "identity"}
            with self._exchange(origin, Request("GET", target, headers, self._limits.answer)) as answer:
                if answer.status not in _REDIRECTS:
                    yield self._got(
                        answer, f"GET {self.address}{path} (request {name})", entry, elsewhere=origin != self._origin
                    )
                    return
                entry = entry or answers.entry_in_header(answer)
                location = answer.header("Location")
                answer.read_small(_MAX_IGNORED)
            origin, target = _redirected(origin, target, location)
        raise Unreachable(f"GET {self.address}{path} was redirected more than {_MAX_REDIRECTS} times")

    @contextmanager
    def send(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        answer_seconds: float,
        until: float = float("inf"),
    ) -> Iterator[Answer]:
        """Send a body; see `client.transports.connection.Request` for the times."""
        name = _request_id()
        headers = {**self._headers(self._origin, name), **headers}
        request = Request(method, self._base + path, headers, answer_seconds, body, until)
        with self._exchange(self._origin, request) as answer:
            if answer.status in _REDIRECTS:
                raise Unreachable(
                    f"{method} {self.address}{path} was redirected, and only GET follows: "
                    "set NEURON_CACHE_URL to the address the server really has"
                )
            if answer.status not in _SUCCESS:
                raise answers.problem(answer, f"{method} {self.address}{path} (request {name})")
            yield answer

    @contextmanager
    def bare(self, path: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """GET ``path`` with just these headers, none of ours: not even the token. Any status is an answer."""
        request = Request("GET", self._base + path, headers, self._limits.answer)
        with self._wire.exchange(self._origin, request) as answer:
            yield answer
            answer.read_small(_MAX_IGNORED)

    def close(self) -> None:
        """Drop idle connections."""
        self._wire.close()

    @contextmanager
    def _exchange(self, origin: Origin, request: Request) -> Iterator[Answer]:
        """Send a request; if our server refuses the token (it may have run out), once more with another, if any."""
        token = self._current_token() if origin == self._origin else None
        with self._wire.exchange(origin, _authorized(request, token)) as answer:
            other = None
            if answer.status == http.HTTPStatus.UNAUTHORIZED and token is not None:
                with suppress(ConfigurationError):
                    other = self._tokens.instead_of(token, patience.current().quiet)
            if other is None:
                yield answer
                return
            answer.read_small(_MAX_IGNORED)
        self._token = other
        with self._wire.exchange(origin, _authorized(request, other)) as answer:
            yield answer

    def _current_token(self) -> str | None:
        with suppress(ConfigurationError):  # a token file that is just being replaced: the last one goes on
            self._token = self._tokens.current(patience.current().quiet)
        return self._token

    @staticmethod
    def _got(answer: Answer, what: str, entry: Entry | None, *, elsewhere: bool) -> Got | None:
        if answer.status in _SUCCESS:
            return Got(answer, entry or answers.entry_in_header(answer), elsewhere)
        if elsewhere:  # an object store's no, such as for an address that ran out, says nothing about our rights
            raise Unreachable(f"{what} was redirected to a place that answered {answer.status}")
        if answers.is_absent(answer):
            return None
        raise answers.problem(answer, what)

    def _headers(self, origin: Origin, name: str) -> dict[str, str]:
        headers = {"User-Agent": f"neff-cache/{__version__}"}
        if origin == self._origin:
            headers[REQUEST_ID] = name
        return headers

    def _connect(self, origin: Origin) -> Connection:
        if origin == self._origin:
            return Connection(self._route.current(), self._limits, self._monotonic)
        try:
            return Connection(route_to(origin, self._environ, own=False), self._limits, self._monotonic)
        except ConfigurationError as error:
            raise Unreachable(f"{self.address} redirects to {origin}: {error}") from error


def _authorized(request: Request, token: str | None) -> Request:
    if token is None:
        return request
    return replace(request, headers={**request.headers, "Authorization": f"Bearer {token}"})


def _request_id() -> str:
    return os.urandom(8).hex()


def _redirected(origin: Origin, target: str, location: str) -> tuple[Origin, str]:
    try:
        found, parts = parse_origin(urljoin(f"{origin}{target}", location))
    except ValueError as error:
        raise Unreachable(f"{origin} redirects to where we cannot follow: {error}") from error
    if origin.is_tls and not found.is_tls:
        raise Unreachable(f"{origin} redirects to {found}, which is not encrypted")
    return found, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
