"""The way of a job's requests to the shared cache, walked step by step: what a job would meet, and where it would stop.

Nothing is stored on the way: the lease that is taken is given back, and the key that is asked for is no document's.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from client.doctor.base import Finding, State, note, ok, problem
from client.errors import Denied, NeffCacheError, Refused, Unreachable
from client.names import Kind
from client.server_calls import PROBE_KEY, ServerCalls
from client.transports import open_transport
from client.transports.dial import dial, resolve
from client.transports.endpoint import Route, parse_server, route_to
from client.transports.limits import DEFAULT_LIMITS
from client.wire import Granted, Holder, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from client.settings import Settings
    from client.transports.base import Transport

SLOW = 0.5
"""Seconds for the least of all questions, from which on eager jobs notice."""
MOST_SECONDS = 15.0
"""For the whole way: a server that is frozen, or a byte slower than every limit, must not hold up who looks at it."""
_TOKEN = "see NEURON_CACHE_TOKEN, NEURON_CACHE_TOKEN_FILE and NEURON_CACHE_PROJECT"  # noqa: S105 - their names
_BEFORE = frozenset({"name", "connection", "TLS"})
_NEEDED = _BEFORE | {"answer", "token", "read"}
"""Steps that none after them goes without."""
_ALONE = "jobs go on without it, and compile what others have"

Look: TypeAlias = "Callable[[], Finding]"


class Step(NamedTuple):
    """One step: its name, how long it took, and what came of it. ``reached``: whether the server itself answered."""

    name: str
    seconds: float
    finding: Finding
    reached: bool

    @property
    def text(self) -> str:
        """What was found, with the milliseconds that it took."""
        return f"{self.finding.text} ({self.seconds * 1000:.0f} ms)"


def walk_to_server(
    settings: Settings, environ: Mapping[str, str], *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Step]:
    """Walk to the server that the settings name; the last step is the first that cannot be gone beyond.

    Raises `client.errors.ConfigurationError` for an address or files that cannot be used at all.
    """
    url = settings.url or ""
    origin, _ = parse_server(url)
    route = route_to(origin, environ, own=True)
    until = monotonic() + MOST_SECONDS
    with (
        closing(ServerCalls(url, settings.project, environ)) as calls,
        closing(open_transport(url, settings.project, environ)) as transport,
    ):
        way = [*_to_the_door(route), *_inside(calls, transport, settings)]
        reached = False
        for name, look in way:
            begin = monotonic()
            if begin > until:
                late = problem(f"given up before {name}: {MOST_SECONDS:.0f} s are over", _ALONE)
                yield Step(name, 0.0, late, reached)
                return
            finding, answered = _look(name, look, calls.address)
            # what is asked for after the door is answered by the server, be it with a no
            reached = reached or (answered and name not in _BEFORE)
            yield Step(name, monotonic() - begin, finding, reached)
            if not answered or (finding.state is State.PROBLEM and name in _NEEDED):
                return


def _look(name: str, look: Look, address: str) -> tuple[Finding, bool]:
    """Return what a step finds, and whether there was an answer at all."""
    try:
        return look(), True
    except (Denied, Refused) as error:
        return problem(f"{name}: {error}", _advice(error)), True
    except (OSError, Unreachable) as error:
        said = error if isinstance(error, Unreachable) else f"{address} cannot be reached: {error}"
        return problem(f"{name}: {said}", _lost(name)), False


def _to_the_door(route: Route) -> Iterator[tuple[str, Look]]:
    """Yield what happens before a word is said: each alone, as a request has them in one."""
    target = route.origin if route.proxy is None else route.proxy.origin
    seconds = DEFAULT_LIMITS.connect

    def name() -> Finding:
        found = sorted({str(each[4][0]) for each in resolve(target.host, target.port, seconds)})
        return ok(f"{target.host} is {', '.join(found)}" + ("" if route.proxy is None else ", the proxy"))

    def connection() -> Finding:
        dial(Route(route.origin, route.proxy), seconds).close()
        return ok(f"{target} takes connections")

    def tls() -> Finding:
        with closing(dial(route, seconds)) as sock:
            version = getattr(sock, "version", lambda: "TLS")()
        return ok(f"{route.origin} shows a certificate that is trusted here, {version}")

    yield "name", name
    yield "connection", connection
    if route.tls is not None:
        yield "TLS", tls


def _inside(calls: ServerCalls, transport: Transport, settings: Settings) -> Iterator[tuple[str, Look]]:
    """Yield what a job asks, in its order."""
    project = settings.project
    yield "answer", lambda: _answers(calls)
    yield "token", lambda: _is_known(calls, project)
    yield "empty token", lambda: _is_shut(calls)
    yield "read", lambda: _may_read(calls, transport, project)
    yield "store", lambda: _serves(calls)
    if settings.mode == "rw":
        yield "publish", lambda: _may_publish(calls, project)
        yield "lease", lambda: _may_lease(transport)


def _answers(calls: ServerCalls) -> Finding:
    seconds = calls.ping().seconds
    text = f"{calls.address} answers in {seconds * 1000:.0f} ms"
    return note(text, "a server this far away slows eager jobs down") if seconds > SLOW else ok(text)


def _is_known(calls: ServerCalls, project: str) -> Finding:
    try:
        return ok(f"we are known there as {calls.name() or 'nobody in particular'}")
    except Denied:
        return problem(f"we may not read project {project}: the server does not take our token", _TOKEN)


def _is_shut(calls: ServerCalls) -> Finding:
    if not calls.is_open_to_all():
        return ok("a token that is empty is refused")
    return problem(
        "the server lets in anybody whose token is empty: it is open to all who can reach it",
        "update it, set a first token of its own, and read docs/tokens.md on what to look for",
    )


def _may_read(calls: ServerCalls, transport: Transport, project: str) -> Finding:
    if not calls.may_read():
        return problem(f"we may not read project {project}", _TOKEN)
    transport.entry(Kind.GRAPH, PROBE_KEY)
    return ok(f"we may read project {project}")


def _serves(calls: ServerCalls) -> Finding:
    calls.is_ready()
    return ok("its database and its store serve")


def _may_publish(calls: ServerCalls, project: str) -> Finding:
    if not calls.may_write(Kind.GRAPH, PROBE_KEY):
        return problem(f"we may not publish to project {project}", f"{_TOKEN}; or set NEURON_CACHE_MODE=ro")
    full = calls.no_room()
    if full:
        return problem(
            f"we may not publish to project {project} now: {full}",
            "delete or unpin entries, or have an operator raise the quota or make room",
        )
    return ok(f"we may publish to project {project}, and there is room")


def _may_lease(transport: Transport) -> Finding:
    """Take the lease of a key that nobody needs, and give it back."""
    holder = Holder(os.uname().nodename, os.getpid(), label="doctor")
    answer = transport.acquire(Kind.GRAPH, PROBE_KEY, holder, retry_failed=True)
    if isinstance(answer, Granted):
        transport.release(Kind.GRAPH, PROBE_KEY, answer)
        return ok("we may hold compile leases")
    if isinstance(answer, Wait):
        return ok("compile leases are given out (another doctor holds this one)")
    return problem("we may not hold compile leases", f"give the token scope lease; {_TOKEN}")


def _advice(error: NeffCacheError) -> str:
    if isinstance(error, Refused) and error.name == "wrong_host":
        return "use one of the server's names in NEURON_CACHE_URL, or have this one added with --allowed-host"
    return _TOKEN if isinstance(error, Denied) else _ALONE


def _lost(name: str) -> str:
    return {
        "name": "is the host in NEURON_CACHE_URL right, and does this machine's name server know it?",
        "TLS": "see NEURON_CACHE_CA_FILE; is the address https:// of the host in the certificate?",
        "store": "the server's log, or `GET /admin/v1/readiness`, says what is wrong with its store or database",
    }.get(name, "is `neff-cache serve` running, and is the address right?")
