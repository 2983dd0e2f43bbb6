"""Whether results are the CPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# Relative and absolute, of the whole chain of an entry's operators; the rest is exact.
_TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float16: 4e-3,
    torch.complex32: 4e-3,
    torch.bfloat16: 3e-2,
}


def difference(
    results: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | None],
    *,
    shapes_only: bool = False,
    precise: Sequence[torch.Tensor | None] | None = None,
) -> str:
    """Say in one line how ``results`` differ, or nothing.

    ``precise`` are the results of the same call in float32, where the CPU's own are in a 16-bit type: either is right.
    """
    if len(results) != len(expected):
        return f"{len(results)} results where the CPU has {len(expected)}"
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        text = _different(result, wanted, shapes_only=shapes_only)
        if text and precise is not None and result is not None and precise[position] is not None:
            text = _different(result, precise[position].to(result.dtype), shapes_only=shapes_only) and text
        if text:
            return f"result {position}: {text}"
    return ""


def _different(result: torch.Tensor | None, wanted: torch.Tensor | None, *, shapes_only: bool) -> str:
    if result is None or wanted is None:
        if result is None and wanted is None:
            return ""
        other = wanted if result is None else result
        return "missing" if other is not None and other.count_nonzero() else ""  # an absent gradient is a zero one
    result, wanted = (_plain(each) for each in (result, wanted))
    if (result.dtype, result.shape) != (wanted.dtype, wanted.shape):
        return f"{result.dtype}{list(result.shape)} where the CPU has {wanted.dtype}{list(wanted.shape)}"
    if shapes_only:
        return ""
    tolerance = _TOLERANCE.get(wanted.dtype, 0)
    try:
        torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split("\n\n")[-1].split())
    return ""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().cpu()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    return dense.resolve_conj().resolve_neg().contiguous()
