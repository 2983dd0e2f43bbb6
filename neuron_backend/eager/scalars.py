"""Which Python floats of a call become inputs of its program, so that a learning rate is no reason to compile.

An operator is traced twice, each time with another set of improbable values (sentinels) in place of its floats. If the
two graphs differ in nothing but these, every sentinel stands for the float itself and is lifted to a rank-0 input;
otherwise a value was computed from it, and the floats are compiled in.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.eager.lifting import LIFTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

# 0, 1 and -1 are special to some of the operators that lift.
_SPECIAL = frozenset({0.0, 1.0, -1.0})


def lifts(name: str) -> bool:
    """Whether floats of the operator called ``name`` (``aten::mul_``) may become inputs."""
    namespace, _, base = name.partition("::")
    return namespace == "aten" and base.removesuffix("_") in LIFTED


def is_lifted(value: object) -> bool:
    """Whether ``value`` becomes an input where its operator lifts: a finite float that no operator treats specially."""
    return type(value) is float and value not in _SPECIAL and math.isfinite(value)


def sentinels(count: int, which: int) -> list[float]:
    """Return ``count`` distinct floats that occur in no operator; ``which`` is 0 or 1 for two disjoint sets."""
    return [1.0173028564453125 + 0.0078907012939453125 * (2 * position + which) for position in range(count)]


def dtype_of(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the type in which ``tensors`` are computed with: that of a lifted scalar."""
    double = (torch.float64, torch.complex128)
    wide = torch.get_default_dtype() is torch.float64 or any(tensor.dtype in double for tensor in tensors)
    return torch.float64 if wide else torch.float32


def differ_only_in(one: GraphModule, other: GraphModule, pairs: dict[float, float]) -> bool:
    """Whether two graphs are equal but for floats of ``pairs``: a key in ``one`` where ``other`` has its value."""
    first, second = _constants(one), _constants(other)
    if len(first) != len(second):
        return False
    for left, right in zip(first, second, strict=True):
        if type(left) is float and left in pairs:
            if type(right) is not float or pairs[left] != right:
                return False
        elif type(left) is not type(right) or left != right:
            return False
    return True


@lru_cache(maxsize=4096)
def tensor(value: float, dtype: torch.dtype) -> torch.Tensor:
    """Return ``value`` as a rank-0 host tensor, to be read only. No two floats that may be lifted are equal."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _constants(graph: GraphModule) -> list[Any]:
    """Return every node's target and arguments, flat and in order, nodes by name."""
    found: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            found.append(len(value))
            for each in value:
                collect(each)
        elif isinstance(value, dict):
            for name in sorted(value):
                found.append(name)
                collect(value[name])
        elif isinstance(value, torch.fx.Node):
            found.append(value.name)
        else:
            found.append(value)

    for node in graph.graph.nodes:
        found.append(str(node.target))
        collect(node.args)
        collect(node.kwargs)
    return found
