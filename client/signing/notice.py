"""One sentence for jobs that take programs from a server and believe whatever comes from there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from client.token import is_loopback

if TYPE_CHECKING:
    from client.settings import Settings
    from client.warnings import Notices


def tell_unauthenticated(settings: Settings, notices: Notices) -> None:
    """Say so, once for a job: in its first rank, for a server on another machine, unless signatures were spoken of."""
    if settings.signatures is None and not settings.rank and is_elsewhere(settings.url):
        notices.warn(
            "not authenticated",
            "programs from the shared cache are not authenticated: whoever may write to it can run code in this job;"
            " name the keys you trust in NEURON_CACHE_TRUSTED_KEYS, or set NEURON_CACHE_SIGNATURES=off",
        )


def is_elsewhere(url: str | None) -> bool:
    """Return whether ``url`` is that of a cache server on another machine."""
    if url is None or not url.lower().startswith(("http://", "https://")):
        return False
    try:
        return not is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
