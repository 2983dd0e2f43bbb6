"""Operators in the element types beside float32 that a table of float32 does not show."""

from __future__ import annotations

import math
from typing import Any

import torch


def test_the_exponential_of_a_16_bit_matrix_is_that_in_float32(lowered: Any, run_xla: Any, same: Any) -> None:
    x = torch.randn((2, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    module = lowered(lambda x: [torch.linalg.matrix_exp(x)], [x])
    same(run_xla(module, [x]), [torch.linalg.matrix_exp(x.float()).to(x.dtype)])


def test_a_running_log_sum_of_complex_numbers_has_the_branches_of_the_cpu(check: Any) -> None:
    x = torch.randn((3, 9), dtype=torch.complex64, generator=torch.Generator().manual_seed(0)) * 6
    x[0, 2] = complex(-math.inf, 0)
    x[1, 4] = complex(math.nan, 0)
    check(lambda x: [x.logcumsumexp(1), x[0, 0].logcumsumexp(0)], x, tolerance=1e-5)


def test_uniform_complex_numbers_have_both_parts_between_the_bounds(lowered: Any, run_xla: Any) -> None:
    x = torch.zeros(200, dtype=torch.complex64)
    module = lowered(lambda x: [x.clone().uniform_(-1.0, 3.0)], [x])
    seed = [torch.tensor([7, 0], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)]
    (drawn,) = run_xla(module, [x, *seed])
    for part in (drawn.real, drawn.imag):
        assert -1 <= part.min() < 0
        assert 2 < part.max() < 3
    assert (drawn.real - drawn.imag).abs().max() > 1


def test_a_weighted_bag_and_its_gradients_in_16_bits_are_summed_in_float32(
    lowered: Any, run_xla: Any, same: Any
) -> None:
    """Each row comes twice, with weights that all but cancel: rounding the products would leave noise."""
    draw = torch.Generator().manual_seed(0)
    table, samples, gradient = (torch.randn(shape, generator=draw).half() for shape in ((8, 3), (32,), (2, 3)))
    samples = (8 + samples).repeat_interleave(2)
    samples[1::2] = -samples[1::2] - 1 / 128
    given = [table, samples, gradient]
    indices, offsets = torch.randint(8, (32,), generator=draw).repeat_interleave(2), torch.tensor([0, 20])
    which, sizes = (torch.arange(64) >= 20).long(), torch.tensor([20, 44])
    aten = torch.ops.aten

    def bags(table: torch.Tensor, samples: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        return [
            aten._embedding_bag(table, indices, offsets, per_sample_weights=samples)[0],
            aten._embedding_bag_dense_backward(gradient, indices, which, sizes, sizes[:0], 8, 0, 0, samples),
            aten._embedding_bag_per_sample_weights_backward(gradient, table, indices, offsets, which, 0),
        ]

    expected = bags(*(each.float() for each in given))
    same(run_xla(lowered(bags, given), given), [each.half() for each in expected])
