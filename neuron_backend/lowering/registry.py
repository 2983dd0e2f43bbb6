"""Which function lowers which operator, and what it is told of the node it lowers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from neuron_backend.lowering.errors import Broken, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import Node

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.threefry import Stream
    from neuron_backend.lowering.validity import Condition
    from neuron_backend.module import TensorSpec

Results: TypeAlias = "Array | tuple[Array | None, ...]"
Handler: TypeAlias = "Callable[..., Results]"
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")

_HANDLERS: dict[str, Handler] = {}
_RANDOM: set[str] = set()


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows of the node it lowers, beside the arguments."""

    node: Node
    outputs: tuple[TensorSpec | None, ...]
    randomness: Stream | None = None
    refusing: Callable[[Condition], None] | None = None

    @property
    def stream(self) -> Stream:
        """The random bits of this node; only an operator registered with `draws` has any."""
        if self.randomness is None:
            raise Broken("it draws random numbers, but is not registered as one that does")
        return self.randomness

    def refuse(self, condition: Condition) -> None:
        """Let the program raise an error where ``condition`` says that a value is at fault, if it checks values."""
        if self.refusing is not None:
            self.refusing(condition)

    @property
    def out(self) -> TensorSpec:
        """The (first) result, as PyTorch's shape inference has it."""
        first = self.outputs[0]
        if first is None:
            raise Refused("the first result is not a tensor")
        return first


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


def draws(*operators: str) -> Callable[[_Handler], _Handler]:
    """Register, as `lowers` does, the lowering of ``operators`` that draw random numbers, from `Call.stream`.

    Each such node of a graph takes one step of the generator, however many numbers it draws.
    """
    _RANDOM.update(operators)
    return lowers(*operators)


def is_random(operator: object) -> bool:
    """Whether ``operator`` has a lowering that draws random numbers."""
    return str(operator) in _RANDOM


def handler(operator: object) -> Handler | None:
    """Return the lowering of ``operator``, an overload of PyTorch's, if there is one."""
    return _HANDLERS.get(str(operator))


def supported() -> frozenset[str]:
    """Names of all operators that have a lowering."""
    return frozenset(_HANDLERS)
