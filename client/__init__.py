"""neff-cache's client: what runs on every node of a cluster, inside other people's jobs.

Imports neither torch nor a web framework, and starts quickly: names are resolved when they are first used.
"""

from __future__ import annotations

from client._version import __version__

TYPE_CHECKING = False  # importing typing would be a fifth of what a hit of the launcher may cost
if TYPE_CHECKING:
    from client.artifact import Artifact, Compiled
    from client.cache import Cache
    from client.errors import CacheMissError, CompileError, ConfigurationError, NeffCacheError, TransportError
    from client.key import CompilerIdentity, Ir, KeyDocument
    from client.names import Kind

_HOMES = {
    "Artifact": "client.artifact",
    "Cache": "client.cache",
    "CacheMissError": "client.errors",
    "CompileError": "client.errors",
    "Compiled": "client.artifact",
    "CompilerIdentity": "client.key",
    "ConfigurationError": "client.errors",
    "Ir": "client.key",
    "KeyDocument": "client.key",
    "Kind": "client.names",
    "NeffCacheError": "client.errors",
    "TransportError": "client.errors",
}

__all__ = [
    "Artifact",
    "Cache",
    "CacheMissError",
    "CompileError",
    "Compiled",
    "CompilerIdentity",
    "ConfigurationError",
    "Ir",
    "KeyDocument",
    "Kind",
    "NeffCacheError",
    "TransportError",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'client' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
