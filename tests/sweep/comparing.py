"""Whether results are the CPU's: shape, dtype, strides and values."""

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

    ``precise`` are the results of the same call in float32, where the CPU's own are in a 16-bit type: the values of
    either are right.
    """
    if len(results) != len(expected):
        return f"{len(results)} results where the CPU has {len(expected)}"
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        text = _different(result, wanted, None if precise is None else precise[position], shapes_only=shapes_only)
        if text:
            return f"result {position}: {text}"
    return ""


def _different(
    result: torch.Tensor | None, wanted: torch.Tensor | None, precise: torch.Tensor | None, *, shapes_only: bool
) -> str:
    if result is None or wanted is None:
        if result is None and wanted is None:
            return ""
        other = wanted if result is None else result
        return "missing" if other is not None and other.count_nonzero() else ""  # an absent gradient is a zero one
    if (result.dtype, result.shape) != (wanted.dtype, wanted.shape):
        return f"{result.dtype}{list(result.shape)} where the CPU has {wanted.dtype}{list(wanted.shape)}"
    if _strides(result) != _strides(wanted):
        return f"strides {list(result.stride())} where the CPU has {list(wanted.stride())} for {list(wanted.shape)}"
    text = "" if shapes_only else _unequal(_plain(result), _plain(wanted))
    right = text and precise is not None and not _unequal(_plain(result), _plain(precise).to(result.dtype))
    return "" if right else text


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that say where an element lies: those of axes that have more than one."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return []
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _unequal(result: torch.Tensor, wanted: torch.Tensor) -> str:
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
