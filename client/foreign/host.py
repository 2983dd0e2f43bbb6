"""Compiler version and target of this host: what a foreign entry is stored under, and what is asked for.

Layouts whose paths name no compiler take it from here. A file that is older than the compiler's installation was built
by some other compiler, and nothing says by which.
"""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.compiler_path import find_compiler
from client.environment import TARGET, resolve_target
from client.errors import ConfigurationError
from client.key import normalise_compiler_version
from client.launcher.identity import version_of
from client.launcher.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "any"


@dataclass(frozen=True, slots=True)
class Host:
    """``since``: files from that time on (seconds since the epoch) are of this compiler; None: that is not known."""

    version: str | None
    target: str | None
    since: float | None

    def require_version(self) -> str:
        """Return the version; raises `ConfigurationError`."""
        if self.version is None:
            raise ConfigurationError(
                "which compiler's entries? There is no neuronx-cc here: "
                "name its version by --compiler-version, as `neuronx-cc --version` prints it"
            )
        return self.version

    def require_target(self) -> str:
        """Return the target; raises `ConfigurationError`."""
        if self.target is None:
            raise ConfigurationError(
                f"entries for which target? This host is no Neuron instance: name it by --target, or set {TARGET}"
            )
        return self.target

    def require_since(self) -> float:
        """Return from when on files are of this compiler; raises `ConfigurationError`."""
        if self.since is None:
            raise ConfigurationError(
                "files of this layout name no compiler, and the compiler named is not installed here: say by "
                f"--compiled-after from when on they are its own (2026-11-29T23:00:00Z, or {ANY} if all are)"
            )
        return self.since


def this_host(
    environ: Mapping[str, str],
    *,
    version: str | None = None,
    target: str | None = None,
    compiled_after: str | None = None,
) -> Host:
    """Return what is known of this host; the arguments are what a user says, and come first.

    Raises `ConfigurationError` for a word that means nothing.
    """
    program = find_compiler(environ)
    installed = None if program is None else _installed(program)
    found = None
    if version is not None:
        found = normalise_compiler_version(version)
    if program is not None and (found is None or compiled_after is None):
        try:
            own = version_of(program, environ, _tier(environ))
        except (ConfigurationError, OSError):
            own = None
        found = found or own
        if own != found:
            installed = None
    since = installed if compiled_after is None else _time(compiled_after)
    return Host(found, target or _target(environ), since)


def _installed(program: str) -> float | None:
    """Return when the compiler came here: what a package was built at does not count, so the later of both times."""
    try:
        status = os.stat(program)  # noqa: PTH116 - both times of what the links lead to
    except OSError:
        return None
    return max(status.st_mtime, status.st_ctime)


def _tier(environ: Mapping[str, str]) -> Tier | None:
    try:
        return Tier(environ)
    except ValueError:
        return None


def _target(environ: Mapping[str, str]) -> str | None:
    try:
        return resolve_target(environ)
    except ConfigurationError:
        return None


def _time(text: str) -> float:
    if text == ANY:
        return 0.0
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--compiled-after {text!r} is no time: expected one like 2026-11-29T23:00:00Z, or {ANY}"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
