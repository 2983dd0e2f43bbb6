"""The whole table: importing this module registers the lowerings of every family.

Each family is imported by itself: one that this torch breaks costs its own operators, which then run on the CPU.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Final

from neuron_backend.lowering.registry import handler, is_random, supported

__all__ = ["handler", "is_random", "supported"]

_FAMILIES: Final = (
    "activations",
    "adaptive",
    "alignments",
    "arithmetic",
    "attention",
    "bags",
    "bessel",
    "cholesky",
    "chunked_losses",
    "comparison",
    "complexes",
    "convolution",
    "distances",
    "division",
    "elimination",
    "extremes",
    "factories",
    "fourier",
    "fractional",
    "gammas",
    "gradients",
    "grids",
    "groups",
    "histograms",
    "indexing",
    "jacobi",
    "least_squares",
    "matmul",
    "matrix_functions",
    "ordering",
    "polynomials",
    "pooling",
    "random",
    "reductions",
    "reflections",
    "refused_types",
    "resampling",
    "scans",
    "scattering",
    "segments",
    "selections",
    "shape",
    "slicing",
    "special",
    "strided",
    "transformer_layers",
    "unary",
    "weight_norm",
)


def _register() -> None:
    for family in _FAMILIES:
        try:
            importlib.import_module(f"neuron_backend.lowering.{family}")
        except (ImportError, AttributeError) as error:  # a name that this torch does not have
            warnings.warn(
                f"neff-cache: operators of the family {family!r} run on the CPU: {error}", RuntimeWarning, stacklevel=2
            )


_register()
