"""Element types: PyTorch's on one side, MLIR's on the other. An MLIR context must be entered."""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import torch
from jaxlib.mlir import ir

from neuron_backend.lowering.errors import Broken, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ELEMENT: dict[torch.dtype, Callable[[], ir.Type]] = {
    torch.float64: ir.F64Type.get,
    torch.float32: ir.F32Type.get,
    torch.float16: ir.F16Type.get,
    torch.bfloat16: ir.BF16Type.get,
    torch.int64: lambda: ir.IntegerType.get_signless(64),
    torch.int32: lambda: ir.IntegerType.get_signless(32),
    torch.int16: lambda: ir.IntegerType.get_signless(16),
    torch.int8: lambda: ir.IntegerType.get_signless(8),
    torch.uint8: lambda: ir.IntegerType.get_unsigned(8),
    torch.bool: lambda: ir.IntegerType.get_signless(1),
    torch.complex64: lambda: ir.ComplexType.get(ir.F32Type.get()),
    torch.complex128: lambda: ir.ComplexType.get(ir.F64Type.get()),
}
_BY_NAME = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "ui8": torch.uint8,
    "i1": torch.bool,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
}

_HALF_AS_WIDE: Final = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_narrow: ContextVar[bool] = ContextVar("narrow", default=False)


@contextlib.contextmanager
def narrowing(*, on: bool) -> Iterator[None]:
    """While ``on``, the target of what is lowered has no float64: none comes into a module."""
    before = _narrow.set(on)
    try:
        yield
    finally:
        _narrow.reset(before)


def available(dtype: torch.dtype) -> torch.dtype:
    """Return what the target computes ``dtype`` in: another type for float64 and complex128 where it lacks these."""
    return _HALF_AS_WIDE.get(dtype, dtype) if _narrow.get() else dtype


def element_type(dtype: torch.dtype) -> ir.Type:
    """MLIR's element type for ``dtype``."""
    if available(dtype) != dtype:
        raise Broken(f"it makes {dtype}, which the target has not")
    make = _ELEMENT.get(dtype)
    if make is None:
        raise Refused(f"element type {dtype} is not supported")
    return make()


def tensor_type(shape: Iterable[int], dtype: torch.dtype) -> ir.Type:
    """MLIR's tensor type of static ``shape``."""
    return ir.RankedTensorType.get(list(shape), element_type(dtype))


def dtype_and_shape(kind: ir.Type) -> tuple[torch.dtype, tuple[int, ...]]:
    """Read a ranked, static tensor type back."""
    tensor = ir.RankedTensorType(kind)
    return _BY_NAME[str(tensor.element_type)], tuple(tensor.shape)


def attribute(value: float, dtype: torch.dtype) -> ir.Attribute:
    """Return a number as an attribute of exactly ``dtype``, not complex: one rounding, from Python's own precision."""
    if dtype.is_floating_point:
        return ir.FloatAttr.get(element_type(dtype), float(value))
    if dtype == torch.bool:
        return ir.IntegerAttr.get(element_type(dtype), int(bool(value)))
    return ir.IntegerAttr.get(element_type(dtype), wrap(int(value), dtype))


def wrap(value: int, dtype: torch.dtype) -> int:
    """Two's complement wrap-around of an integer into ``dtype``, as PyTorch's casts do."""
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (1 << limits.bits) + limits.min


def lowest(dtype: torch.dtype) -> float:
    """Identity of ``maximum``."""
    if dtype.is_floating_point:
        return -math.inf
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float:
    """Identity of ``minimum``."""
    if dtype.is_floating_point:
        return math.inf
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Type that sums and transcendental functions of ``dtype`` are computed in: float32 for the 16-bit floats."""
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype
