"""Neuron Persistent Cache (libneuronxla: torch-xla, NxD, the JAX plug-in), in a directory or a bucket.

::

    <root>/neuronxcc-<version>/MODULE_<graph hash>+<flags hash>/
        model.hlo_module.pb       older: model.hlo.pb; also .gz
        compile_flags.json        older: compile_flags.txt
        model.neff
        model.done                empty, written last
        model.log                 only where the compile failed
        *.lock                    while somebody compiles

As seen in public logs and entries; see ``docs/foreign.md``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from client.foreign.layout import Place, State, is_lock
from client.foreign.names import NPC, PATTERNS
from client.names import MAIN_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FLAGS = ("compile_flags.json", "compile_flags.txt")
_LOG = "model.log"
_STORED = (
    MAIN_OUTPUT,
    *(f"{module}{packed}" for module in ("model.hlo_module.pb", "model.hlo.pb") for packed in ("", ".gz")),
    *FLAGS,
)
_LOCK = re.compile(r"[A-Za-z0-9._-]+\.lock")
_FOLDER = "neuronxcc-"
# The flags are JSON words or plain text: --target=trn1, "--target", "trn1". The right-most wins, as in the compiler.
_TARGET = re.compile(r"""--target(?:=|"\s*,\s*"|\s+)([a-z0-9][a-z0-9._-]*)""")


class Npc:
    """See `client.foreign.layout.Layout`."""

    label = NPC
    kept_as = NPC
    marker = "model.done"
    is_single = False
    names_compiler = True

    def place(self, path: str) -> Place | None:
        """See `Layout.place`."""
        name, _, file = path.rpartition("/")
        known = file in _STORED or file in {self.marker, _LOG} or _LOCK.fullmatch(file)
        return Place(name, file) if known and PATTERNS[NPC].fullmatch(name) else None

    def folder(self, name: str) -> str:
        """See `Layout.folder`."""
        return name

    def outputs(self, name: str) -> Mapping[str, str]:  # noqa: ARG002 - of the protocol; here all entries have the same
        """See `Layout.outputs`."""
        return {file: file for file in _STORED}

    def state(self, name: str, files: Collection[str]) -> State:  # noqa: ARG002 - of the protocol
        """See `Layout.state`."""
        if any(map(is_lock, files)):
            return State.LOCKED
        if _LOG in files:
            return State.FAILED
        return State.COMPLETE if {self.marker, MAIN_OUTPUT} <= set(files) else State.HALF

    def compiler_version(self, name: str) -> str | None:
        """See `Layout.compiler_version`."""
        return name.partition("/")[0].removeprefix(_FOLDER)


def target_in(flags: bytes) -> str | None:
    """Return the target that a file of compiler flags names, or None."""
    found = _TARGET.findall(flags.decode("utf-8", "replace"))
    return found[-1] if found else None
