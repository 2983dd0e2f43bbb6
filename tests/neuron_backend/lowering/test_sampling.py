"""Grids, interpolation, fractional pooling, alignments: reading between elements, and the gradients of it."""

# ruff: noqa: FBT003  torch's operators take booleans by position

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("dimensions", "align_corners"),
    [(3, True), *(pytest.param(*rest, marks=pytest.mark.soak) for rest in ((2, False), (2, True), (3, False)))],
)
@pytest.mark.share(1)
def test_a_grid_is_sampled_as_pytorch_does_inside_and_out(dimensions: int, align_corners: bool, check: Any) -> None:
    """Every mode and padding, with places far outside; gradients by image and by grid."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, *(4, 5, 3)[:dimensions])
    grid = torch.rand(2, *(3, 2, 2)[:dimensions], dimensions) * 3.4 - 1.7
    sample = getattr(aten, f"grid_sampler_{dimensions}d")
    backward = getattr(aten, f"grid_sampler_{dimensions}d_backward")
    modes = [(mode, padding) for mode in ((0, 1, 2) if dimensions == 2 else (0, 1)) for padding in (0, 1, 2)]

    def function(image: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for mode, padding in modes:
            value = sample(image, grid, mode, padding, align_corners)
            results += [value, *backward(value + 1, image, grid, mode, padding, align_corners, [True, True])]
        return results

    check(function, image, grid, tolerance=1e-4)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (9, 5), (4, 11)])
@pytest.mark.share(1)
def test_interpolation_with_antialias_and_cubic_gradients_are_pytorchs(
    size: tuple[int, int], align_corners: bool, check: Any
) -> None:
    torch.manual_seed(0)
    shape = [2, 2, 7, 6]

    def function(x: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        return [
            functional.interpolate(x, size, mode="bilinear", antialias=True, align_corners=align_corners),
            functional.interpolate(x, size, mode="bicubic", antialias=True, align_corners=align_corners),
            aten._upsample_bilinear2d_aa_backward(gradient, size, shape, align_corners),
            aten._upsample_bicubic2d_aa_backward(gradient, size, shape, align_corners),
            aten.upsample_bicubic2d_backward(gradient, size, shape, align_corners),
        ]

    check(function, torch.randn(shape), torch.randn(2, 2, *size), tolerance=1e-4)


def test_fractional_pooling_is_decided_by_its_random_samples(check: Any) -> None:
    torch.manual_seed(0)
    plane, volume = torch.rand(2, 3, 2), torch.rand(2, 3, 3)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        flat = aten.fractional_max_pool2d(x, [2, 3], [3, 1], plane)
        deep = aten.fractional_max_pool3d(y, [2, 2, 2], [2, 3, 2], volume)
        return [
            *flat,
            *deep,
            aten.fractional_max_pool2d_backward(flat[0], x, [2, 3], [3, 1], flat[1]),
            aten.fractional_max_pool3d_backward(deep[0], y, [2, 2, 2], [2, 3, 2], deep[1]),
        ]

    check(function, torch.randn(2, 3, 7, 6), torch.randn(2, 3, 5, 6, 4))


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.share(1)
def test_the_loss_over_alignments_and_its_gradient_are_pytorchs(concatenated: bool, check: Any) -> None:
    """Among the targets are a repeated label, one with no label, one too long for its sequence, and padding."""
    torch.manual_seed(0)
    steps, lengths = [6, 4, 2, 5], [3, 0, 3, 2]
    rows = torch.tensor([[1, 1, 2], [3, 3, 3], [1, 2, 3], [2, 1, 3]])
    targets = torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)]) if concatenated else rows

    def function(logits: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        log_probs = logits.log_softmax(2)
        loss, alpha = aten._ctc_loss(log_probs, targets, steps, lengths, 0, False)
        back = aten._ctc_loss_backward(gradient, log_probs, targets, steps, lengths, loss, alpha, 0, True)
        return [loss, back]

    check(function, torch.randn(6, 4, 4), torch.rand(4), tolerance=1e-4)


@pytest.mark.parametrize("padding", [[2, 1], [2, 1, 0, 3], [-1, 1, 2, -1]])
def test_the_gradient_of_replicated_padding_adds_up(padding: list[int], check: Any) -> None:
    dimensions = len(padding) // 2
    backward = getattr(aten, f"replication_pad{dimensions}d_backward")
    x = torch.arange(24.0).reshape(2, 3, 4)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        padded = functional.pad(x, padding, mode="replicate")
        return [backward(padded, x, padding)]

    check(function, x)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradients_of_margin_losses_are_pytorchs(p: int, reduction: int, check: Any) -> None:
    torch.manual_seed(0)
    target, labels = torch.tensor([2, 0]), torch.tensor([[2, 0, -1], [1, -1, 2]])

    def function(x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        outer = gradient if reduction == 0 else gradient[0]
        _, is_target = aten.multilabel_margin_loss_forward(x, labels, reduction)
        return [
            aten.multi_margin_loss_backward(outer, x, target, p, 0.5, weight, reduction),
            aten.multilabel_margin_loss_backward(outer, x, labels, reduction, is_target),
        ]

    check(function, torch.randn(2, 3), torch.rand(3), torch.rand(2))
