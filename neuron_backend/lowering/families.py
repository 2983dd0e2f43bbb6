"""The whole table: importing this module registers the lowerings of every family."""

from __future__ import annotations

from neuron_backend.lowering import (  # noqa: F401  imported for what they register
    activations,
    adaptive,
    arithmetic,
    comparison,
    convolution,
    division,
    extremes,
    factories,
    indexing,
    matmul,
    ordering,
    pooling,
    reductions,
    resampling,
    scans,
    scattering,
    shape,
    slicing,
    strided,
    unary,
)
from neuron_backend.lowering.registry import handler, supported

__all__ = ["handler", "supported"]
