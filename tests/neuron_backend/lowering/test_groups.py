"""Grouped products of matrices: what a mixture of experts computes, forward and backward."""

from __future__ import annotations

import itertools

import pytest
import torch

import neuron_backend

OFFSETS = torch.tensor([2, 2, 5], dtype=torch.int32)  # the second group is empty, the last position is nobody's


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [((6, 8), (3, 8, 16)), ((8, 6), (6, 16)), ((3, 8, 16), (16, 6)), ((3, 8, 16), (3, 16, 8))],
    ids=["rows", "sums", "columns", "all"],
)
def test_each_group_is_multiplied_by_its_own(left, right, dtype):
    torch.manual_seed(0)
    one, other = (torch.randn(shape, device="neuron").to(dtype) for shape in (left, right))
    ends = None if len(left) == len(right) == 3 else OFFSETS
    neuron_backend.clear_fallback_ops()
    found = torch._grouped_mm(one, other, offs=None if ends is None else ends.to("neuron"))
    assert neuron_backend.get_fallback_ops() == {}
    torch.testing.assert_close(found.cpu(), expected(one.cpu(), other.cpu(), ends))


def expected(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    """Group by group, in the words of torch's documentation; zero for what is nobody's."""
    if ends is None:
        return left @ right
    bounds = [0, *ends.tolist()]
    spans = [slice(start, end) for start, end in itertools.pairwise(bounds)]
    if left.dim() == right.dim() == 2:
        return torch.stack([left[:, span] @ right[span] for span in spans])
    if right.dim() == 3:
        product = torch.zeros(left.shape[0], right.shape[2], dtype=left.dtype)
        for span, matrix in zip(spans, right, strict=True):
            product[span] = left[span] @ matrix
        return product
    product = torch.zeros(left.shape[1], right.shape[1], dtype=left.dtype)
    for span, matrix in zip(spans, left, strict=True):
        product[:, span] = matrix @ right[:, span]
    return product


def test_gradients_reach_rows_and_matrices():
    torch.manual_seed(0)
    rows, matrices = torch.randn(6, 8), torch.randn(3, 8, 16)
    weights = torch.randn(5, 16)

    def gradients(device: str) -> list[torch.Tensor]:
        one, other = (each.to(device).requires_grad_() for each in (rows, matrices))
        if device == "cpu":
            product = expected(one, other, OFFSETS)
        else:
            product = torch._grouped_mm(one, other, offs=OFFSETS.to(device))
        (product[:5] * weights.to(device)).sum().backward()
        return [one.grad.cpu(), other.grad.cpu()]

    torch.testing.assert_close(gradients("neuron"), gradients("cpu"))
