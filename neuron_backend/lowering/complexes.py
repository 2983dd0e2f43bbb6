"""Complex numbers: taking them apart, putting them together, and what is not arithmetic on them.

A lazily conjugated or negated tensor is a value like any other here: ``_conj`` and ``_neg_view`` compute.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import concatenate, conform

if TYPE_CHECKING:
    from neuron_backend.lowering.registry import Call


def modulus(x: Array) -> Array:
    """Absolute values of complex numbers: real ones, infinite if either part is."""
    size = Array(hlo.abs(x.value), x.dtype.to_real(), x.shape)
    infinite = x.real.apply("abs").equals(math.inf) | x.imag.apply("abs").equals(math.inf)
    return infinite.where(math.inf, size)


def conjugate(x: Array) -> Array:
    """Complex conjugates; real numbers as they are."""
    return x.real.joined(-x.imag) if x.is_complex else x


@lowers(
    "aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default", "prims.conj_physical.default"
)
def _conjugate(_call: Call, x: Array) -> Array:
    return conjugate(x)


@lowers("aten._neg_view.default")
def _negative_view(_call: Call, x: Array) -> Array:
    return -x


@lowers("aten.resolve_conj.default", "aten.resolve_neg.default", "prims.conj.default")
def _resolved(_call: Call, x: Array) -> Array:
    return x


@lowers("aten.real.default", "prims.real.default")
def _real(_call: Call, x: Array) -> Array:
    return x.real


@lowers("aten.imag.default", "prims.imag.default")
def _imaginary(_call: Call, x: Array) -> Array:
    return x.imag


@lowers("aten.view_as_real.default", "aten.view_as_real_copy.default")
def _parts(call: Call, x: Array) -> Array:
    column = (*x.shape, 1)
    return concatenate([x.real.reshape(column), x.imag.reshape(column)], len(call.out.shape) - 1)


@lowers("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def _from_parts(call: Call, x: Array) -> Array:
    axis = x.rank - 1
    real, imaginary = (x.slice(axis, place, place + 1).reshape(call.out.shape) for place in (0, 1))
    return real.joined(imaginary)


@lowers("aten.complex.default")
def _complex(call: Call, real: Array, imaginary: Array) -> Array:
    part, shape = call.out.dtype.to_real(), call.out.shape
    return conform(real, part, shape).joined(conform(imaginary, part, shape))


@lowers("aten.polar.default")
def _polar(call: Call, length: Array, angle: Array) -> Array:
    part, shape = call.out.dtype.to_real(), call.out.shape
    length, angle = (conform(each, part, shape) for each in (length, angle))
    return (length * angle.apply("cosine")).joined(length * angle.apply("sine"))


@lowers("aten.angle.default")
def _angle(call: Call, x: Array) -> Array:
    """Of a real number: 0 or pi by its sign, NaN for NaN."""
    if x.is_complex:
        return x.imag.apply("atan2", x.real)
    return pointwise(call, lambda a: a.is_nan().where(a, (a < 0).where(a.full(math.pi), 0)), x, wide=True)


@lowers("aten.sgn.default", "aten.sign.default", "prims.sign.default")
def _sign(_call: Call, x: Array) -> Array:
    """Return x / abs(x), and 0 for 0; of a real number (0 < x) - (x < 0), which makes NaN 0 as PyTorch does."""
    if x.is_complex:
        length = modulus(x)
        quotient = x / length.to(x.dtype)
        return length.equals(0).where(x.full(0), quotient)
    positive = (x > 0).to(x.dtype)
    return positive if x.dtype in {torch.bool, torch.uint8} else positive - (x < 0).to(x.dtype)
