"""Who is calling: by a stored token, by an identity token of an issuer, or by the certificate of the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_server.identity_file import read_identity_file
from cache_server.services.certificates import Certificates
from cache_server.services.identity import Identities
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from cache_server.access import Principal
    from cache_server.services.certificates import PeerCertificate
    from cache_server.services.tokens import Tokens
    from cache_server.settings import Settings
    from cache_server.workers import Workers


class Authentication:
    """Asks each source that is set up. A token that is shown decides alone: a wrong one is not made good by another."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        anonymous: Principal | None = None,
        identities: Identities | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._tokens = tokens
        self._anonymous = anonymous
        self._identities = identities
        self._certificates = certificates

    @classmethod
    def open(
        cls, settings: Settings, tokens: Tokens, workers: Workers, *, anonymous: Principal | None
    ) -> Authentication:
        """Read the identity file if there is one; raises `ConfigurationError`."""
        path = settings.identity_file
        if path is None:
            return cls(tokens, anonymous=anonymous)
        file = read_identity_file(path)
        if file.certificate is not None and settings.tls_client_mode == "off":
            raise ConfigurationError(
                f"the identity file {path} has rules for client certificates, but none is asked for: "
                "add --tls-client-mode optional or required"
            )
        return cls(
            tokens,
            anonymous=anonymous,
            identities=Identities(file, workers),
            certificates=None if file.certificate is None else Certificates(file.certificate.rules()),
        )

    async def principal(self, token: str) -> Principal | None:
        """Return whose token this is, or None; an empty one is nobody's, whatever any source holds."""
        if not token:
            return None
        identities = self._identities
        if identities is None or not identities.concerns(token):
            return await self._tokens.principal(token)
        # one that was verified a moment ago costs no look-up
        return identities.remembered(token) or await self._tokens.principal(token) or await identities.principal(token)

    def without_token(self, certificate: PeerCertificate | None) -> Principal | None:
        """Return the caller of a request without a token, on a connection with a verified ``certificate`` or none.

        A certificate that no rule speaks of leaves its owner the rights of anybody, not fewer.
        """
        certified = None
        if certificate is not None and self._certificates is not None:
            certified = self._certificates.principal(certificate)
        if certified is None or not certified.grants:
            return self._anonymous or certified
        return certified

    async def warm_up(self) -> None:
        """Fetch the issuers' keys before the first token needs them; what fails is logged."""
        if self._identities is not None:
            await self._identities.warm_up()
