"""libtorch-neuronx-lite, which vLLM-Neuron uses.

::

    <root>/neuron/compile_cache/<32 hex>/      its remote root has <32 hex>/ directly
        graph.hlo
        graph_<the same 32 hex>.neff
        .artifact_metadata_v0.json
        .compilation_complete                  written last
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from client.foreign.layout import Place, State, is_lock
from client.foreign.names import LIBTORCH_LITE, PATTERNS
from client.names import MAIN_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LOCK = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9._-]*\.lock")


class LibtorchLite:
    """See `client.foreign.layout.Layout`. ``base`` is where entries lie below the root: "" or a path with its slash."""

    kept_as = LIBTORCH_LITE
    marker = ".compilation_complete"
    is_single = False
    names_compiler = False

    def __init__(self, label: str, base: str) -> None:
        self.label = label
        self._base = base

    def place(self, path: str) -> Place | None:
        """See `Layout.place`."""
        if not path.startswith(self._base):
            return None
        name, _, file = path.removeprefix(self._base).rpartition("/")
        if not PATTERNS[LIBTORCH_LITE].fullmatch(name):
            return None
        known = file == self.marker or file in self.outputs(name) or _LOCK.fullmatch(file)
        return Place(name, file) if known else None

    def folder(self, name: str) -> str:
        """See `Layout.folder`."""
        return f"{self._base}{name}"

    def outputs(self, name: str) -> Mapping[str, str]:
        """See `Layout.outputs`."""
        return {
            f"graph_{name}.neff": MAIN_OUTPUT,
            "graph.hlo": "graph.hlo",
            ".artifact_metadata_v0.json": "artifact-metadata.json",
        }

    def state(self, name: str, files: Collection[str]) -> State:
        """See `Layout.state`."""
        if any(map(is_lock, files)):
            return State.LOCKED
        return State.COMPLETE if {self.marker, f"graph_{name}.neff"} <= set(files) else State.HALF

    def compiler_version(self, name: str) -> str | None:  # noqa: ARG002 - of the protocol
        """See `Layout.compiler_version`."""
        return None


LOCAL = LibtorchLite(LIBTORCH_LITE, "neuron/compile_cache/")
REMOTE = LibtorchLite(f"{LIBTORCH_LITE}-remote", "")
