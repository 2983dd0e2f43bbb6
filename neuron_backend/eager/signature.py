"""The key of the in-process table: everything a program depends on, as one hashable value, found quickly.

Tensors are described by the device library, in one call for all of them. Every other argument stands in the key by
type and value, floats by their bits: 0.0 is not -0.0, True is not 1, and NaN equals itself.
"""

from __future__ import annotations

import struct
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neuron_backend.eager import scalars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neuron_backend.eager.operators import Argument, Operator

_bits = struct.Struct("<d").pack
_describe = torch.ops.neuron_device.describe.default
_Tensor = torch.Tensor
_CPU = torch.device("cpu")


class Call(NamedTuple):
    """One call of an operator, taken apart.

    ``key`` is what its program depends on. ``tensors`` are the tensor arguments in order, those in lists included, and
    ``written`` the positions of those that the operator writes. ``numbers`` are those that are no part of the key, but
    inputs of the program if that can be; those that stand ``alone`` come in no list. Where torch had turned a Python
    scalar into a tensor, the arguments hold the scalar.
    """

    operator: Operator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    written: list[int]
    numbers: list[float]
    alone: list[float]


def read(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Take a call apart. Raises RuntimeError for tensors that are not strided."""
    walk = _Walk()
    for argument, value in zip(operator.arguments, args, strict=False):
        walk.argument(argument, value)
    for argument in operator.arguments[len(args) :] if kwargs else ():
        if argument.name in kwargs:
            walk.parts.append(argument.name)
            walk.argument(argument, kwargs[argument.name])
    parts = (*walk.parts, *(one < other or (one == other) * 2 for one, other in combinations(walk.alone, 2)))
    key = (operator.overload, _describe(walk.tensors, walk.written), *parts)
    return Call(operator, args, kwargs, key, walk.tensors, walk.written, walk.numbers, walk.alone)


def overlapping(call: Call) -> bool:
    """Whether a tensor that is written shares memory with another in a way that only torch's own kernels judge."""
    return bool(call.key[1].endswith("!"))


def argument(call: Call, position: int) -> Any:
    """Return the argument at ``position`` of the operator's schema, as the caller gave it."""
    if position < len(call.args):
        return call.args[position]
    return call.kwargs[call.operator.arguments[position].name]


def device_of(call: Call) -> int:
    """Return the index of the device that the call's results belong to."""
    for tensor in call.tensors:
        if tensor.device.type == "neuron":
            return tensor.device.index
    for value in (*call.kwargs.values(), *call.args):
        if isinstance(value, torch.device) and value.index is not None:
            return value.index
    return int(torch.ops.neuron_device.current_device())


def rebuild(
    call: Call, tensors: Iterable[Any], numbers: Iterable[float] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the call's arguments on the CPU, with ``tensors`` for its tensors and ``numbers`` for its `Call.numbers`.

    Without ``numbers`` the numbers stay what they are.
    """
    operator = call.operator
    stand_ins = iter(tensors)
    others = None if numbers is None else iter(numbers)

    def inner(argument: Argument, value: Any) -> Any:
        if isinstance(value, _Tensor):
            return next(stand_ins)
        if isinstance(value, (list, tuple)):
            return [inner(argument, each) for each in value]
        if others is not None and scalars.class_in_key(argument, value) is not None:
            return next(others)
        return _CPU if isinstance(value, torch.device) else value

    def outer(argument: Argument, value: Any) -> Any:
        given = inner(argument, value)
        if argument.tensor and isinstance(given, (int, float, complex)) and operator.name not in _TAKE_NUMBERS:
            dtype = _promoted(call, given)
            if scalars.overflows(given, dtype):  # a kernel converts it all the same, where this function raises
                return torch.tensor(given, device=_CPU).to(dtype)
            return torch.full((), given, dtype=dtype, device=_CPU)
        return given

    args = [outer(argument, value) for argument, value in zip(operator.arguments, call.args, strict=False)]
    rest = [argument for argument in operator.arguments[len(args) :] if argument.name in call.kwargs]  # as in `read`
    return args, {argument.name: outer(argument, call.kwargs[argument.name]) for argument in rest}


# The operators that take a number for a tensor also when they are called from Python.
_TAKE_NUMBERS = frozenset(
    f"aten.{name}{suffix}.{overload}"
    for name in ("add", "sub", "mul", "div")
    for suffix in ("", "_")
    for overload in ("Tensor", "Tensor_mode", "out")
)


def _promoted(call: Call, value: complex) -> torch.dtype:
    """Return the type in which a scalar joins the call's tensors; as a tensor of it, it promotes them no further."""
    read = [tensor for position, tensor in enumerate(call.tensors) if position not in call.written]
    highest = max(
        read or call.tensors,
        key=lambda tensor: (tensor.is_complex(), tensor.is_floating_point(), tensor.dtype != torch.bool),
        default=value,
    )
    return torch.result_type(highest, value)


class _Walk:
    """One pass over a call's arguments."""

    __slots__ = ("alone", "numbers", "parts", "tensors", "written")

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.alone: list[float] = []
        self.written: list[int] = []
        self.parts: list[Any] = []

    def argument(self, argument: Argument, value: Any) -> None:
        """Take one argument, and note which tensors the operator writes."""
        before = len(self.tensors)
        self._value(argument, value)
        if argument.written:
            self.written.extend(range(before, len(self.tensors)))

    def _value(self, argument: Argument, value: Any, *, alone: bool = True) -> None:
        """Take an argument or an element of one."""
        kind = type(value)
        if isinstance(value, _Tensor):
            self.tensors.append(value)
            self.parts.append(_Tensor)
        elif kind is list or kind is tuple:
            self.parts.append(len(value))
            for each in value:
                self._value(argument, each, alone=False)
        elif kind is complex:
            self.parts.append((_bits(value.real), _bits(value.imag)))
        elif kind is torch.Generator:
            self.parts.append((kind, value.device.type))  # the table must not keep generators alive
        else:
            self._number(argument, value, alone=alone)

    def _number(self, argument: Argument, value: Any, *, alone: bool) -> None:
        kind = type(value)
        found = scalars.class_in_key(argument, value)
        if found is not None:
            self.numbers.append(value)
            if alone:
                self.alone.append(value)
            self.parts.append((kind, found, None))
        if found is None or found == scalars.SHORTCUT:
            self.parts.append(_bits(value) if kind is float else (kind, value))
