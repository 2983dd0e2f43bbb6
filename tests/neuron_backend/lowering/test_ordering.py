"""Sorting is stable, puts NaN last and takes both zeros for equal, as PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable_with_nan_greatest_and_zeros_equal(check: Any, descending: bool) -> None:
    rows = torch.tensor([[3, math.nan, -0.0, 0.0, -math.inf, 3, math.inf, -0.0, math.nan, 1]])

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        values, places = torch.sort(x, dim=-1, descending=descending, stable=True)
        return [values, places, torch.argsort(x, dim=1, descending=descending, stable=True)]

    check(function, rows, tolerance=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float64])
def test_every_dtype_can_be_sorted_along_any_dimension(check: Any, dtype: torch.dtype) -> None:
    values = torch.tensor([[200, 3, 1], [0, 7, 255], [3, 3, 3]]).to(dtype)
    check(lambda x: [*x.sort(dim=0, stable=True), *x.sort(dim=-1, descending=True, stable=True)], values)


def test_largest_smallest_and_middle_values_agree(check: Any) -> None:
    torch.manual_seed(0)
    values = torch.randperm(60).reshape(3, 20).float()

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            *x.topk(4),
            *x.topk(2, dim=0, largest=False),
            *x.kthvalue(3, 1),
            *x.kthvalue(2, 0, keepdim=True),
            *x.median(1),
            x.median(),
            torch.msort(x),
        ]

    check(function, values)


def test_rank_0_tensors_are_sorted_already(check: Any) -> None:
    check(lambda x: [*x.sort(0), *x.topk(1), *x.kthvalue(1, 0), *x.median(0)], torch.tensor(2.0))
