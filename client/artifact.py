"""What goes into the cache and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from client.names import MAIN_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.wire import Entry

Source: TypeAlias = Literal["memory", "disk", "remote", "compile"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made: plain bytes by output name, ``model.neff`` among them.

    ``seconds`` is wall time; ``peak_memory_bytes`` the compiler's resident peak where it is known.
    """

    outputs: Mapping[str, bytes]
    seconds: float
    peak_memory_bytes: int | None = None

    @property
    def neff(self) -> bytes:
        """The bytes of ``model.neff``."""
        return self.outputs[MAIN_OUTPUT]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled program ready to load: ``neff`` are verified bytes, ``source`` the tier they came from."""

    entry: Entry
    neff: bytes
    source: Source

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.entry.key
