"""Where an HTTP server is and how to get there: origin, base path, proxy, TLS. All of it comes from settings."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from client.errors import ConfigurationError
from client.stalls import folder_of
from client.token import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult

CA_FILE_VARIABLE = "NEURON_CACHE_CA_FILE"
CLIENT_CERT_VARIABLE = "NEURON_CACHE_CLIENT_CERT"
CLIENT_KEY_VARIABLE = "NEURON_CACHE_CLIENT_KEY"

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host (IPv6 without brackets) and port: what a token must never leave."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host, in brackets if it is IPv6, and the port if it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return ``scheme://host[:port]``."""
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A forward proxy, spoken to in plain HTTP. ``authorization`` is the value of Proxy-Authorization."""

    origin: Origin
    authorization: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """How an origin is reached: directly or through ``proxy``; with ``tls`` where the scheme asks for it.

    ``admits`` says of an address that the name was resolved to whether it may be connected to; None: all may.
    """

    origin: Origin
    proxy: Proxy | None = None
    tls: ssl.SSLContext | None = None
    admits: Callable[[str], bool] | None = None


def parse_origin(url: str) -> tuple[Origin, SplitResult]:
    """Return the origin of an ``http(s)`` URL and its parts; raises ValueError with half a sentence."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may quote a password
        raise ValueError("it is no URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("its scheme is neither http nor https")
    if not host or not host.isascii() or not host.isprintable() or " " in host:
        raise ValueError("it names no host")
    return Origin(parts.scheme, host, _PORTS[parts.scheme] if port is None else port), parts


def parse_server(url: str) -> tuple[Origin, str]:
    """Return origin and base path ("" or ``/base``) of a cache server; raises `ConfigurationError`."""
    try:
        origin, parts = parse_origin(url)
    except ValueError as error:
        raise ConfigurationError(
            f"the cache's address cannot be followed: {error}; expected http(s)://host[:port][/base]"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            f"the cache's address {origin} holds a user or password: put the token in NEURON_CACHE_TOKEN instead"
        )
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the cache's address {origin} goes on after its path: remove what follows ? or #")
    return origin, quote(unquote(parts.path.rstrip("/")))


def proxy_for(origin: Origin, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` name for ``origin``.

    Lower case comes before upper case. This machine itself is never asked for through a proxy, whose own loopback
    address is another machine. Raises `ConfigurationError` for a proxy that is not ``http://``.
    """
    if is_loopback(origin.host):
        return None
    # HTTP_PROXY in upper case can be set by a request's header inside a CGI script (CVE-2016-5385)
    cgi = "REQUEST_METHOD" in environ and origin.scheme == "http"
    names = (f"{origin.scheme}_proxy", *(() if cgi else (f"{origin.scheme}_proxy".upper(),)), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if _value(environ, name)), None)
    bypass = _value(environ, "no_proxy") or _value(environ, "NO_PROXY")
    if name is None or any(_bypasses(part.strip(), origin) for part in bypass.split(",")):
        return None
    url = _value(environ, name)
    try:
        proxy, parts = parse_origin(url if "://" in url else f"http://{url}")
        if proxy.is_tls:
            raise ValueError("its scheme is https")  # noqa: TRY301 - joins the other reasons below
    except ValueError as error:
        raise ConfigurationError(
            f"the proxy in {name} cannot be used: {error}; expected http://host:port, "
            f"or add {origin.host} to no_proxy to go without"
        ) from None
    if parts.username is None:
        return Proxy(proxy, None)
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(proxy, f"Basic {base64.b64encode(secret).decode()}")


def _bypasses(pattern: str, origin: Origin) -> bool:
    """Return whether one word of ``no_proxy`` covers the origin: ``*``, a domain and all below it, a network."""
    if pattern in {"*", origin.host, origin.authority}:
        return True
    try:
        return ipaddress.ip_address(origin.host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        pass
    name, _, port = pattern.lower().removeprefix("*").removeprefix(".").partition(":")
    return bool(name) and f".{origin.host}".endswith(f".{name}") and port in {"", str(origin.port)}


def tls_context(environ: Mapping[str, str], *, own: bool) -> ssl.SSLContext:
    """Return the TLS settings: the system's certificates (or ``SSL_CERT_FILE``), and those of `CA_FILE_VARIABLE`.

    The client certificate of `CLIENT_CERT_VARIABLE`, with its key in the same PEM file or in that of
    `CLIENT_KEY_VARIABLE`, is only for the cache's ``own`` origin. Raises `ConfigurationError` for a file that cannot be
    used.
    """
    context = ssl.create_default_context()
    if "SSL_CERT_FILE" in os.environ and not _value(os.environ, "SSL_CERT_FILE"):
        # OpenSSL takes an empty variable for the name of a file, and would trust nobody
        with suppress(OSError):
            context.load_verify_locations(cafile=ssl.get_default_verify_paths().openssl_cafile)
    authorities = _value(environ, CA_FILE_VARIABLE)
    if authorities:
        try:
            folder_of(authorities).call(lambda: context.load_verify_locations(cafile=authorities))
        except OSError as error:
            raise ConfigurationError(f"{CA_FILE_VARIABLE}={authorities} cannot be used: {error}") from error
    certificate, key = _value(environ, CLIENT_CERT_VARIABLE), _value(environ, CLIENT_KEY_VARIABLE)
    if own and key and not certificate:
        raise ConfigurationError(
            f"{CLIENT_KEY_VARIABLE} is set without the certificate: set {CLIENT_CERT_VARIABLE}, too"
        )
    if certificate and own:
        try:
            # The password: OpenSSL would otherwise stop the job and ask for one at the terminal.
            folder_of(certificate).call(lambda: context.load_cert_chain(certificate, key or None, password=lambda: b""))
        except (OSError, ValueError) as error:
            named = f"{CLIENT_CERT_VARIABLE}={certificate}" + (f", {CLIENT_KEY_VARIABLE}={key}" if key else "")
            raise ConfigurationError(
                f"{named} cannot be used ({error}): expected the certificate and its key in PEM, not encrypted, in one "
                "file or in two"
            ) from error
    return context


def route_to(origin: Origin, environ: Mapping[str, str], *, own: bool) -> Route:
    """Return how to reach ``origin``, our ``own`` server or one that it redirects to; raises `ConfigurationError`."""
    return Route(origin, proxy_for(origin, environ), tls_context(environ, own=own) if origin.is_tls else None)


class OwnRoute:
    """The route to our own server. Certificates that are renewed while a job runs count from the next connection on."""

    def __init__(self, origin: Origin, environ: Mapping[str, str]) -> None:
        self._origin = origin
        self._environ = environ
        self._stamp = self._look()
        self._route = route_to(origin, environ, own=True)

    def current(self) -> Route:
        """Return the route; files that cannot be used, such as half of a new pair, leave the one before in force."""
        stamp = self._look()
        if stamp != self._stamp:
            with suppress(ConfigurationError):
                self._route = route_to(self._origin, self._environ, own=True)
                self._stamp = stamp
        return self._route

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        if not self._origin.is_tls:
            return ()
        names = (CA_FILE_VARIABLE, CLIENT_CERT_VARIABLE, CLIENT_KEY_VARIABLE)
        return tuple(_file_stamp(path) for name in names if (path := _value(self._environ, name)))


def _value(environ: Mapping[str, str], name: str) -> str:
    """Return a variable's text; one that is empty counts as not set."""
    return environ.get(name, "").strip()


def _file_stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = folder_of(path).reach(lambda: os.stat(path))  # noqa: PTH116 - no Path is needed for it
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
