"""The shared cache: whether it answers, what we may do there, and whose clock is wrong."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from client.doctor.base import Finding, State, note, ok, problem
from client.doctor.walk import walk_to_server
from client.errors import ConfigurationError, NeffCacheError
from client.names import Kind
from client.server_calls import PROBE_KEY, ServerCalls
from client.sizes import size_text
from client.sources import is_server
from client.transports import open_transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.doctor.base import Surroundings
    from client.transports.base import Transport

MAX_SKEW = 60.0
"""Seconds: beyond that, times of tokens and entries mislead."""


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
        if is_server(settings.url):
            yield from _server(surroundings)
        else:
            with closing(open_transport(settings.url, settings.project, surroundings.environ)) as transport:
                yield from _store(surroundings, transport)
    except ConfigurationError as error:
        yield problem(str(error), "jobs here share nothing until this is changed")
    except NeffCacheError as error:
        yield problem(f"it cannot be used: {error}", "jobs go on without it, and compile what others have")


def _server(surroundings: Surroundings) -> Iterator[Finding]:
    settings = surroundings.settings
    for step in walk_to_server(settings, surroundings.environ):
        yield replace(step.finding, text=step.text)
        if step.name == "answer" and step.finding.state is not State.PROBLEM:
            yield from _clock(surroundings)
    if settings.mode == "ro":
        yield note("NEURON_CACHE_MODE=ro: what is compiled here is not shared")


def _clock(surroundings: Surroundings) -> Iterator[Finding]:
    settings = surroundings.settings
    with closing(ServerCalls(settings.url or "", settings.project, surroundings.environ)) as calls:
        server_time = calls.ping().server_time
    if server_time is not None:
        skew = server_time - surroundings.now()
        text = f"its clock and ours differ by {abs(skew):.0f} s"
        yield problem(text, "set both clocks by NTP") if abs(skew) > MAX_SKEW else ok(text)


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
