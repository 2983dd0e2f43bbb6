"""Distances, embedding bags, segments, histograms, selections: operators that PyTorch has no decomposition of."""

# ruff: noqa: FBT003  torch's operators take booleans by position

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten
Function = Callable[..., torch.Tensor]

DISTANCES: dict[str, Function] = {
    f"{name}, p={p}": lambda x, y, p=p, function=function: function(x, y, p)
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
    for name, function in {
        "cdist": lambda x, y, p: aten._cdist_forward(x, y, p, None),
        "cdist backward": lambda x, y, p: aten._cdist_backward(
            torch.ones_like(x[..., :1] @ y[..., :1].mT), x, y, p, torch.cdist(x, y, p)
        ),
        "pdist": lambda x, _y, p: aten._pdist_forward(x, p),
        "pdist backward": lambda x, _y, p: aten._pdist_backward(aten._pdist_forward(x, p) + 1, x, p, torch.pdist(x, p)),
    }.items()
}


@pytest.mark.soak
def test_distances_and_their_gradients_are_pytorchs_for_every_order(check_table: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    y[2] = x[1]  # no distance at all
    x[3, 1] = x[2, 1]  # none along one dimension
    check_table(DISTANCES, x, y)


def test_many_rows_a_batch_and_no_columns_have_distances(check: Any) -> None:
    torch.manual_seed(0)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.cdist(x, y),
            torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
            torch.cdist(x[0, :, :0], y[:, :0]),
            torch.pdist(y[:1]),
        ]

    check(function, torch.randn(2, 30, 3), torch.randn(4, 3), tolerance=1e-4)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.share(1)
def test_bags_of_an_embedding_have_pytorchs_values_and_gradients(mode: int, padding: int, check: Any) -> None:
    """Offsets that repeat make empty bags; the bag [1, 1] holds padding alone where that is 1."""
    torch.manual_seed(0)
    indices, offsets = torch.tensor([0, 3, 1, 1, 2, 0, 2]), torch.tensor([0, 2, 2, 4, 7])

    def forward(weight: torch.Tensor, gradient: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
        bags = aten._embedding_bag(weight, indices, offsets, False, mode, False, None, True, padding)
        back = aten._embedding_bag_backward(gradient, indices, offsets, *bags[1:], 4, False, mode, False, None, padding)
        return [bags[0], back]

    check(forward, torch.randn(4, 3), torch.randn(4, 3), indices, offsets)


def test_weights_per_sample_scale_a_bag(check: Any) -> None:
    torch.manual_seed(0)
    indices, offsets = torch.tensor([0, 3, 1, 1, 2]), torch.tensor([0, 2])

    def function(weight: torch.Tensor, gradient: torch.Tensor, samples: torch.Tensor) -> list[torch.Tensor]:
        bags = aten._embedding_bag(weight, indices, offsets, False, 0, False, samples, False, 3)
        return [
            bags[0],
            aten._embedding_bag_backward(gradient, indices, offsets, *bags[1:], 4, False, 0, False, samples, 3),
            aten._embedding_bag_per_sample_weights_backward(gradient, weight, indices, offsets, bags[1], 0, 3),
        ]

    check(function, torch.randn(4, 3), torch.randn(2, 3), torch.rand(5))


def test_frequencies_divide_the_gradient_of_a_bag(lowered: Any, run_xla: Any, same: Any) -> None:
    """The CPU takes the frequency of another index where indices repeat: so the expected values are written out."""
    indices, offsets = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 2])

    def function(weight: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        bags = aten._embedding_bag(weight, indices, offsets, True)
        return [aten._embedding_bag_dense_backward(gradient, indices, *bags[1:], 3, True, 0, None)]

    inputs = [torch.zeros(3, 1), torch.tensor([[1.0], [10.0]])]
    same(run_xla(lowered(function, inputs), inputs), [torch.tensor([[1.0], [5.5], [10.0]])])


SEGMENTS: dict[str, Function] = {
    f"{reduction}, initial {initial}, {what}": lambda x, lengths, reduction=reduction, initial=initial, what=what: (
        torch.segment_reduce(
            x,
            reduction,
            **(
                {"lengths": lengths}
                if what == "lengths"
                else {"offsets": torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))}
            ),
            initial=initial,
        )
    )
    for reduction in ("sum", "mean", "max", "min", "prod")
    for initial in (None, 2.0)
    for what in ("lengths", "offsets")
}


