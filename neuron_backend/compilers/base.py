"""The seam between the backends and a compiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.artifact import Compiled
    from client.key import CompilerIdentity
    from client.names import Kind

MODULE_OUTPUT: Final = "module.mlirbc"
"""The output that holds the compiled module itself, byte for byte."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that a compile depends on beside the module; goes into the key as it stands."""

    identity: CompilerIdentity
    target: str
    logical_cores: int
    flags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Compiler(Protocol):
    """Turns a module into a NEFF, outside this process. Safe to use from several threads."""

    has_float64: bool
    """Whether its target computes in float64 and complex128: modules for one that does not must hold neither."""

    def configuration(self, kind: Kind) -> Configuration:
        """Return what modules of ``kind`` are compiled with.

        Raises `client.errors.ConfigurationError` if the compiler is not there or its settings mean nothing.
        """

    def compile(self, code: bytes, configuration: Configuration) -> Compiled:
        """Compile a VHLO portable artifact.

        The outputs are ``model.neff`` (validated), ``compile.log`` and `MODULE_OUTPUT`.

        Raises `client.errors.CompileError`. Leaves no process and no file behind, also when interrupted.
        """

    def close(self) -> None:
        """End worker processes, if there are any; the compiler may be used again afterwards."""
