"""Which Python numbers of a call become inputs of its program, so that a learning rate is no reason to compile.

An operator is traced with its numbers, and with improbable ones (sentinels) in their places. If the two graphs differ
in nothing but these, every sentinel stands for the number itself and is lifted to a rank-0 input; otherwise a value or
a shape was computed from it, and the numbers are compiled in. Where the lowering then computes with such a number it
refuses (`neuron_backend.lowering.array.LiftedNumber`), and they are compiled in as well.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch

from neuron_backend.lowering import Lifted
from neuron_backend.torch_private import unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.fx import GraphModule

    from neuron_backend.eager.operators import Argument
    from neuron_backend.eager.signature import Call

_class_of_float = torch.ops.neuron_device.class_of_float.default
_class_of_int = torch.ops.neuron_device.class_of_int.default

_CONSTANT: Final = 0
SHORTCUT: Final = 1
"""The class, in a key, of a number that code likes to choose by (device/calls.h): the number itself is there too."""

# By class, for a number's size: where its sentinels begin, and how many fit in between.
_FLOATS: Final = {2: (0.0173028564453125, 3000), 3: (1.0173028564453125, 3000), 4: (70007.0173, 3000), 5: (1e39, 0)}
_STEP: Final = 2.0**-12
_INTEGERS: Final = {
    2: (83, 40),
    3: (151, 100),
    4: (10007, 3000),
    5: (40009, 3000),
    6: (1000003, 3000),
    7: (3000000019, 3000),
    8: (1000000000039, 3000),
}


_INT64: Final = 1 << 63


def class_in_key(argument: Argument, value: Any) -> int | None:
    """Return what a key has of a number that may be lifted; None if ``value`` is none, and the key has all of it."""
    kind = type(value)
    if not argument.lifting or (kind is not float and kind is not int):
        return None
    if kind is type(argument.default) and value == argument.default:
        return None
    if kind is int and not -_INT64 <= value < _INT64:
        return None
    found = int(_class_of_float(value) if kind is float else _class_of_int(value))
    return None if found == _CONSTANT or (found == SHORTCUT and argument.lifting == 1) else found


def dtype_of(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the type in which ``tensors`` are computed with: that of a lifted float."""
    double = (torch.float64, torch.complex128)
    wide = torch.get_default_dtype() is torch.float64 or any(tensor.dtype in double for tensor in tensors)
    return torch.float64 if wide else torch.float32


def sentinels(call: Call) -> list[Lifted] | None:
    """Return what stands for the call's numbers in a trace, each of its class and in their order.

    None where they are compiled in: a type of the call's tensors does not hold such a number, which torch's kernels may
    refuse; a float would be an element of a tensor of integers; there are too many; or two that stand alone are equal,
    or of different types.
    """
    numbers = call.numbers
    if len(set(call.alone)) < len(call.alone) or len({type(each) for each in call.alone}) > 1:
        return None
    if not all(_held(number, tensor.dtype) for tensor in call.tensors for number in set(numbers)):
        return None
    real = any(tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in call.tensors)
    if not real and any(type(each) is float for each in numbers) and call.operator.overload not in _REAL_RESULTS:
        return None
    dtype = dtype_of(call.tensors)
    found: dict[int, Lifted] = {}
    taken: dict[tuple[type, int], int] = {}
    for position in sorted(range(len(numbers)), key=lambda each: (abs(numbers[each]), each)):
        number = numbers[position]
        size = _size(number)
        first, most = (_FLOATS if type(number) is float else _INTEGERS)[size]
        index = taken[type(number), size] = taken.get((type(number), size), -1) + 1
        if index >= most:
            return None
        sign = -1 if number < 0 else 1
        if type(number) is float:
            found[position] = Lifted(sign * (first + index * _STEP), dtype, number)
        else:
            found[position] = Lifted(sign * (first + index), torch.int64, number)
    return [found[position] for position in range(len(numbers))]


def overflow(call: Call) -> bool:
    """Whether a type of the call's tensors does not hold one of its numbers: some of torch's kernels refuse that."""
    real = call.operator.overload in _REAL_RESULTS  # of a float and integers
    return any(
        overflows(number, tensor.dtype)
        for tensor in call.tensors
        for number in set(call.numbers)
        if not (real and type(number) is float and _is_integer(tensor.dtype))
    )


def overflows(number: Any, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` does not hold a number, whatever the kernels make of that."""
    if isinstance(number, complex) or dtype is torch.bool:
        return False
    if _is_integer(dtype):
        limits = torch.iinfo(dtype)
        lowest = limits.min - 1 if limits.min else -math.ulp(0)
        return math.isfinite(number) and not lowest < number < limits.max + 1
    return math.isfinite(number) and abs(number) > torch.finfo(dtype).max


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


_REAL_RESULTS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in ("add", "sub", "mul", "div")
    for overload in ("Tensor", "Scalar")
)


def _size(number: float) -> int:
    """Return the class of a number's size, also for one that has a shortcut."""
    found = int(_class_of_float(number) if type(number) is float else _class_of_int(number))
    if found == SHORTCUT:
        return 3 if type(number) is float and abs(number) >= 1 else 2
    return abs(found)


def _held(number: float, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` holds every number of this one's class."""
    if dtype.is_complex:
        dtype = dtype.to_real()
    size = _size(number)
    if dtype.is_floating_point:
        if type(number) is int:
            return dtype.itemsize > 2 or size <= 4  # noqa: PLR2004 - 16-bit types, and up to 2 ** 15
        return size <= {torch.float64: 5, torch.float32: 4, torch.bfloat16: 4, torch.float16: 3}.get(dtype, 0)
    if type(number) is float or dtype is torch.bool:
        return True  # the result has another type
    bits = dtype.itemsize * 8
    if not dtype.is_signed:
        return number >= 0 and size <= {8: 3, 16: 5, 32: 7}.get(bits, 0)
    return size <= {8: 2, 16: 4, 32: 6, 64: 8}[bits]


def differ_only_in(one: GraphModule, other: GraphModule, pairs: dict[float, float]) -> bool:
    """Whether two graphs are equal but for numbers of ``pairs``: a key in ``one`` where ``other`` has its value."""
    first, second = list(_contents(one)), list(_contents(other))
    if len(first) != len(second):
        return False
    for left, right in zip(first, second, strict=True):
        if type(left) is not type(right):
            return False
        number = (type(left) is float or type(left) is int) and left in pairs
        if (pairs[left] if number else left) != right:
            return False
    return True


@lru_cache(maxsize=4096)
def tensor(value: float, dtype: torch.dtype) -> torch.Tensor:
    """Return ``value`` as a rank-0 host tensor, to be read only. It is not -0.0, which equals 0.0."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _contents(graph: GraphModule) -> Iterator[Any]:
    """Yield every node's target, arguments, shapes and types, flat and in order, nodes by name."""

    def flat(value: Any) -> Iterator[Any]:
        if isinstance(value, (list, tuple)):
            yield f"{len(value)} elements"
            for each in value:
                yield from flat(each)
        elif isinstance(value, dict):
            for name in sorted(value):
                yield name
                yield from flat(value[name])
        elif isinstance(value, torch.fx.Node):
            yield value.name
        elif isinstance(value, torch.Tensor):
            yield f"{value.dtype} {tuple(value.shape)}"
        else:
            yield value

    for node in graph.graph.nodes:
        yield str(node.target)
        if node.op == "get_attr":
            constant = getattr(graph, node.target)
            with unset_fake_temporarily():
                yield repr(constant.tolist())
        yield from flat((node.args, node.kwargs, node.meta.get("val")))
