"""The ways in which a lowering fails."""

from __future__ import annotations


class NotLowered(Exception):  # noqa: N818  a state that the callers live with, not an error of theirs
    """A graph cannot be lowered: ``operator`` names the node at fault, ``reason`` says why in one clause.

    ``line`` is the line of the user's that it stands for (``model.py:12: torch.linalg.inv(x)``), ``graph`` what the
    graph is called; both are empty where they are not known. It is one of the two classes below. An ``invalid`` call is
    one that torch refuses: the CPU says so in its own words.
    """

    def __init__(self, operator: str, reason: str, *, line: str = "", graph: str = "", invalid: bool = False) -> None:
        of = f" of the {graph}" if graph else ""
        at = f" (at {line})" if line else ""
        super().__init__(self._sentence(operator, of, reason, at))
        self.operator = operator
        self.reason = reason
        self.line = line
        self.graph = graph
        self.invalid = invalid

    @staticmethod
    def _sentence(operator: str, of: str, reason: str, at: str) -> str:
        raise NotImplementedError

    def in_graph(self, graph: str) -> NotLowered:
        """Return the same failure with the graph named, for who did not lower it but knows what it is."""
        return type(self)(self.operator, self.reason, line=self.line, graph=graph, invalid=self.invalid)


class UnsupportedOperator(NotLowered):
    """There is no lowering for an operator, or none for these arguments."""

    @staticmethod
    def _sentence(operator: str, of: str, reason: str, at: str) -> str:
        return f"operator {operator}{of} cannot be lowered to StableHLO: {reason}{at}"


class LoweringBug(NotLowered):
    """A lowering there is has failed: a bug of neff-cache. ``reason`` names the exception and says what to report."""

    def __init__(self, operator: str, reason: str, *, line: str = "", graph: str = "", invalid: bool = False) -> None:
        if not reason.endswith(PLEASE_REPORT):
            reason = f"{reason}; {PLEASE_REPORT}"
        super().__init__(operator, reason, line=line, graph=graph, invalid=invalid)

    @staticmethod
    def _sentence(operator: str, of: str, reason: str, at: str) -> str:
        return f"a bug of neff-cache: the lowering of operator {operator}{of} failed{at}: {reason}"


class Refused(Exception):  # noqa: N818  never leaves the package
    """Raised below a handler, where the operator's name is not known; becomes `UnsupportedOperator`."""


class Invalid(Refused):
    """Raised below a handler for a call that torch refuses, whatever the values."""


class Broken(Exception):  # noqa: N818  never leaves the package
    """Raised where a lowering, or MLIR, finds that it has built something wrong; becomes `LoweringBug`."""


PLEASE_REPORT = (
    "please report this sentence, with the shapes and types of the operator's inputs and what `neff-cache doctor` says"
)
