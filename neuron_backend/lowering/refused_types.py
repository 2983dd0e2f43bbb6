"""Which element types operators refuse: those that no kernel of torch's has them for, and StableHLO computes in.

A softmax of integers would be one of zeros and ones. torch's shape inference lets most of these calls pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.errors import Invalid
from neuron_backend.lowering.validity import refuses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_backend.lowering.validity import Condition

_BYTES = frozenset({torch.uint8})
_LONG = frozenset({torch.int64})
_FLOATS_ALONE = """
_log_softmax _softmax elu frac gelu glu hardshrink hardsigmoid hardswish leaky_relu log_sigmoid_forward mish
silu softplus huber_loss mse_loss smooth_l1_loss logaddexp
grid_sampler_2d grid_sampler_3d
upsample_linear1d upsample_trilinear3d
"""
_FLOATS_AND_BYTES = """
upsample_nearest1d upsample_nearest2d upsample_nearest3d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
_FLOATS_AND_LONG = "avg_pool2d avg_pool3d"
_NO_BOOLEANS = "relu round trunc"
_COMPLEX_TOO = frozenset({"logaddexp", "silu"})


def _only(operator: str, integers: frozenset[torch.dtype]) -> None:
    """Let ``operator`` refuse complex numbers, and whole ones of other types than ``integers``, as its first tensor."""

    @refuses(f"aten.{operator}.default")
    def check(x: Any, *_rest: Any, **_options: Any) -> Iterator[Condition]:
        whole = not (x.dtype.is_floating_point or x.dtype.is_complex)
        if (whole and x.dtype not in integers) or (x.dtype.is_complex and operator not in _COMPLEX_TOO):
            raise Invalid(f"it is not there for {x.dtype}")
        yield from ()


_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
OPERATORS: dict[str, frozenset[torch.dtype]] = {
    **dict.fromkeys(_FLOATS_ALONE.split(), frozenset()),
    **dict.fromkeys(_FLOATS_AND_BYTES.split(), _BYTES),
    **dict.fromkeys(_FLOATS_AND_LONG.split(), _LONG),
    **dict.fromkeys(_NO_BOOLEANS.split(), _INTEGERS),
}
"""The operators and the whole numbers that each takes."""

for _operator, _integers in OPERATORS.items():
    _only(_operator, _integers)
