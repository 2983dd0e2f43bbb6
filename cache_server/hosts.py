"""Which Host names this server answers to: what keeps web pages of others from reaching it by DNS rebinding.

A page that rebinds sends the name it was loaded from, so a name is safe to answer to as long as no stranger can own it:

- this machine's own (``localhost``, the loopback addresses) mean another machine wherever else they are typed;
- ``NAME.NAMESPACE.svc`` and ``NAME.NAMESPACE.svc.cluster.local``, for a short NAME that the operator gave, are resolved
  by a cluster alone: neither ``svc`` nor ``local`` is a domain that can be bought;
- ``NAME.NAMESPACE`` could be bought (a namespace ``dev`` is a domain, too): it counts for the one namespace that this
  server runs in or that the operator named, and only where callers without a token may do nothing;
- an address in place of a name, for ``/metrics`` alone: a page that rebinds has a name. The token decides as ever.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cache_server.errors import Problem
from client.cleaning import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cache_server.settings import Settings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
BY_ADDRESS = frozenset({"/metrics"})
"""Paths that are asked for by address: Prometheus finds servers one by one, and shows a token."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SHORT = re.compile(_LABEL)
_SERVICE = re.compile(rf"({_LABEL})\.({_LABEL})\.svc(?:\.cluster\.local)?")
_IN_CLUSTER = re.compile(rf"({_LABEL})\.{_LABEL}\.svc(?:\.cluster\.local)?")
_MOST_SHOWN = 100


def own_namespace(file: Path = _NAMESPACE_FILE) -> str | None:
    """Return the Kubernetes namespace that this process runs in, None elsewhere."""
    try:
        found = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if _SHORT.fullmatch(found) else None


def with_service_names(given: Iterable[str], *, namespace: str | None, anonymous: bool) -> frozenset[str]:
    """Return the names that an operator gave, in lower case, and the other usual ones of the same Services."""
    names = {name.lower() for name in given}
    services = {(found[1], found[2]) for name in names if (found := _SERVICE.fullmatch(name))}
    if namespace is not None:
        services |= {(name, namespace) for name in names if _SHORT.fullmatch(name) and name not in LOOPBACK}
    for name, space in services:
        names |= {name, f"{name}.{space}.svc", f"{name}.{space}.svc.cluster.local"}
        if not anonymous:
            names.add(f"{name}.{space}")
    return frozenset(names)


_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535


class HostList:
    """The allow-list. Only the Host header counts; what a proxy says about the original one is never read."""

    def __init__(self, settings: Settings) -> None:
        self._names = settings.host_names()

    def check(self, host: str | None, path: str = "") -> None:
        """Raise `Problem` ``wrong_host`` unless the header, without its port, is on the list."""
        if "*" in self._names:
            return
        name = "" if host is None else host_name(host)
        if name in self._names or (path in BY_ADDRESS and _is_address(name)):
            return
        found = _IN_CLUSTER.fullmatch(name)
        if found is not None and found[1] in self._names and found[1] not in LOOPBACK:
            return
        raise Problem("wrong_host", _refused(host))


def _refused(host: str | None) -> str:
    if not host:
        return "the request names no host"
    # what a caller sent is shown to that caller alone, and moves no cursor there
    shown = clean(host[:_MOST_SHOWN], lines=False)
    return f"the request names {shown}: a name by which callers reach this server is given by --allowed-host"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """Return the name in a Host header in lower case, IPv6 in brackets; "" for what is no ``host[:port]``.

    What stands there is read as RFC 9112, section 3.2, has it, and no other way: a user before an @, a second name, a
    port that is no number are for whom they fool. A dot at the end means the same name.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return ""
    return found["name"].lower().removesuffix(".")
