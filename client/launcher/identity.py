"""The exact version of the real compiler, remembered or asked."""

from __future__ import annotations

from client.launcher.remembered import Memory

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.launcher.tier import Tier


def version_of(program: str, environ: Mapping[str, str], tier: Tier | None) -> str:
    """Return ``X.Y.Z[.W]+hash``.

    Raises `client.errors.ConfigurationError` if the compiler does not say it, OSError if it is not there.
    """
    memory = Memory(program, environ, tier)
    known = memory.recall()
    if known is not None:
        return known
    from client.launcher.asking import ask  # noqa: PLC0415 - once for each compiler

    return ask(program, environ, memory)
