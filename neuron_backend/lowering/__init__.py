"""FX graphs (ATen, functional, static shapes) to StableHLO, as canonical VHLO bytes.

Importing this package imports PyTorch and jaxlib; the rest of the backend does so at the first operator only.
"""

from __future__ import annotations

from neuron_backend.lowering.array import Lifted
from neuron_backend.lowering.capture import Results, trace, trim, used_inputs
from neuron_backend.lowering.decompositions import decompositions
from neuron_backend.lowering.errors import UnsupportedOperator
from neuron_backend.lowering.lower import lower

__all__ = ["Lifted", "Results", "UnsupportedOperator", "decompositions", "lower", "trace", "trim", "used_inputs"]
