"""TLS of the server: from files that are renewed while it runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from cache_server.settings import ClientMode, Settings

_MODES: dict[ClientMode, ssl.VerifyMode] = {
    "off": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a server's certificate and of the authorities of its clients' certificates."""

    certificate: Path
    key: Path | None
    client_ca: Path | None
    client_mode: ClientMode

    @classmethod
    def from_settings(cls, settings: Settings) -> TlsFiles | None:
        """Return the files, None without TLS; raises `ConfigurationError` for settings that contradict each other."""
        if settings.tls_cert is None:
            given = {
                "--tls-key": settings.tls_key,
                "--tls-client-ca": settings.tls_client_ca,
                "--tls-client-mode": settings.tls_client_mode != "off",
            }
            name = next((name for name, value in given.items() if value), None)
            if name is not None:
                raise ConfigurationError(f"{name} is given, but no certificate of the server: add --tls-cert FILE")
            return None
        if (settings.tls_client_mode != "off") != (settings.tls_client_ca is not None):
            raise ConfigurationError(
                "--tls-client-ca and --tls-client-mode optional or required go together: give both, or neither"
            )
        return cls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_client_mode)

    def context(self) -> ssl.SSLContext:
        """Read the files; raises `ConfigurationError` in one sentence."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        try:
            # the password: OpenSSL would otherwise stop and ask for one at the terminal
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigurationError(self._refused(error)) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"--tls-client-ca {self.client_ca} cannot be used ({_said(error)}): expected certificates in PEM"
                ) from error
        context.verify_mode = _MODES[self.client_mode]
        return context

    def _refused(self, error: Exception) -> str:
        key = self.key or self.certificate
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            return (
                f"{key} holds another key than that of the certificate in {self.certificate}: give the two of one pair"
            )
        return (
            f"--tls-cert {self.certificate} and --tls-key {key} cannot be used ({_said(error)}): expected a "
            "certificate with its chain and its key, in PEM, the key not encrypted"
        )

    def stamp(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return what changes when a file does; a mounted secret is a link into a folder that is replaced whole."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
