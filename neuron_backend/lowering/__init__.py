"""FX graphs (ATen, functional, static shapes) to StableHLO, as canonical VHLO bytes.

Importing this package imports PyTorch and jaxlib; the rest of the backend does so at the first operator only.
"""

from __future__ import annotations

from neuron_backend.lowering.array import Lifted
from neuron_backend.lowering.capture import TRACING, Results, trace, trim, used_inputs
from neuron_backend.lowering.checks import Check, take_checks
from neuron_backend.lowering.decompositions import decompositions, decompositions_for_graphs
from neuron_backend.lowering.errors import PLEASE_REPORT, LoweringBug, NotLowered, UnsupportedOperator
from neuron_backend.lowering.lower import draws_of, lower
from neuron_backend.lowering.registry import is_random
from neuron_backend.lowering.validity import without_checks
from neuron_backend.lowering.views import AS_STRIDED, read_from_storage, viewed

__all__ = [
    "AS_STRIDED",
    "PLEASE_REPORT",
    "TRACING",
    "Check",
    "Lifted",
    "LoweringBug",
    "NotLowered",
    "Results",
    "UnsupportedOperator",
    "decompositions",
    "decompositions_for_graphs",
    "draws_of",
    "is_random",
    "lower",
    "read_from_storage",
    "take_checks",
    "trace",
    "trim",
    "used_inputs",
    "viewed",
    "without_checks",
]
