"""Products of matrices and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.complexes import conjugate
from neuron_backend.lowering.contraction import dot
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import conform

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array, Number
    from neuron_backend.lowering.registry import Call


@lowers("aten.mm.default", "aten.mv.default")
def _matrix_product(call: Call, left: Array, right: Array) -> Array:
    return dot(left, right, contract=(1, 0)).to(call.out.dtype)


@lowers("aten.dot.default")
def _inner_product(call: Call, left: Array, right: Array) -> Array:
    return dot(left, right, contract=(0, 0)).to(call.out.dtype)


@lowers("aten.vdot.default")
def _conjugate_inner_product(call: Call, left: Array, right: Array) -> Array:
    return dot(conjugate(left), right, contract=(0, 0)).to(call.out.dtype)


@lowers("aten.bmm.default")
def _batched_product(call: Call, left: Array, right: Array) -> Array:
    return dot(left, right, batch=1, contract=(2, 1)).to(call.out.dtype)


def _accumulated(call: Call, start: Array, product: Array, beta: Number, alpha: Number) -> Array:
    """Return beta * start + alpha * product; a beta of 0 keeps NaN and inf of ``start`` out, as in BLAS."""
    result = product if alpha == 1 else product * alpha
    if beta != 0:
        addend = conform(start, product.dtype, product.shape)
        result = result + (addend if beta == 1 else addend * beta)
    return result.to(call.out.dtype)


@lowers("aten.addmm.default", "aten.addmv.default")
def _add_product(call: Call, start: Array, left: Array, right: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    return _accumulated(call, start, dot(left, right, contract=(1, 0)), beta, alpha)


@lowers("aten.addbmm.default")
def _add_summed_products(
    call: Call, start: Array, left: Array, right: Array, *, beta: Number = 1, alpha: Number = 1
) -> Array:
    """Sum over the batch too: one product of matrices laid side by side."""
    batch, rows, inner = left.shape
    wide = left.transpose([1, 0, 2]).reshape((rows, batch * inner))
    tall = right.reshape((batch * inner, right.shape[2]))
    return _accumulated(call, start, dot(wide, tall, contract=(1, 0)), beta, alpha)


@lowers("aten.baddbmm.default")
def _add_batched_product(
    call: Call, start: Array, left: Array, right: Array, *, beta: Number = 1, alpha: Number = 1
) -> Array:
    return _accumulated(call, start, dot(left, right, batch=1, contract=(2, 1)), beta, alpha)
