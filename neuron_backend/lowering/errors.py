"""The one way in which a lowering fails."""

from __future__ import annotations


class UnsupportedOperator(Exception):  # noqa: N818  the name is part of the package's contract
    """A graph cannot be lowered: ``operator`` names the node at fault, ``reason`` says why in one clause.

    ``line`` is the line of the user's that it stands for (``model.py:12: torch.linalg.inv(x)``), ``graph`` what the
    graph is called; both are empty where they are not known. An ``invalid`` call is one that torch refuses:
    the CPU says so in its own words.
    """

    def __init__(self, operator: str, reason: str, *, line: str = "", graph: str = "", invalid: bool = False) -> None:
        of = f" of the {graph}" if graph else ""
        at = f" (at {line})" if line else ""
        super().__init__(f"operator {operator}{of} cannot be lowered to StableHLO: {reason}{at}")
        self.operator = operator
        self.reason = reason
        self.line = line
        self.graph = graph
        self.invalid = invalid

    def in_graph(self, graph: str) -> UnsupportedOperator:
        """Return the same failure with the graph named, for who did not lower it but knows what it is."""
        return type(self)(self.operator, self.reason, line=self.line, graph=graph, invalid=self.invalid)


class Refused(Exception):  # noqa: N818  never leaves the package
    """Raised below a handler, where the operator's name is not known; becomes `UnsupportedOperator`."""


class Invalid(Refused):
    """Raised below a handler for a call that torch refuses, whatever the values."""
