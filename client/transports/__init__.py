"""Shared caches: which transport an address names.

Transports are imported when they are first opened: a job with a node-local cache needs none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from client.errors import ConfigurationError
from client.shown import shown_address
from client.transports.direct_lease import TTL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.transports.base import Transport

__all__ = ["open_transport"]

_EXPECTED = (
    "expected http(s)://host[:port][/base], s3://bucket/prefix, file:///folder, or a path that begins with /, ./ or ~"
)
_HOST = re.compile(r"\[?[A-Za-z0-9][A-Za-z0-9.:-]*\]?(/.*)?")


def open_transport(
    url: str, project: str, environ: Mapping[str, str], *, lease_seconds: float = TTL_SECONDS
) -> Transport:
    """Return the shared cache at ``url`` (the value of ``NEURON_CACHE_URL``) and its project, without connecting.

    ``lease_seconds`` is the time to live of direct leases; a server decides about its own. Raises `ConfigurationError`
    for an address that cannot be followed, `client.errors.WireError` for a malformed project.
    """
    scheme, separator, _ = url.partition("://")
    if scheme.lower() in {"http", "https"} and separator:
        from client.transports.http import HttpTransport  # noqa: PLC0415 - see above

        return HttpTransport(url, project, environ)
    if scheme.lower() == "s3" and separator:
        from client.transports.s3 import S3Transport  # noqa: PLC0415 - see above

        return S3Transport(url, project, lease_seconds=lease_seconds)
    from client.transports.directory import DirectoryTransport  # noqa: PLC0415 - see above

    return DirectoryTransport(_folder(url), project, lease_seconds=lease_seconds)


def _folder(url: str) -> Path:
    if url.startswith(("/", "./", "~")):
        try:
            return Path(url).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigurationError(f"the cache's address {url!r} names a home directory that is not known") from error
    scheme, separator, _ = url.partition("://")
    if not separator:
        shown = shown_address(url)
        guess = f"http://{shown}" if _HOST.fullmatch(shown) else f"./{shown}"
        raise ConfigurationError(f"the cache's address {shown!r} is not clear: did you mean {guess}? {_EXPECTED}")
    if scheme.lower() != "file":
        raise ConfigurationError(f"the cache's address begins with {scheme}://, which is not known here: {_EXPECTED}")
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in {"", "localhost"} or not path.is_absolute():
        raise ConfigurationError(
            f"the cache's address {shown_address(url)} names no folder of this machine: did you mean file:///…?"
        )
    return path
