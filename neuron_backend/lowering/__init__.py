"""FX graphs (ATen, functional, static shapes) to StableHLO, as canonical VHLO bytes.

Importing this package imports PyTorch and jaxlib; the rest of the backend does so at the first operator only.
"""

from __future__ import annotations

from neuron_backend.lowering.array import Lifted
from neuron_backend.lowering.capture import TRACING, Results, trace, trim, used_inputs
from neuron_backend.lowering.checks import Check, take_checks
from neuron_backend.lowering.decompositions import decompositions
from neuron_backend.lowering.errors import UnsupportedOperator
from neuron_backend.lowering.lower import draws_of, lower
from neuron_backend.lowering.registry import is_random
from neuron_backend.lowering.validity import without_checks

__all__ = [
    "TRACING",
    "Check",
    "Lifted",
    "Results",
    "UnsupportedOperator",
    "decompositions",
    "draws_of",
    "is_random",
    "lower",
    "take_checks",
    "trace",
    "trim",
    "used_inputs",
    "without_checks",
]
