"""The one place for type promotion: which dtype operands have in common, and which one an operator computes in."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import Array, LiftedFloat, LiftedInteger
from neuron_backend.lowering.dtypes import accumulator, available
from neuron_backend.lowering.sources import conform

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Number, Operand
    from neuron_backend.lowering.registry import Call


@functools.cache
def _stand_in(dtype: torch.dtype, *, scalar: bool) -> torch.Tensor:
    return torch.empty(() if scalar else (1,), dtype=dtype, device="meta")


def common_dtype(left: Operand, right: Operand) -> torch.dtype:
    """Return `torch.result_type` of two operands: it looks at dtypes, at rank 0 and at Python numbers."""

    def typed(operand: Operand) -> torch.Tensor | float:
        if isinstance(operand, Array):
            return _stand_in(operand.dtype, scalar=not operand.shape)
        return 2 if isinstance(operand, LiftedInteger) else operand

    return available(torch.result_type(typed(left), typed(right)))


def compute_dtype(dtype: torch.dtype, *operands: Operand) -> torch.dtype:
    """Return what an operator on ``dtype`` computes in, with Python numbers whole, as PyTorch's GPU kernels have them.

    That is ``dtype``, but float32 for a 16-bit float when some operand is a number that it cannot hold exactly.
    """
    wide = accumulator(dtype)
    if wide == dtype:
        return dtype
    numbers = [each for each in operands if not isinstance(each, Array)]
    return dtype if all(_exact(number, dtype) for number in numbers) else wide


def _exact(number: Number, dtype: torch.dtype) -> bool:
    if isinstance(number, (LiftedFloat, LiftedInteger)):
        return False
    return math.isnan(number) or float(torch.tensor(float(number), dtype=torch.float64).to(dtype)) == number


def pointwise(
    call: Call,
    function: Callable[..., Array],
    *operands: Operand,
    dtype: torch.dtype | None = None,
    wide: bool = False,
) -> Array:
    """Broadcast ``operands`` to the result's shape, compute, convert to the result's dtype.

    ``dtype`` is the operands' common dtype, the result's if nothing is said. ``wide`` has 16-bit floats computed in
    float32 throughout: for what is more than one correctly rounded operation.
    """
    out = call.out
    dtype = dtype or out.dtype
    compute = accumulator(dtype) if wide else compute_dtype(dtype, *operands)
    arrays = [conform(operand, compute, out.shape) for operand in operands]
    return function(*arrays).to(out.dtype)
