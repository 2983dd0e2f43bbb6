"""What memory a compile will take, judged by those that the same compiler has finished on this node.

::

    <root>/v1/.slots/peaks.json     {"schema": 1, "compilers": {"<name> <version>": [[module bytes, peak bytes], …]}}

Two processes that learn at once may lose what one of them learned: the next compile tells it again.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from client.admission.queue import SLOTS
from client.node.permissions import UntrustedError

if TYPE_CHECKING:
    from client.key import CompilerIdentity
    from client.node.tree import Tree

PEAKS = "peaks.json"
SCHEMA = 1
FIRST = 1 << 30
"""Bytes expected of a compiler of which nothing is known yet, beside `PER_BYTE` for each byte of the module."""
PER_BYTE = 1000
MARGIN = 1.1
LEARNED = 64
"""Compiles of one compiler that are remembered: the last ones."""
COMPILERS = 8
"""Compilers that are remembered: those that ran last."""
_MAX_FILE = 1 << 20

Peaks = list[tuple[int, int]]


def expected(peaks: Peaks, module_bytes: int) -> int:
    """Return the bytes that a compile is expected to take, by the ``(module bytes, peak bytes)`` of others.

    The largest peak among modules of about that size (half to double); else what is expected of a module of the nearest
    size that is known, and more in proportion if ours is larger.
    """
    if not peaks:
        return FIRST + PER_BYTE * module_bytes
    alike = [peak for size, peak in peaks if module_bytes <= 2 * size and size <= 2 * module_bytes]
    if alike:
        return int(max(alike) * MARGIN)
    nearest = min((size for size, _ in peaks), key=lambda size: abs(math.log((size + 1) / (module_bytes + 1))))
    return int(expected(peaks, nearest) * max(1.0, (module_bytes + 1) / (nearest + 1)))


class Estimator:
    """The peaks that a node tier remembers. No method raises: without a file there is the first guess."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def estimate(self, compiler: CompilerIdentity, module_bytes: int) -> int:
        """Return the bytes that ``compiler`` is expected to take for a module of that size (0: not known)."""
        return expected(self._read().get(_name(compiler), []), module_bytes)

    def learn(self, compiler: CompilerIdentity, module_bytes: int, peak: int) -> None:
        """Remember a compile that has ended well."""
        known, name = self._read(), _name(compiler)
        mine = [*known.pop(name, []), (module_bytes, peak)][-LEARNED:]
        kept = dict([*known.items(), (name, mine)][-COMPILERS:])
        content = json.dumps({"schema": SCHEMA, "compilers": kept}, separators=(",", ":")).encode()
        try:
            with self._tree.directory(SLOTS, make=True) as (directory, trust):
                self._tree.replace_file(PEAKS, directory, trust, content)
        except (OSError, UntrustedError):
            return  # the next compile may have more luck

    def _read(self) -> dict[str, Peaks]:
        files = self._tree.files
        try:
            with self._tree.directory(SLOTS) as (directory, trust):
                descriptor = files.open_file(PEAKS, directory)
                try:
                    trust.check(files.status(descriptor), PEAKS)
                    raw = json.loads(files.read(descriptor, _MAX_FILE))
                finally:
                    files.close(descriptor)
            if raw["schema"] != SCHEMA:
                return {}
            return {str(name): [_pair(pair) for pair in peaks] for name, peaks in raw["compilers"].items()}
        except (OSError, UntrustedError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}


def _pair(value: Any) -> tuple[int, int]:
    size, peak = (int(number) for number in value)
    if size < 0 or peak < 0:
        raise ValueError("sizes are not negative")
    return size, peak


def _name(compiler: CompilerIdentity) -> str:
    return f"{compiler.name} {compiler.version}"
