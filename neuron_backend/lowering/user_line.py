"""Which line of the user's code a node of a graph stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

# One frame of a traceback as Python prints it, which is how torch keeps it in a node's metadata.
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<number>\d+), in [^\n]+\n\s+(?P<code>[^\n]+)')


def user_line(node: Node) -> str:
    """Return ``file:line: code`` of the innermost frame that torch noted for ``node``; empty if it noted none.

    Nodes of a backward graph stand for the line of the forward computation. Never part of a module: keys do not depend
    on where code stands.
    """
    frames = list(_FRAME.finditer(str(node.meta.get("stack_trace") or "")))
    return "" if not frames else "{file}:{number}: {code}".format(**frames[-1].groupdict())
