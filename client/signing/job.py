"""What a job's settings ask about signatures: who signs, who is believed, and whether it may publish at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import ConfigurationError
from client.names import Kind
from client.signing.check import SignatureCheck
from client.signing.keys import PrivateKey
from client.signing.signer import Signer
from client.signing.trust import TrustList

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.settings import Settings
    from client.warnings import Notices


@dataclass(frozen=True, slots=True)
class Signing:
    """``signer`` and ``check`` are None for what was not asked for.

    Not ``may_publish``: what this job compiles would not be signed as it should be. It would take its key, under which
    no other entry can then be published, and be refused by everybody who was set up like this job.
    """

    signer: Signer | None = None
    check: SignatureCheck | None = None
    may_publish: bool = True


def open_signing(settings: Settings, notices: Notices, *, met: Callable[[Kind], None] = lambda _: None) -> Signing:
    """Return what the settings ask for; raises `ConfigurationError` only where ``NEURON_CACHE_ON_ERROR=fail``."""
    strict = settings.on_error == "fail"
    check = open_check(settings, notices, met=met)
    required = check is not None and check.required
    if settings.signing_key is None:
        if required and settings.mode == "rw":
            notices.warn(
                "unsigned",
                "what is compiled here is neither published nor kept on this node, because it is not signed and"
                " NEURON_CACHE_SIGNATURES=require: set NEURON_CACHE_SIGNING_KEY, or NEURON_CACHE_MODE=ro",
            )
        return Signing(None, check, may_publish=not required)
    try:
        key = PrivateKey.load(settings.signing_key)
        if required:
            check_own(key, settings)
    except ConfigurationError as error:
        if strict:
            raise
        notices.warn("signing key", f"NEURON_CACHE_SIGNING_KEY cannot be used, and nothing is published: {error}")
        return Signing(None, check, may_publish=False)
    return Signing(Signer(key), check)


def open_check(
    settings: Settings, notices: Notices, *, met: Callable[[Kind], None] = lambda _: None
) -> SignatureCheck | None:
    """Return what judges entries by ``NEURON_CACHE_SIGNATURES`` and ``NEURON_CACHE_TRUSTED_KEYS``, if anything does."""
    if settings.signature_mode == "off":
        return None
    required = settings.signature_mode == "require"
    if settings.trusted_keys is None:
        notices.warn(
            "trusted keys",
            f"NEURON_CACHE_SIGNATURES={settings.signature_mode} without NEURON_CACHE_TRUSTED_KEYS: nobody is trusted,"
            f" so that {'no entry is used' if required else 'every entry is warned of'}; name a list of keys",
        )
    return SignatureCheck(
        settings.trusted_keys, notices, required=required, strict=settings.on_error == "fail", met=met
    )


def check_own(key: PrivateKey, settings: Settings) -> None:
    """Raise `ConfigurationError` if what ``key`` signs would not be believed by those who are set up like this job."""
    trusted = TrustList() if settings.trusted_keys is None else TrustList.load(settings.trusted_keys)
    found = trusted.get(key.public.key_id)
    speaks = found is not None and any(found.speaks_for(kind, settings.project) for kind in Kind)
    if found is None or found.revoked is not None or not speaks:
        raise ConfigurationError(
            f"the signing key {settings.signing_key} ({key.public.key_id}) may not sign for project"
            f" {settings.project} by NEURON_CACHE_TRUSTED_KEYS: add it with `neff-cache key trust`"
        )
