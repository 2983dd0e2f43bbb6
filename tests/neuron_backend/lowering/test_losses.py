"""The chunked cross entropy of a linear layer: values and gradients of PyTorch's own kernel, whatever is ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.modules.linear_cross_entropy import (
    _linear_cross_entropy_batch_chunked,
    _linear_cross_entropy_batch_chunked_no_reduction,
)


def _inputs(dtype: torch.dtype, *, ignored: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = ((5, 3), (7, 3), (7,), (7,))
    x, matrix, bias, weight = (torch.randn(size, dtype=dtype, generator=draw) for size in sizes)
    return [x, matrix, torch.tensor([1, 6, ignored, 0, 3]), bias, weight.abs()]


def test_a_chunked_loss_comes_with_the_gradients_of_pytorch(check: Any) -> None:
    def losses(*given: torch.Tensor) -> list[torch.Tensor]:
        with_all = ("mean", -100, 0.0, 2, "balanced", torch.float64, True, True, True, True)
        without = ("sum", 2, 0.0, 2, "compact", torch.float64, True, True, False, False)
        x, matrix, target, *_ = given
        first = _linear_cross_entropy_batch_chunked(*given, *with_all)
        second = _linear_cross_entropy_batch_chunked(x, matrix, target.abs() % 7, None, None, *without)
        return [*first, *second]

    check(losses, *_inputs(torch.float64, ignored=-100))


def test_a_chunked_loss_of_each_row_in_bfloat16_is_summed_in_float32(check: Any) -> None:
    def losses(*given: torch.Tensor) -> list[torch.Tensor]:
        return [_linear_cross_entropy_batch_chunked_no_reduction(*given, 4, 2, "balanced", torch.float32)]

    check(losses, *_inputs(torch.bfloat16, ignored=4))


def test_a_batch_that_is_ignored_whole_has_no_mean(check: Any) -> None:
    def losses(*given: torch.Tensor) -> list[torch.Tensor]:
        options = ("mean", -100, 0.0, 2, "balanced", torch.float32, True, False, False, False)
        return [_linear_cross_entropy_batch_chunked(*given, *options)[0]]

    x, matrix, target, *_ = _inputs(torch.float32, ignored=0)
    check(losses, x, matrix, torch.full_like(target, -100), torch.zeros(7), torch.ones(7))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_of_a_row_that_end_early_count_once_and_no_others_do(reduction: str) -> None:
    """torch's own decomposition of this loss counts label 0 for each that is missing."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=draw)
    labels = torch.tensor([[3, 0, -1, 1], [0, 1, -1, 2], [-1, 0, 1, 2], [0, 1, 2, 3], [2, 2, -1, 0]])
    for rows in (slice(None), 0):
        ours, reference = (x[rows].to(device).requires_grad_() for device in ("neuron", "cpu"))
        value = functional.multilabel_margin_loss(ours, labels[rows].to("neuron"), reduction=reduction)
        expected = functional.multilabel_margin_loss(reference, labels[rows], reduction=reduction)
        torch.testing.assert_close(value.cpu(), expected)
        (gradient,), (right,) = (
            torch.autograd.grad(each.sum(), [leaf]) for each, leaf in ((value, ours), (expected, reference))
        )
        torch.testing.assert_close(gradient.cpu(), right)
