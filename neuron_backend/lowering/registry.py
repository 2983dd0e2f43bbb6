"""Which function lowers which operator, and the one way in which a lowering fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array

Results: TypeAlias = "Array | tuple[Array | None, ...]"
Handler: TypeAlias = "Callable[..., Results]"
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")

_HANDLERS: dict[str, Handler] = {}


class UnsupportedOperator(Exception):  # noqa: N818  the name is part of the package's contract
    """A graph cannot be lowered: ``operator`` names the node at fault, ``reason`` says why in one clause."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(f"operator {operator} cannot be lowered to StableHLO: {reason}")
        self.operator = operator
        self.reason = reason


class Refused(Exception):  # noqa: N818  never leaves the package
    """Raised below a handler, where the operator's name is not known; becomes `UnsupportedOperator`."""


def lowers(*operators: str) -> Callable[[_Handler], _Handler]:
    """Register the decorated function as the lowering of ``operators``, named as PyTorch prints them.

    It is called as ``function(call, *args, **kwargs)`` with the node's own arguments, each tensor replaced by an
    `Array`, and returns one `Array` or, for an operator with several results, a tuple (None for a result that the
    operator leaves out). A name that this PyTorch does not have is never asked for.
    """

    def register(function: _Handler) -> _Handler:
        for operator in operators:
            if operator in _HANDLERS:
                raise RuntimeError(f"{operator} has two lowerings")
            _HANDLERS[operator] = function
        return function

    return register


def handler(operator: object) -> Handler | None:
    """Return the lowering of ``operator``, an overload of PyTorch's, if there is one."""
    return _HANDLERS.get(str(operator))


def supported() -> frozenset[str]:
    """Names of all operators that have a lowering."""
    return frozenset(_HANDLERS)
