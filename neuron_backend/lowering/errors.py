"""The one way in which a lowering fails."""

from __future__ import annotations


class UnsupportedOperator(Exception):  # noqa: N818  the name is part of the package's contract
    """A graph cannot be lowered: ``operator`` names the node at fault, ``reason`` says why in one clause."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(f"operator {operator} cannot be lowered to StableHLO: {reason}")
        self.operator = operator
        self.reason = reason


class Refused(Exception):  # noqa: N818  never leaves the package
    """Raised below a handler, where the operator's name is not known; becomes `UnsupportedOperator`."""
