"""What the table says of an architecture. Imports neither torch nor jaxlib: the parent process needs it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sweep.outcome import Outcome, Task

EAGER = Task("eager", "float32", gradient=True, samples=1)
GRAPH = Task("graph", "float32", gradient=True, samples=1)
PATHS = (EAGER, GRAPH)


@dataclass(frozen=True)
class Figures(Outcome):
    """The verdict on one architecture on one path, and what was counted meanwhile.

    ``programs`` is what an empty cache would have to compile, eager operators and graphs together; ``graphs`` are those
    of Dynamo, ``breaks`` where it broke them; ``host`` the operators that ran on the CPU. ``error`` is the largest
    difference from the reference as a share of what is allowed.
    """

    programs: int = 0
    graphs: int = 0
    breaks: int = 0
    host: str = ""
    error: float = 0.0
    seconds: float = 0.0
