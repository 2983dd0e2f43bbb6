"""The whole table: importing this module registers the lowerings of every family."""

from __future__ import annotations

from neuron_backend.lowering import (
    adaptive,
    arithmetic,
    comparison,
    convolution,
    extremes,
    factories,
    indexing,
    matmul,
    ordering,
    pooling,
    reductions,
    scans,
    scattering,
    shape,
    slicing,
    strided,
    unary,
)
from neuron_backend.lowering.registry import handler, supported

FAMILIES = (
    adaptive,
    arithmetic,
    comparison,
    convolution,
    extremes,
    factories,
    indexing,
    matmul,
    ordering,
    pooling,
    reductions,
    scans,
    scattering,
    shape,
    slicing,
    strided,
    unary,
)

__all__ = ["FAMILIES", "handler", "supported"]
