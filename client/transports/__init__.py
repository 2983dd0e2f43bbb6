"""Shared caches: which transport an address names.

Transports are imported when they are first opened: a job with a node-local cache needs none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.transports.base import Transport

__all__ = ["open_transport"]

_EXPECTED = "expected http(s)://host[:port][/base], file:///folder, or a path that begins with /, ./ or ~"
_HOST = re.compile(r"\[?[A-Za-z0-9][A-Za-z0-9.:-]*\]?(/.*)?")


def open_transport(url: str, project: str, environ: Mapping[str, str]) -> Transport:
    """Return the shared cache at ``url`` (the value of ``NEURON_CACHE_URL``) and its project, without connecting.

    Raises `ConfigurationError` for an address that cannot be followed, `client.errors.WireError` for a malformed
    project.
    """
    scheme, separator, _ = url.partition("://")
    if scheme.lower() in {"http", "https"} and separator:
        from client.transports.http import HttpTransport  # noqa: PLC0415 - see above

        return HttpTransport(url, project, environ)
    from client.transports.directory import DirectoryTransport  # noqa: PLC0415 - see above

    return DirectoryTransport(_folder(url), project)


def _folder(url: str) -> Path:
    if url.startswith(("/", "./", "~")):
        try:
            return Path(url).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigurationError(f"the cache's address {url!r} names a home directory that is not known") from error
    scheme, separator, _ = url.partition("://")
    if not separator:
        shown = url.rpartition("@")[2]  # what stands before may be a password
        guess = f"http://{shown}" if _HOST.fullmatch(shown) else f"./{shown}"
        raise ConfigurationError(f"the cache's address {shown!r} is not clear: did you mean {guess}? {_EXPECTED}")
    if scheme.lower() != "file":
        raise ConfigurationError(f"the cache's address begins with {scheme}://, which does not work yet: {_EXPECTED}")
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in {"", "localhost"} or not path.is_absolute():
        raise ConfigurationError(
            f"the cache's address {url!r} names no folder of this machine: did you mean file:///…?"
        )
    return path
