"""Where an issuer's keys come from: its own address (OpenID Connect Discovery 1.0), a given one, or a file."""

from __future__ import annotations

import json
import os
import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cache_server.identity_file import check_key_url
from cache_server.services.jwks import parse_keys
from client.errors import TransportError
from client.transports.connection import Connection, Request, Wire
from client.transports.endpoint import Route, parse_origin, proxy_for
from client.transports.limits import Limits

if TYPE_CHECKING:
    from cache_server.identity_file import Issuer
    from cache_server.services.jwks import Key

DISCOVERY = "/.well-known/openid-configuration"
MAX_DOCUMENT = 512 * 1024
_LIMITS = Limits(connect=5.0, answer=5.0)
_OK = 200
_MAX_BEARER = 64 * 1024


def fetch_keys(issuer: Issuer) -> tuple[Key, ...]:
    """Return the issuer's keys. Blocks, for 20 s at most; raises OSError, ValueError or `TransportError`."""
    if issuer.jwks_file is not None:
        with Path(issuer.jwks_file).open("rb") as file:
            return parse_keys(file.read(MAX_DOCUMENT), issuer.name)
    url = issuer.jwks_url or _discovered(issuer)
    return parse_keys(_get(url, issuer), issuer.name)


def _discovered(issuer: Issuer) -> str:
    """Return where the issuer says its keys are."""
    value = json.loads(_get(issuer.issuer.rstrip("/") + DISCOVERY, issuer))
    url = value.get("jwks_uri") if isinstance(value, dict) else None
    if not isinstance(url, str) or value.get("issuer") != issuer.issuer:
        raise ValueError(f"{issuer.issuer}{DISCOVERY} is no discovery document of this very issuer")
    if issuer.issuer.startswith("https:") and not url.startswith("https:"):
        raise ValueError(f"{issuer.issuer} names keys that are not fetched with https")
    return check_key_url(url)


def _get(url: str, issuer: Issuer) -> bytes:
    """GET a small document. No redirect is followed: keys come from where the operator or the issuer says, or not."""
    origin, parts = parse_origin(url)
    tls = ssl.create_default_context(cafile=issuer.ca_file) if origin.is_tls else None
    route = Route(origin, proxy_for(origin, os.environ), tls)
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "neff-cache"}
    trusted = {parse_origin(known)[0] for known in (issuer.issuer, issuer.jwks_url) if known is not None}
    if issuer.bearer_file is not None and origin in trusted:
        with Path(issuer.bearer_file).open("rb") as file:
            headers["Authorization"] = f"Bearer {file.read(_MAX_BEARER).decode('ascii').strip()}"
    wire = Wire(lambda _origin: Connection(route, _LIMITS, time.monotonic), time.monotonic)
    try:
        with closing(wire), wire.exchange(origin, Request("GET", parts.path or "/", headers, _LIMITS.answer)) as answer:
            if answer.status != _OK:
                raise ValueError(f"GET {url} was answered {answer.status}")
            return answer.read_small(MAX_DOCUMENT)
    except TransportError as error:
        cause = error.__cause__
        if not isinstance(cause, ssl.SSLCertVerificationError):
            raise
        raise ValueError(
            f"GET {url} failed: its certificate is not accepted ({cause.verify_message}); see ca_file"
        ) from error
