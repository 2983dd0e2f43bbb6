"""Callers known by the certificate of their connection."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cache_server.access import Principal
from cache_server.identity_file import CERTIFICATE_NAME
from cache_server.services.claims import grants, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cache_server.services.claims import Rule

_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}
_ALTERNATIVES = {"DNS": "dns", "URI": "uri", "email": "email", "IP Address": "ip"}


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A client certificate whose chain TLS has verified. ``expires`` is in seconds since the epoch.

    ``claims``: ``subject`` and ``issuer`` as ``{"CN": [...], "O": [...], "OU": [...], ...}``, the alternative names as
    ``dns``, ``uri``, ``email`` and ``ip`` (lists each), ``serial`` in hexadecimal.
    """

    name: str
    claims: Mapping[str, Any]
    expires: float

    @classmethod
    def from_peer(cls, found: Mapping[str, Any]) -> PeerCertificate:
        """Read what `ssl.SSLSocket.getpeercert` returns."""
        claims: dict[str, Any] = {
            "subject": _name(found.get("subject", ())),
            "issuer": _name(found.get("issuer", ())),
            "serial": found.get("serialNumber", ""),
        }
        for kind, value in found.get("subjectAltName", ()):
            if kind in _ALTERNATIVES:
                claims.setdefault(_ALTERNATIVES[kind], []).append(value)
        # a URI is the most telling (SPIFFE), a common name the most usual
        first = next(
            (names[0] for names in (claims.get("uri"), claims["subject"].get("CN"), claims.get("dns")) if names), ""
        )
        name = shown(f"{CERTIFICATE_NAME}:{first or claims['serial']}")
        return cls(name, claims, ssl.cert_time_to_seconds(found["notAfter"]))


def _name(parts: Sequence[Sequence[tuple[str, str]]]) -> dict[str, list[str]]:
    """Return a distinguished name by the short names of its attributes."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for attribute, value in part:
            found.setdefault(_NAMES.get(attribute, attribute), []).append(value)
    return found


class Certificates:
    """The rules of client certificates."""

    def __init__(self, rules: Sequence[Rule], *, now: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._now = now

    def principal(self, certificate: PeerCertificate) -> Principal | None:
        """Return whose certificate this is; None if it has run out since the connection was made."""
        if certificate.expires <= self._now():
            return None
        return Principal(certificate.name, grants(self._rules, certificate.claims))
