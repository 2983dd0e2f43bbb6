"""Where a server's redirects may lead: its own host, S3, and the hosts that a setting names.

What stands in a ``Location`` is another party's word, and whoever can write one would have a job ask whatever the job's
machine can reach: its own ports, its neighbours', the cloud's metadata service. So the hosts are a list, what their
names resolve to is looked at too, and anything else is not followed (docs/decisions/0026).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from client.errors import ConfigurationError, Unreachable
from client.token import is_loopback
from client.transports.endpoint import parse_origin, route_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.transports.endpoint import Origin, Route

SETTING = "NEURON_CACHE_REDIRECT_HOSTS"
STAY = {"If-None-Match": '"sent-by-the-server-itself"'}
"""The condition with which a cache server, of whatever version, sends an output itself: no store would know the tag."""

_HOST = re.compile(r"\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_LONGEST_HOST = 253
_S3 = re.compile(r"(?:[a-z0-9._-]+\.)?s3[a-z0-9-]*(?:\.[a-z0-9-]+)*\.amazonaws\.(?:com|com\.cn|eu)")
_METADATA = frozenset({"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"})
"""Services of clouds that answer whoever asks from the machine itself; the others are link-local."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Redirects:
    """The rule for one server; raises `ConfigurationError` for a setting that names no hosts."""

    def __init__(self, server: Origin, environ: Mapping[str, str]) -> None:
        self._server = server
        self._environ = environ
        words = [word.strip() for word in environ.get(SETTING, "").split(",")]
        self._hosts = [word.lower() for word in words if word and "://" not in word]
        try:
            self._origins = [parse_origin(word)[0] for word in words if "://" in word]
            for host in self._hosts:
                if not _HOST.fullmatch(host):
                    raise ValueError(f"{host!r} is no host")  # noqa: TRY301 - joins the other reasons below
        except ValueError as error:
            raise ConfigurationError(
                f"{SETTING} cannot be followed: {error}; expected hosts, such as s3.example.com, .example.com or "
                "http://minio:9000, with commas between them"
            ) from None

    def route(self, target: Origin) -> Route | None:
        """Return how to reach a redirect's target; None if nothing here names it."""
        named = target in self._origins or (target.is_tls and self._is_named(target.host))
        if not named and not self._is_server(target.host):
            return None
        try:
            route = route_to(target, self._environ, own=False)
        except ConfigurationError as error:
            raise Unreachable(f"{self._server} redirects to {target}: {error}") from error
        # a name is somebody's word, too: it must not stand for what only this machine reaches
        return replace(route, admits=is_elsewhere) if named and not _is_address(target.host) else route

    def _is_server(self, host: str) -> bool:
        return host == self._server.host or (is_loopback(host) and is_loopback(self._server.host))

    def _is_named(self, host: str) -> bool:
        if any(host == word or (word.startswith(".") and host.endswith(word)) for word in self._hosts):
            return True
        return len(host) <= _LONGEST_HOST and _S3.fullmatch(host) is not None


def is_elsewhere(text: str) -> bool:
    """Return whether an address is another machine's: no loopback or link-local one, and no cloud's metadata."""
    address = _embedded(ipaddress.ip_address(text.partition("%")[0]))
    here = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    return not here and str(address) not in _METADATA


def _embedded(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (not int(address) >> 32 and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
