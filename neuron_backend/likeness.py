"""Whether two programs of one module computed the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of the largest element. Two compiles of one module may fuse and order sums differently, no more.
_TOLERANCE: Final = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
_LEAST: Final = 0.1  # 8-bit floats


def unlikeness(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> tuple[str, bool]:
    """Say how results differ beyond rounding, or nothing; and whether they are equal to the bit.

    Both are contiguous host tensors of one signature. Floats are compared by the largest element of their tensor, all
    else has to be equal.
    """
    equal = True
    for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if torch.equal(_bits(one), _bits(other)):
            continue
        equal = False
        text = _difference(one, other)
        if text:
            return f"output {position} ({str(one.dtype).removeprefix('torch.')}{list(one.shape)}) {text}", False
    return "", equal


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point():
        return f"has {int((one != other).sum())} other elements"
    tolerance = _TOLERANCE.get(one.dtype, _LEAST)
    one, other = one.double(), other.double()
    finite = one.isfinite() & other.isfinite()
    odd = ~finite & ~((one == other) | (one.isnan() & other.isnan()))
    if odd.any():
        return f"has {int(odd.sum())} other infinities or NaN"
    if not finite.any():
        return ""
    largest = float(torch.maximum(one.abs(), other.abs())[finite].max())
    distance = float((one - other).abs()[finite].max())
    if distance <= tolerance * largest:
        return ""
    return f"differs by {distance:.3g}, with elements up to {largest:.3g} and {tolerance:g} of that allowed"
