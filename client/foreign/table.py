"""The layouts by name, and which one a tree is in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from client.errors import ConfigurationError
from client.foreign import libtorch_lite
from client.foreign.npc import Npc
from client.foreign.torchneuron import TorchNeuron

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from client.foreign.layout import Layout

_ALL: tuple[Layout, ...] = (Npc(), libtorch_lite.LOCAL, libtorch_lite.REMOTE, TorchNeuron())
LAYOUTS: Mapping[str, Layout] = {layout.label: layout for layout in _ALL}


def layout_called(label: str) -> Layout:
    """Return the layout of that name; raises `ConfigurationError`."""
    try:
        return LAYOUTS[label]
    except KeyError:
        raise ConfigurationError(f"{label!r} is no layout: expected one of {', '.join(LAYOUTS)}") from None


def guess(paths: Iterable[str], where: str) -> Layout:
    """Return the layout that most of ``paths`` are in; raises `ConfigurationError` if none is in any."""
    counts = Counter(layout.label for path in paths for layout in _ALL if layout.place(path) is not None)
    if not counts:
        raise ConfigurationError(
            f"no file below {where} has a name of a cache that is known here: "
            f"name the cache's own root, or its layout by --layout ({', '.join(LAYOUTS)})"
        )
    return LAYOUTS[counts.most_common(1)[0][0]]
