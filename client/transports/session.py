"""Calls to one cache server: its address, its token, redirects, and what an unsuccessful answer means.

Each request carries an id of ours in ``X-Request-Id``, under which the server logs it and our messages name it.

What a server could not take just then (`_PASSING`) is sent again, with pauses that spread callers out: every write of
the protocol may come twice. A caller that waits is kept for no longer than a part of its patience.

A token never leaves the origin of the server's address: only GET follows a redirect, to hosts that are named here
(`client.transports.redirects`), without the token where that leads to another origin (an object store), and a body is
sent nowhere but home. What a server would have us take from any other place it is asked for itself.
"""

from __future__ import annotations

import http
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from client._version import __version__
from client.errors import ConfigurationError, Unreachable
from client.token_source import TokenSource
from client.transports import answers, patience
from client.transports.connection import REQUEST_ID, Answer, Connection, Request, Wire
from client.transports.endpoint import OwnRoute, parse_origin, parse_server
from client.transports.redirects import SETTING, STAY, Redirects
from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from client.transports.endpoint import Origin
    from client.transports.limits import Limits
    from client.wire import Entry

_MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_SUCCESS = {http.HTTPStatus.OK, http.HTTPStatus.CREATED, http.HTTPStatus.NO_CONTENT}
_MAX_IGNORED = 1 << 20
_PASSING = {429, 502, 503, 504}
_SHARE_FOR_RETRIES = 0.4
"""Share of a caller's patience that may go by before the last try of a write."""
_PAUSES = (0.1, 1.0)
"""Seconds: the bound of the first pause, which doubles, and the longest, whatever a server asks for."""


def _draw() -> float:
    import random  # noqa: PLC0415 - only what has to be sent again needs it

    return random.random()  # noqa: S311 - spreads callers out, and protects nothing


class Got(NamedTuple):
    """A successful GET: its answer, the entry in a header on the way, and whether another origin gave it."""

    answer: Answer
    entry: Entry | None
    elsewhere: bool


class Session:
    """The server at ``url``; see `client.transports.http.HttpTransport` for the arguments."""

    def __init__(
        self,
        url: str,
        environ: Mapping[str, str],
        limits: Limits,
        monotonic: Callable[[], float],
        *,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = _draw,
    ) -> None:
        self._origin, self._base = parse_server(url)
        self._environ = environ
        self._limits = limits
        self._monotonic = monotonic
        self._sleep = sleep
        self._draw = draw
        self._tokens = TokenSource(url, environ)
        self._token = None if self._tokens.takes_time else self._tokens.current()
        self._route = OwnRoute(self._origin, environ)
        self._redirects = Redirects(self._origin, environ)
        self._stays = False
        self._wire = Wire(self._connect, monotonic)
        self.address = f"{self._origin}{self._base}"

    @contextmanager
    def get(self, path: str, *, encoded: bool = False, method: str = "GET") -> Iterator[Got | None]:
        """GET (or HEAD) ``path``; None if there is nothing. ``encoded`` accepts outputs as zstd frames."""
        origin, target, entry = self._origin, self._base + path, None
        name = _request_id()
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {**self._headers(origin, name), "Accept-Encoding": "zstd" if encoded else "identity"}
            if self._stays and encoded and origin == self._origin:
                headers.update(STAY)
            begun = self._monotonic()
            with self._exchange(origin, Request(method, target, headers, self._limits.answer)) as answer:
                patience.current().watch.waited += self._monotonic() - begun
                if answer.status not in _REDIRECTS:
                    yield self._got(
                        answer,
                        f"{method} {self.address}{path} (request {name})",
                        entry,
                        elsewhere=origin != self._origin,
                    )
                    return
                entry = entry or answers.entry_in_header(answer)
                location = answer.header("Location")
                answer.read_small(_MAX_IGNORED)
            found, onward = _redirected(origin, target, location)
            if found == self._origin or self._redirects.route(found) is not None:
                origin, target = found, onward
            else:
                self._stay(found)
                origin, target = self._origin, self._base + path
        raise Unreachable(f"GET {self.address}{path} was redirected more than {_MAX_REDIRECTS} times")

    def _stay(self, target: Origin) -> None:
        """Have the server send outputs itself from now on; raises `Unreachable` if it was asked to before."""
        sentence = f"{self.address} redirects to {target}, which is neither its own host nor S3, nor named by {SETTING}"
        if self._stays:
            raise Unreachable(f"{sentence}: not followed")
        self._stays = True
        LOGGER.warning("neff-cache: %s: not followed, and asked for from the server itself", sentence)

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
        """Send a body; see `client.transports.connection.Request` for the times.

        An answer that asks for patience (`_PASSING`) is followed by another try, within ``limits.retry`` and ``until``.
        """
        seconds = min(self._limits.retry, _SHARE_FOR_RETRIES * patience.current().left)
        deadline, tries = min(self._monotonic() + seconds, until), 0
        while True:
            name = _request_id()
            sent = {**self._headers(self._origin, name), **headers}
            request = Request(method, self._base + path, sent, answer_seconds, body, until)
            with self._exchange(self._origin, request) as answer:
                if answer.status in _SUCCESS:
                    yield answer
                    return
                if answer.status in _REDIRECTS:
                    raise Unreachable(
                        f"{method} {self.address}{path} was redirected, and only GET follows: "
                        "set NEURON_CACHE_URL to the address the server really has"
                    )
                pause = self._pause(tries, answer.header("Retry-After"))
                problem = answers.problem(answer, f"{method} {self.address}{path} (request {name})")
                if answer.status not in _PASSING or self._monotonic() + pause >= deadline:
                    raise problem
            tries += 1
            self._sleep(pause)

    def _pause(self, tries: int, asked: str) -> float:
        """Return how long to wait before the next try; ``asked`` is what the server said, if it did."""
        first, longest = _PAUSES
        wanted = float(asked) if asked.isascii() and asked.isdigit() else 0.0
        return max(self._draw() * min(first * float(1 << min(tries, 16)), longest), min(wanted, longest))

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
                    other = self._tokens.instead_of(token, patience.current().left)
            if other is None:
                yield answer
                return
            answer.read_small(_MAX_IGNORED)
        self._token = other
        with self._wire.exchange(origin, _authorized(request, other)) as answer:
            yield answer

    def _current_token(self) -> str | None:
        with suppress(ConfigurationError):  # a token file that is just being replaced: the last one goes on
            self._token = self._tokens.current(patience.current().left)
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
        route = self._redirects.route(origin)
        if route is None:
            raise Unreachable(f"{self.address} redirects to {origin}: not followed")
        return Connection(route, self._limits, self._monotonic)


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
