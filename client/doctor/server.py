"""The shared cache: whether it answers, what we may do there, and whose clock is wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from client.doctor.base import Finding, note, ok, problem
from client.errors import ConfigurationError, NeffCacheError, Refused, TransportError
from client.names import Kind
from client.server_calls import ServerCalls
from client.sizes import size_text
from client.sources import is_server
from client.transports import open_transport
from client.wire import Granted, Holder, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.doctor.base import Surroundings
    from client.transports.base import Transport

PROBE_KEY = hashlib.sha256(b"neff-cache doctor").hexdigest()
"""A key that no document has: what is asked for by it is never there, and never missed."""
MAX_SKEW = 60.0
"""Seconds: beyond that, times of tokens and entries mislead."""
SLOW = 0.5
"""Seconds for the least of all questions, from which on eager jobs notice."""
_TOKEN = "see NEURON_CACHE_TOKEN, NEURON_CACHE_TOKEN_FILE and NEURON_CACHE_PROJECT"  # noqa: S105 - their names


def check(surroundings: Surroundings) -> Iterator[Finding]:
    """Ask the shared cache for next to nothing, as a job's requests would."""
    settings = surroundings.settings
    if settings.url is None:
        yield note("NEURON_CACHE_URL is not set", "set it to share what one node compiles with all others")
        return
    if settings.mode == "off":
        yield problem("NEURON_CACHE_MODE=off: nothing is cached at all", "unset it, or set it to rw or ro")
        return
    try:
        with closing(open_transport(settings.url, settings.project, surroundings.environ)) as transport:
            if is_server(settings.url):
                calls = ServerCalls(settings.url, settings.project, surroundings.environ)
                with closing(calls):
                    yield from _server(surroundings, calls, transport)
            else:
                yield from _store(surroundings, transport)
    except ConfigurationError as error:
        yield problem(str(error), "jobs here share nothing until this is changed")
    except NeffCacheError as error:
        yield problem(f"it cannot be used: {error}", "jobs go on without it, and compile what others have")


def _server(surroundings: Surroundings, calls: ServerCalls, transport: Transport) -> Iterator[Finding]:
    try:
        ping = calls.ping()
    except TransportError as error:
        yield problem(
            f"{calls.address} does not answer: {error}", "is `neff-cache serve` running, and is the address right?"
        )
        return
    text = f"{calls.address} answers in {ping.seconds * 1000:.0f} ms"
    yield note(text, "a server this far away slows eager jobs down") if ping.seconds > SLOW else ok(text)
    if ping.server_time is not None:
        skew = ping.server_time - surroundings.now()
        text = f"its clock and ours differ by {abs(skew):.0f} s"
        yield problem(text, "set both clocks by NTP") if abs(skew) > MAX_SKEW else ok(text)
    project = surroundings.settings.project
    if not calls.may_read():
        yield problem(f"we may not read project {project}", _TOKEN)
        return
    yield ok(f"we may read project {project}")
    if surroundings.settings.mode == "ro":
        yield note("NEURON_CACHE_MODE=ro: what is compiled here is not shared")
        return
    if calls.may_write(Kind.GRAPH, PROBE_KEY):
        yield ok(f"we may publish to project {project}")
    else:
        yield problem(f"we may not publish to project {project}", f"{_TOKEN}; or set NEURON_CACHE_MODE=ro")
    yield _may_lease(transport)


def _may_lease(transport: Transport) -> Finding:
    """Take the lease of a key that nobody needs, and give it back."""
    holder = Holder(os.uname().nodename, os.getpid(), label="doctor")
    try:
        answer = transport.acquire(Kind.GRAPH, PROBE_KEY, holder, retry_failed=True)
    except Refused as error:
        return problem(f"leases are refused: {error}", "every node compiles for itself until this is changed")
    if isinstance(answer, Granted):
        transport.release(Kind.GRAPH, PROBE_KEY, answer)
        return ok("we may hold compile leases")
    if isinstance(answer, Wait):
        return ok("compile leases are given out (another doctor holds this one)")
    return problem("we may not hold compile leases", f"give the token scope lease; {_TOKEN}")


def _store(surroundings: Surroundings, transport: Transport) -> Iterator[Finding]:
    transport.entry(Kind.GRAPH, PROBE_KEY)
    address = urlsplit(transport.address)
    if address.scheme != "file":
        yield ok(f"{transport.address} answers")
        return
    folder = Path(unquote(address.path))
    if not folder.is_dir():
        yield problem(f"{folder} is no folder on this machine", "mount it here, or create it")
        return
    if os.access(folder, os.W_OK | os.X_OK):
        yield ok(f"{folder} can be read and written, {size_text(shutil.disk_usage(folder).free)} free")
    elif os.access(folder, os.R_OK | os.X_OK):
        yield note(f"{folder} can only be read", "what is compiled here is not shared; set NEURON_CACHE_MODE=ro")
    else:
        yield problem(f"{folder} cannot be read", "change its permissions, or run as another user")
    if surroundings.settings.project != "default" and not (folder / surroundings.settings.project).exists():
        yield note(f"project {surroundings.settings.project} has no entries there yet")