def test_segments_are_reduced_empty_ones_and_nan_included(check_table: Any) -> None:
    x = torch.tensor([[1.0, 2], [0, 5], [3, math.nan], [4, 0], [-1, 0], [7, 2]])
    check_table(SEGMENTS, x, torch.tensor([2, 0, 1, 3]))


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.share(1)
def test_gradients_of_segments_are_those_of_each_element(reduction: str, check: Any) -> None:
    def function(x: torch.Tensor, lengths: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        output = torch.segment_reduce(x, reduction, lengths=lengths)
        return [aten._segment_reduce_backward(gradient, output, x, reduction, lengths=lengths)]

    x = torch.tensor([[1.0, 2], [0, 5], [3, 3], [4, 0], [-1, 0], [4, 2]])
    check(function, x, torch.tensor([2, 1, 3]), torch.tensor([[1.0, 2], [3, 4], [5, 6]]))


def test_nan_reaches_the_gradients_of_the_others_of_its_segment_and_not_its_own() -> None:
    found = []
    for device in ("cpu", "neuron"):
        x = torch.tensor([1, math.nan, 3, 4, 0, math.nan], device=device, requires_grad=True)
        lengths = torch.tensor([1, 2, 3], device=device)
        torch.segment_reduce(x, "prod", lengths=lengths, unsafe=True).sum().backward()
        assert x.grad is not None
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


HISTOGRAMS: dict[str, Function] = {
    "histc": lambda x: torch.histc(x, 5),
    "histc, range": lambda x: torch.histc(x, 4, -1, 1),
    "histc, one value": lambda x: torch.histc(x[:1], 3),
    "histogram": lambda x: torch.histogram(x, 4)[0],
    "histogram, edges": lambda x: torch.histogram(x, 4)[1],
    "histogram, range": lambda x: torch.histogram(x, 4, range=(-1.0, 1.0)).hist,
    "histogram, given": lambda x: torch.histogram(x, torch.tensor([-1.0, 0, 0.25, 2]), weight=x.abs()).hist,
    "histogram, density": lambda x: torch.histogram(x, torch.tensor([-1.0, 0, 0.25, 2]), density=True).hist,
    "two dimensions": lambda x: torch.histogramdd(x.reshape(-1, 2), [3, 2]).hist,
}


def test_counts_in_bins_are_pytorchs_at_the_ends_too(check_table: Any) -> None:
    check_table(HISTOGRAMS, torch.tensor([-1.0, 0.1, 0.2, 0.2, 0.9, 1.0, 2.0, -3.0]))


SELECTIONS: dict[str, Function] = {
    "mode": lambda x: x.mode(1).values,
    "mode, place": lambda x: x.mode(1).indices,
    "mode, first dimension": lambda x: x.mode(0, keepdim=True).values,
    "mode, rank 0": lambda x: x[0, 0].mode().values,
    "nonzero_static": lambda x: torch.nonzero_static(x, size=4),
    "nonzero_static, room": lambda x: torch.nonzero_static(x - 1, size=20, fill_value=7),
    "masked_scatter_backward": lambda x: aten.masked_scatter_backward(x, x > 1, [3, 3]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_elements_are_picked_by_rank_and_by_mask(dtype: torch.dtype, check_table: Any) -> None:
    check_table(SELECTIONS, torch.tensor([[1, 2, 2, 1, 3], [0, 0, 1, 1, 0], [5, 4, 3, 2, 1]]).to(dtype))


def test_the_median_without_nan_is_the_lower_middle(check: Any) -> None:
    """Which place has the NaN of a row of nothing else is left open."""
    x = torch.tensor([[1.0, math.nan, 3, 2], [math.nan, math.nan, math.nan, math.nan], [4, 3, 2, 1]])

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.nanmedian(1).values,
            x[::2].nanmedian(1).indices,
            x.nanmedian(),
            x.nanmedian(0, keepdim=True).values,
            x[0, 0].nanmedian(0).values,
        ]

    check(function, x)
