"""The key of the in-process table: everything a program depends on, as one hashable value, found quickly.

Tensors are described by the device library, in one call for all of them. Every other argument stands in the key by
type and value, floats by their bits: 0.0 is not -0.0, True is not 1, and NaN equals itself.
"""

from __future__ import annotations

import struct
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
    ``written`` the positions of those that the operator writes. ``numbers`` are the floats that are no part of the key
    but inputs of the program. Where torch had turned a Python scalar into a tensor, the arguments hold the scalar.
    """

    operator: Operator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    written: list[int]
    numbers: list[float]


def read(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Take a call apart. Raises RuntimeError for tensors that are not strided."""
    walk = _Walk(operator.lifts)
    if operator.mutable:
        walk.arguments(operator.arguments, args, kwargs)
    else:
        for value in args:
            walk.value(value)
        for name, value in kwargs.items():
            walk.parts.append(name)
            walk.value(value)
    key = (operator.overload, _describe(walk.tensors, walk.written), *walk.parts)
    return Call(operator, args, kwargs, key, walk.tensors, walk.written, walk.numbers)


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

    Without ``numbers`` the floats stay what they are.
    """
    operator = call.operator
    stand_ins = iter(tensors)
    floats = None if numbers is None else iter(numbers)

    def inner(value: Any) -> Any:
        if isinstance(value, _Tensor):
            return next(stand_ins)
        if isinstance(value, (list, tuple)):
            return [inner(each) for each in value]
        if floats is not None and operator.lifts and scalars.is_lifted(value):
            return next(floats)
        return _CPU if isinstance(value, torch.device) else value

    def outer(argument: Argument, value: Any) -> Any:
        if argument.tensor and isinstance(value, (int, float, complex)) and not operator.lifts:
            # Only operators such as those that lift take a scalar for a tensor when they are called from Python.
            return torch.full((), value, dtype=_promoted(call, value), device=_CPU)
        return inner(value)

    args = [outer(argument, value) for argument, value in zip(operator.arguments, call.args, strict=False)]
    named = {argument.name: argument for argument in operator.arguments[len(args) :]}
    order = [name for name in named if name in call.kwargs] if operator.mutable else call.kwargs  # as in `read`
    return args, {name: outer(named[name], call.kwargs[name]) for name in order}


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

    __slots__ = ("lifts", "numbers", "parts", "tensors", "written")

    def __init__(self, lifts: bool) -> None:
        self.lifts = lifts
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.written: list[int] = []
        self.parts: list[Any] = []

    def arguments(self, arguments: tuple[Argument, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take all arguments, and note which tensors the operator writes."""
        for argument, value in zip(arguments, args, strict=False):
            self._argument(argument, value)
        for argument in arguments[len(args) :]:
            if argument.name in kwargs:
                self.parts.append(argument.name)
                self._argument(argument, kwargs[argument.name])

    def _argument(self, argument: Argument, value: Any) -> None:
        before = len(self.tensors)
        self.value(value)
        if argument.written:
            self.written.extend(range(before, len(self.tensors)))

    def value(self, value: Any) -> None:
        """Take one argument or element of one."""
        kind = type(value)
        if isinstance(value, _Tensor):
            self.tensors.append(value)
            self.parts.append(_Tensor)
        elif kind is float:
            if self.lifts and scalars.is_lifted(value):
                self.numbers.append(value)
                self.parts.append(float)
            else:
                self.parts.append(_bits(value))
        elif kind is list or kind is tuple:
            self.parts.append(len(value))
            for each in value:
                self.value(each)
        elif kind is complex:
            self.parts.append((_bits(value.real), _bits(value.imag)))
        elif kind is torch.Generator:
            self.parts.append((kind, value.device.type))  # the table must not keep generators alive
        else:
            self.parts.append((kind, value))
