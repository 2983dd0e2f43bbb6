"""Activation functions that stay whole; the others are decomposed by PyTorch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array, Number
    from neuron_backend.lowering.registry import Call


@lowers("aten.relu.default")
def _relu(_call: Call, x: Array) -> Array:
    return x.apply("maximum", 0)


@lowers("aten.gelu.default")
def _gelu(call: Call, x: Array, *, approximate: str = "none") -> Array:
    def tanh(a: Array) -> Array:
        inner = (a + a * a * a * 0.044715) * math.sqrt(2 / math.pi)
        return a * 0.5 * (inner.apply("tanh") + 1)

    def erf(a: Array) -> Array:
        return a * 0.5 * ((a * math.sqrt(0.5)).apply("chlo.erf") + 1)

    return pointwise(call, tanh if approximate == "tanh" else erf, x, wide=True)


@lowers("aten.silu.default")
def _silu(call: Call, x: Array) -> Array:
    return pointwise(call, lambda a: a * a.apply("logistic"), x, wide=True)


@lowers("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
def _shrink_backward(call: Call, gradient: Array, x: Array, bound: Number) -> Array:
    return pointwise(call, lambda g, a: ((a >= -bound) & (a <= bound)).where(0, g), gradient, x)
