"""A tensor value of the program being built: the element-wise and shape operations that handlers are written in."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.dtypes import attribute, element_type, tensor_type
from neuron_backend.lowering.errors import Invalid, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Number: TypeAlias = "bool | int | float | LiftedInteger"
Operand: TypeAlias = "Array | Number"

_OF_AN_ORDER = {"atan2", "ceil", "floor", "maximum", "minimum", "remainder", "round_nearest_even"}
_NO_ORDER = "complex numbers have no order"


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """One static tensor value. Operations want operands of one dtype and shape; Python numbers become splats."""

    value: ir.Value[Any]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.dtype.is_floating_point

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return self.dtype.is_complex

    @property
    def real(self) -> Array:
        """Real parts; the array itself if it is not complex."""
        return Array(hlo.real(self.value), self.dtype.to_real(), self.shape) if self.is_complex else self

    @property
    def imag(self) -> Array:
        """Imaginary parts; zeros if it is not complex."""
        return Array(hlo.imag(self.value), self.dtype.to_real(), self.shape) if self.is_complex else self.full(0)

    def joined(self, imaginary: Array) -> Array:
        """Return the complex numbers of which these are the real parts."""
        dtype = self.dtype.to_complex()
        element_type(dtype)  # refuses those of 16-bit floats
        return Array(hlo.complex(self.value, self.paired(imaginary).value), dtype, self.shape)

    def like(self, value: ir.Value[Any]) -> Array:
        """Wrap a value of this array's dtype and shape."""
        return Array(value, self.dtype, self.shape)

    def full(self, number: Number) -> Array:
        """Return a splat of this array's dtype and shape."""
        return constant(number, self.dtype, self.shape)

    # Element-wise

    def apply(self, name: str, *others: Operand) -> Array:
        """Apply an element-wise operation of StableHLO (or ``chlo.<name>``) whose result has the operands' type."""
        if self.is_complex and name in _OF_AN_ORDER:
            raise Invalid(_NO_ORDER)
        dialect, _, plain = name.rpartition(".")
        operation = getattr(chlo if dialect else hlo, plain)
        return self.like(operation(self.value, *(self.paired(other).value for other in others)))

    def paired(self, other: Operand) -> Array:
        """Return a number as a splat like this array, or an array that must be of this dtype and shape."""
        if not isinstance(other, Array):
            return self.full(other)
        if other.dtype != self.dtype or other.shape != self.shape:
            raise TypeError(f"operands differ: {self.dtype}{self.shape} and {other.dtype}{other.shape}")
        return other

    def __add__(self, other: Operand) -> Array:
        return self.apply("or_" if self.dtype == torch.bool else "add", other)

    def __sub__(self, other: Operand) -> Array:
        return self.apply("subtract", other)

    def __rsub__(self, other: Number) -> Array:
        return self.full(other) - self

    def __mul__(self, other: Operand) -> Array:
        return self.apply("and_" if self.dtype == torch.bool else "multiply", other)

    def __truediv__(self, other: Operand) -> Array:
        return self.apply("divide", other)

    def __rtruediv__(self, other: Number) -> Array:
        return self.full(other) / self

    def __neg__(self) -> Array:
        return self.apply("negate")

    def __and__(self, other: Operand) -> Array:
        return self.apply("and_", other)

    def __or__(self, other: Operand) -> Array:
        return self.apply("or_", other)

    def __xor__(self, other: Operand) -> Array:
        return self.apply("xor", other)

    def __invert__(self) -> Array:
        return self.apply("not_")

    def compare(self, direction: str, other: Operand) -> Array:
        """Compare element by element; ``direction`` is one of EQ NE LT LE GT GE, false for NaN but for NE."""
        if self.is_complex and direction not in {"EQ", "NE"}:
            raise Invalid(_NO_ORDER)
        result = hlo.compare(self.value, self.paired(other).value, hlo.ComparisonDirectionAttr.get(direction))
        return Array(result, torch.bool, self.shape)

    def equals(self, other: Operand) -> Array:
        """Element-wise ==."""
        return self.compare("EQ", other)

    def differs(self, other: Operand) -> Array:
        """Element-wise !=."""
        return self.compare("NE", other)

    def __lt__(self, other: Operand) -> Array:
        return self.compare("LT", other)

    def __le__(self, other: Operand) -> Array:
        return self.compare("LE", other)

    def __gt__(self, other: Operand) -> Array:
        return self.compare("GT", other)

    def __ge__(self, other: Operand) -> Array:
        return self.compare("GE", other)

    def is_nan(self) -> Array:
        """Element-wise test for NaN, in either part of a complex number; all false for integers."""
        if self.is_complex:
            return self.real.is_nan() | self.imag.is_nan()
        return self.differs(self) if self.is_float else constant(0, torch.bool, self.shape)

    def where(self, chosen: Operand, otherwise: Operand) -> Array:
        """Select by this boolean array; at least one of the two is an `Array`."""
        pattern = chosen if isinstance(chosen, Array) else otherwise
        if not isinstance(pattern, Array):
            raise TypeError("one of the two must be an Array")
        then, other = pattern.paired(chosen), pattern.paired(otherwise)
        return then.like(hlo.select(self.value, then.value, other.value))

    def to(self, dtype: torch.dtype) -> Array:
        """Convert as PyTorch does: to boolean by != 0, from float to integer towards zero, of complex the real part."""
        if dtype == self.dtype:
            return self
        if dtype == torch.bool:
            return self.differs(0)
        if dtype.is_complex and not self.is_complex:
            part = self.to(dtype.to_real())
            return part.joined(part.full(0))
        if self.is_complex and not dtype.is_complex:
            return self.real.to(dtype)
        return Array(hlo.convert(tensor_type(self.shape, dtype), self.value), dtype, self.shape)

    # Shape

    def reshape(self, shape: Sequence[int]) -> Array:
        """Give the same elements, row-major, another shape."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        if math.prod(shape) != self.size:
            raise TypeError(f"{list(self.shape)} has not as many elements as {list(shape)}")
        return Array(hlo.reshape(tensor_type(shape, self.dtype), self.value), self.dtype, shape)

    def transpose(self, order: Sequence[int]) -> Array:
        """Permute dimensions: result dimension i is operand dimension ``order[i]``."""
        if list(order) == list(range(self.rank)):
            return self
        shape = tuple(self.shape[axis] for axis in order)
        return Array(hlo.transpose(self.value, list(order)), self.dtype, shape)

    def spread(self, shape: Sequence[int], axes: Sequence[int]) -> Array:
        """Broadcast with operand dimension i at result dimension ``axes[i]``; sizes 1 are stretched."""
        shape = tuple(shape)
        if shape == self.shape and list(axes) == list(range(self.rank)):
            return self
        if any(size not in {1, shape[axis]} for size, axis in zip(self.shape, axes, strict=True)):
            raise TypeError(f"{list(self.shape)} cannot be broadcast to {list(shape)}")
        value = hlo.broadcast_in_dim(tensor_type(shape, self.dtype), self.value, list(axes))
        return Array(value, self.dtype, shape)

    def broadcast(self, shape: Sequence[int]) -> Array:
        """Broadcast by PyTorch's rule: dimensions are matched from the last."""
        missing = len(shape) - self.rank
        return self.spread(shape, range(missing, len(shape)))

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Array:
        """Take ``start:stop:step`` of one dimension; bounds lie within it."""
        if (start, stop, step) == (0, self.shape[axis], 1):
            return self
        low, high, strides = [0] * self.rank, list(self.shape), [1] * self.rank
        low[axis], high[axis], strides[axis] = start, stop, step
        shape = list(self.shape)
        shape[axis] = max(-(-(stop - start) // step), 0)
        return Array(hlo.slice(self.value, low, high, strides), self.dtype, tuple(shape))

    def pad(
        self, low: Sequence[int], high: Sequence[int], value: Number = 0, interior: Sequence[int] | None = None
    ) -> Array:
        """Add elements before, after and between those of each dimension; negative numbers cut off."""
        inner = list(interior) if interior is not None else [0] * self.rank
        if not any((*low, *high, *inner)):
            return self
        shape = tuple(
            max(before + after + size + max(size - 1, 0) * between, 0)
            for size, before, after, between in zip(self.shape, low, high, inner, strict=True)
        )
        filler = constant(value, self.dtype)
        return Array(hlo.pad(self.value, filler.value, list(low), list(high), inner), self.dtype, shape)

    def reverse(self, axes: Sequence[int]) -> Array:
        """Reverse the order of elements along ``axes``."""
        return self.like(hlo.reverse(self.value, sorted(axes))) if axes else self


def as_array(candidate: Any) -> Array:
    """Narrow a handler's argument that must be a tensor."""
    if not isinstance(candidate, Array):
        raise TypeError(f"a tensor is expected, not {type(candidate).__name__}")
    return candidate


@dataclass(frozen=True, slots=True)
class Lifted:
    """A Python number that stands in the graph as ``sentinel`` and becomes an extra rank-0 input of the program.

    ``dtype`` is the type of that input. ``number`` is one of those that it stands for: all of them have its sign, lie
    with it on the same side of 1 and -1, and compare with others of the same call as it does. If it is 0, 0.5, 1, 2, 3
    or the negative of one, there is no other.
    """

    sentinel: float
    dtype: torch.dtype
    number: float


def _refuse(*_operands: Any) -> Any:
    raise Refused("it computes with the value of a scalar that is lifted")


def _compared(compare: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    def method(left: Any, right: Any) -> bool:
        if isinstance(right, (LiftedFloat, LiftedInteger)):
            return compare(left.number, right.number)
        return compare(left.number, right) if right in {-1, 0, 1} else bool(_refuse())

    return method


_SHORTCUTS = frozenset({0, 0.5, 1, 2, 3, -0.5, -1, -2, -3})


class _Unknown:
    """A number that only `constant` knows the value of: what a handler gets in place of a sentinel.

    It refuses arithmetic: a handler that computed with it would bake the sentinel into the program. What it equals, and
    its order, are answered where that is the same for all that it stands for; it equals no number that `Lifted` does
    not name.
    """

    __slots__ = ()
    array: Array
    number: float

    def __eq__(self, other: object) -> bool:
        return other in _SHORTCUTS and self.number == other

    def __hash__(self) -> int:
        return id(self)

    __lt__, __le__, __gt__, __ge__ = map(_compared, (operator.lt, operator.le, operator.gt, operator.ge))
    __abs__ = __add__ = __divmod__ = __floordiv__ = __mod__ = __mul__ = __neg__ = __pos__ = __pow__ = __radd__ = _refuse
    __rdivmod__ = __rfloordiv__ = __rmod__ = __rmul__ = __round__ = __rpow__ = __rsub__ = __rtruediv__ = _refuse
    __sub__ = __truediv__ = __trunc__ = __int__ = __float__ = __index__ = __bool__ = _refuse


class LiftedFloat(_Unknown, float):
    """A float of that kind."""

    __slots__ = ("array", "number")


class LiftedInteger(_Unknown):
    """An integer of that kind; no ``int``, which code in C would read the sentinel from."""

    __slots__ = ("array", "number")


def lifted_number(array: Array, number: float) -> LiftedFloat | LiftedInteger:
    """Return what stands for the rank-0 input ``array`` (see `Lifted`)."""
    made = LiftedFloat(math.nan) if array.is_float else LiftedInteger()
    made.array, made.number = array, number
    return made


def is_lifted(number: object) -> bool:
    """Whether it stands for an input of the program: it cannot be computed with before that runs."""
    return isinstance(number, _Unknown)


def constant(number: Number, dtype: torch.dtype, shape: Sequence[int] = ()) -> Array:
    """Return a splat of ``number``, or of the run-time scalar that it stands for."""
    shape = tuple(shape)
    if isinstance(number, (LiftedFloat, LiftedInteger)):
        return number.array.to(dtype).broadcast(shape)
    if dtype.is_complex:
        parts = complex(number)
        return constant(parts.real, dtype.to_real(), shape).joined(constant(parts.imag, dtype.to_real(), shape))
    splat = ir.DenseElementsAttr.get_splat(tensor_type(shape, dtype), attribute(number, dtype))
    return Array(hlo.constant(splat), dtype, shape)
