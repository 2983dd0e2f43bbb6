"""Functions of whole matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import modulus
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.linear import identity, product
from neuron_backend.lowering.loops import while_loop
from neuron_backend.lowering.reductions import fold, total
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

_DEGREE = 18  # of the Taylor polynomial, exact to a double's precision up to this norm
_LARGEST_NORM = 1.0


@lowers("aten.linalg_matrix_exp.default")
def _exponential(_call: Call, x: Array) -> Array:
    return _exponential_of(x.to(accumulator(x.dtype))).to(x.dtype)


def _exponential_of(x: Array) -> Array:
    """Halve each matrix until its norm is small, sum the series by Horner's scheme, square as often."""
    batch = x.shape[:-2]
    size = modulus(x) if x.is_complex else x.apply("abs")
    norm = fold(total(size, [x.rank - 2]), [x.rank - 2], "maximum", 0)
    halvings = (norm / _LARGEST_NORM).apply("maximum", 1).apply("log") / math.log(2)
    # Where the norm is no number, or infinite, there is nothing to scale: the result is none either.
    halvings = (norm < math.inf).where(halvings.apply("ceil"), 0)
    scale = halvings.full(2).apply("power", -halvings).to(x.dtype)
    scaled = x * scale.spread(x.shape, range(len(batch)))
    one = identity(x.shape, x.dtype)
    result = one
    for degree in range(_DEGREE, 0, -1):
        result = one + product(scaled, result) / degree
    most = fold(halvings, range(halvings.rank), "maximum", 0)

    def squared(step: Array, current: Array) -> list[Array]:
        due = step.broadcast(batch) < halvings
        return [step + 1, due.spread(x.shape, range(len(batch))).where(product(current, current), current)]

    return while_loop([constant(0, norm.dtype), result], lambda step, _: step < most, squared)[1]


def _pseudoinverse(
    x: torch.Tensor, *, atol: torch.Tensor | None = None, rtol: torch.Tensor | None = None, hermitian: bool = False
) -> torch.Tensor:
    """Return V / S U^H without the singular values that are at most max(atol, rtol * the largest)."""
    if not x.numel():
        return x.new_zeros(x.mT.shape)
    default = torch.finfo(x.dtype).eps * max(x.shape[-2:])
    absolute: Any = 0.0 if atol is None else atol.unsqueeze(-1)
    relative: Any = default if rtol is None else rtol.unsqueeze(-1)
    if rtol is None and atol is not None:
        relative = torch.where(absolute > 0, 0.0, default)
    if hermitian:
        values, left = torch.linalg.eigh(x)
        sizes, right = values.abs(), left
    else:
        left, values, adjoint = torch.linalg.svd(x, full_matrices=False)
        sizes, right = values, adjoint.mH
    largest = sizes.amax(-1, keepdim=True)
    bound = largest * relative
    bound = torch.maximum(bound, torch.as_tensor(absolute, dtype=bound.dtype, device=bound.device))
    inverse = torch.where(sizes > bound, 1 / values, 0.0).to(x.dtype)
    result: torch.Tensor = (right * inverse.unsqueeze(-2)) @ left.mH
    return result


def matrix_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the operators that are composed of others, though the tracer would leave them whole."""
    return {torch.ops.aten.linalg_pinv.atol_rtol_tensor: _pseudoinverse}
