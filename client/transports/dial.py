"""Opening a connection within a deadline that covers everything: look-up, TCP, the proxy's tunnel, TLS."""

from __future__ import annotations

import queue
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from client.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.transports.endpoint import Origin, Proxy, Route

Lookup: TypeAlias = "Callable[[str, int], list[tuple[Any, ...]]]"

_MAX_TUNNEL_ANSWER = 16 * 1024
_TUNNEL_OPEN = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")


def _getaddrinfo(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def resolve(host: str, port: int, seconds: float, lookup: Lookup = _getaddrinfo) -> list[tuple[Any, ...]]:
    """Return what ``lookup`` (getaddrinfo) finds, within ``seconds``; raises OSError.

    getaddrinfo knows no time-out and can hang for half a minute on a dead name server, so it runs on a thread that is
    left behind.
    """
    answer: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

    def look() -> None:
        try:
            answer.put(lookup(host, port))
        except OSError as error:
            answer.put(error)
        except UnicodeError:  # a label too long for IDNA
            answer.put(socket.gaierror(f"{host!r} is no host name"))

    try:
        threading.Thread(target=look, name="neff-cache-lookup", daemon=True).start()
    except RuntimeError:  # from Python 3.12 on there are no new threads at exit: addresses still work, names do not
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    try:
        found = answer.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"the name {host} was not resolved in time") from None
    if isinstance(found, OSError):
        raise found
    return found


def dial(
    route: Route,
    seconds: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    lookup: Lookup = _getaddrinfo,
) -> socket.socket:
    """Return a socket connected to the route's origin, within ``seconds`` in all.

    Raises OSError, or `Unreachable` for a proxy that opens no tunnel.
    """
    origin, proxy, tls = route.origin, route.proxy, route.tls
    deadline = monotonic() + seconds

    def left() -> float:
        remaining = deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError("no connection in time")
        return remaining

    target = origin if proxy is None else proxy.origin
    addresses = resolve(target.host, target.port, left(), lookup)
    if proxy is None and route.admits is not None:
        addresses = [address for address in addresses if route.admits(address[4][0])]
        if not addresses:
            raise Unreachable(f"{origin} was redirected to, and its name stands for an address of this machine alone")
    sock = _connect(addresses, left)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return sock
        if proxy is not None:
            _tunnel(sock, origin, proxy, left)
        sock.settimeout(left())
        return tls.wrap_socket(sock, server_hostname=origin.host)
    except BaseException:
        sock.close()
        raise


def _connect(addresses: list[tuple[Any, ...]], left: Callable[[], float]) -> socket.socket:
    """Connect to the first address that answers. Each has its share of the time, so that a deaf one is not the end."""
    failure: OSError = OSError("the name has no address")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left() / (len(addresses) - index))
            sock.connect(address)
        except OSError as error:
            failure = error
            sock.close()
        else:
            return sock
    raise failure


def _tunnel(sock: socket.socket, origin: Origin, proxy: Proxy, left: Callable[[], float]) -> None:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    authority = f"{host}:{origin.port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    sock.settimeout(left())
    sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
    answer = b""  # nothing follows it before we speak, so that reading on cannot swallow more than the answer
    while b"\r\n\r\n" not in answer:
        sock.settimeout(left())
        part = sock.recv(4096)
        answer += part
        if not part or len(answer) > _MAX_TUNNEL_ANSWER:
            raise Unreachable(f"the proxy {proxy.origin} broke off before it opened a tunnel to {origin}")
    status = answer.partition(b"\r\n")[0]
    if not _TUNNEL_OPEN.match(status):
        said = status[:80].decode("ascii", "replace")
        raise Unreachable(f"the proxy {proxy.origin} opened no tunnel to {origin}: {said!r}")
