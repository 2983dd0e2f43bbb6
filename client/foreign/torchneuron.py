"""TorchNeuron's directory of NEFFs, ``$TORCH_NEURONX_NEFF_CACHE_DIR`` (default ``/tmp/neff_cache``).

::

    <root>/<k[0:2]>/<k[2:4]>/<k>.neff       k: 32 hex; one raw NEFF, written by rename

Expected by what is documented, and to be verified on a real Trainium host.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from client.foreign.layout import Place, State, is_lock
from client.foreign.names import PATTERNS, TORCHNEURON
from client.names import MAIN_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FILE = re.compile(r"([0-9a-f]{32})(?:\.neff|(?:\.neff)?\.lock)")


class TorchNeuron:
    """See `client.foreign.layout.Layout`."""

    label = TORCHNEURON
    kept_as = TORCHNEURON
    marker = None
    is_single = True
    names_compiler = False

    def place(self, path: str) -> Place | None:
        """See `Layout.place`."""
        folder, _, file = path.rpartition("/")
        match = _FILE.fullmatch(file)
        if match is None or not PATTERNS[TORCHNEURON].fullmatch(match[1]) or folder != self.folder(match[1]):
            return None
        return Place(match[1], file)

    def folder(self, name: str) -> str:
        """See `Layout.folder`."""
        return f"{name[:2]}/{name[2:4]}"

    def outputs(self, name: str) -> Mapping[str, str]:
        """See `Layout.outputs`."""
        return {f"{name}.neff": MAIN_OUTPUT}

    def state(self, name: str, files: Collection[str]) -> State:
        """See `Layout.state`. The file is renamed into place whole: what is there is complete."""
        if any(map(is_lock, files)):
            return State.LOCKED
        return State.COMPLETE if f"{name}.neff" in files else State.HALF

    def compiler_version(self, name: str) -> str | None:  # noqa: ARG002 - of the protocol
        """See `Layout.compiler_version`."""
        return None
