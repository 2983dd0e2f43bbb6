"""Matrix products, convolutions, pooling and interpolation, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

Function = Callable[..., torch.Tensor]

PRODUCTS: dict[str, Function] = {
    "mm": lambda a, b, _v: a[0] @ b[0],
    "mv": lambda a, _b, v: a[0] @ v,
    "vector from the left": lambda _a, b, v: v @ b[0],
    "dot": lambda _a, _b, v: v @ v,
    "bmm": lambda a, b, _v: a @ b,
    "broadcast batch": lambda a, b, _v: a[:, None] @ b[None],
    "addmm": lambda a, b, v: torch.addmm(v[:3], a[0], b[0], beta=0.5, alpha=2),
    "addmv": lambda a, _b, v: torch.addmv(v[:2], a[0], v, beta=2, alpha=3),
    "baddbmm": lambda a, b, v: torch.baddbmm(v[:3], a, b, beta=2, alpha=0.5),
    "addbmm": lambda a, b, v: torch.addbmm(v[:3], a, b, beta=2, alpha=0.5),
    "addr": lambda a, _b, v: torch.addr(a[0], v[:2], v),
    "linear": lambda a, b, v: functional.linear(a, b[0].t(), v[:3]),
    "einsum": lambda a, b, _v: torch.einsum("bij,bjk->ik", a, b),
    "outer": lambda _a, _b, v: torch.outer(v, v),
    "tensordot": lambda a, b, _v: torch.tensordot(a, b, dims=([0, 2], [0, 1])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.share(1)
def test_products_of_matrices_agree(check_table: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    table = PRODUCTS
    if dtype == torch.int32:
        table = {name: f for name, f in table.items() if not name.startswith(("add", "badd"))}
    inputs = [torch.randint(-4, 5, shape).to(dtype) for shape in ((3, 2, 4), (3, 4, 3), (4,))]
    check_table(table, *inputs)


def test_beta_0_keeps_nan_of_the_first_input_out(check: Any) -> None:
    nan, a, b = torch.full((2, 2), math.nan), torch.ones(2, 3), torch.ones(3, 2)

    def function(nan: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.addmm(nan, a, b, beta=0),
            torch.baddbmm(nan[None], a[None], b[None], beta=0),
            torch.addmv(nan[0], a, b[:, 0], beta=0, alpha=2),
            torch.addbmm(nan, a[None], b[None], beta=0),
            torch.addmm(nan, a, b),
        ]

    check(function, nan, a, b)


def _gradients(function: Function) -> Callable[..., list[torch.Tensor]]:
    """The function's result and its gradients by every floating-point input, as one functional graph."""

    def both(*inputs: torch.Tensor) -> list[torch.Tensor]:
        result, pull = torch.func.vjp(function, *inputs)
        weights = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).cos()
        return [result, *pull(weights)]

    return both


CONVOLUTIONS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "1d": (functional.conv1d, (2, 3, 9), (4, 3, 3)),
    "1d, stride leaves a rest": (lambda x, w: functional.conv1d(x, w, stride=3, padding=1), (2, 3, 9), (4, 3, 4)),
    "2d": (lambda x, w: functional.conv2d(x, w, torch.ones(4)), (2, 3, 7, 6), (4, 3, 3, 2)),
    "2d, all": (
        lambda x, w: functional.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(2, 1), groups=2),
        (2, 4, 9, 8),
        (6, 2, 3, 3),
    ),
    "2d, depthwise": (lambda x, w: functional.conv2d(x, w, padding=1, groups=4), (1, 4, 5, 5), (8, 1, 3, 3)),
    "2d, same": (lambda x, w: functional.conv2d(x, w, padding="same"), (1, 2, 5, 5), (3, 2, 3, 5)),
    "3d": (lambda x, w: functional.conv3d(x, w, stride=2, padding=1), (1, 2, 5, 5, 4), (3, 2, 3, 3, 3)),
    "transposed 1d": (lambda x, w: functional.conv_transpose1d(x, w, stride=2, output_padding=1), (2, 3, 5), (3, 2, 4)),
    "transposed 2d": (
        lambda x, w: functional.conv_transpose2d(
            x, w, stride=(2, 3), padding=1, output_padding=(1, 2), groups=2, dilation=(1, 2)
        ),
        (2, 4, 4, 3),
        (4, 3, 3, 3),
    ),
    "transposed 2d, wide output padding": (
        lambda x, w: functional.conv_transpose2d(x, w, output_padding=1, dilation=2),
        (1, 2, 4, 4),
        (2, 3, 3, 3),
    ),
    "transposed 3d": (lambda x, w: functional.conv_transpose3d(x, w, stride=2), (1, 2, 3, 2, 2), (2, 2, 2, 2, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.share(3)
def test_convolutions_and_both_their_gradients_agree(check: Any, name: str) -> None:
    function, image, kernel = CONVOLUTIONS[name]
    torch.manual_seed(0)
    check(_gradients(function), torch.randn(image), torch.randn(kernel), tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convolutions_of_short_floats_are_summed_in_single_precision(
    lowered: Any, run_xla: Any, same: Any, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 64, 6, 6).to(dtype), torch.randn(2, 64, 3, 3).to(dtype)
    result = run_xla(lowered(lambda x, w: [functional.conv2d(x, w)], [x, w]), [x, w])
    same(result, [functional.conv2d(x.double(), w.double()).to(dtype)])


POOLS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "max 1d": (lambda x: functional.max_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "max 2d": (lambda x: functional.max_pool2d(x, 2), (2, 3, 6, 8)),
    "max 2d, overlapping": (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 2, 7, 8)),
    "max 2d, dilated": (lambda x: functional.max_pool2d(x, 2, 1, dilation=2), (1, 2, 6, 6)),
    "max 2d, unbatched": (lambda x: functional.max_pool2d(x, 2), (3, 6, 8)),
    "max 3d": (lambda x: functional.max_pool3d(x, 2, 2), (1, 2, 4, 4, 4)),
    "average 1d": (lambda x: functional.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "average 2d": (lambda x: functional.avg_pool2d(x, 2), (2, 3, 6, 8)),
    "average 2d, padded": (lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (1, 2, 7, 8)),
    "average 2d, padding not counted": (
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (1, 2, 7, 8),
    ),
    "average 2d, own divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), (1, 2, 4, 4)),
    "average 3d": (lambda x: functional.avg_pool3d(x, 2, 1, 1), (1, 2, 4, 3, 4)),
    "adaptive average 1d": (lambda x: functional.adaptive_avg_pool1d(x, 3), (2, 2, 7)),
    "adaptive average 2d, to one": (lambda x: functional.adaptive_avg_pool2d(x, 1), (2, 2, 5, 4)),
    "adaptive average 2d, uneven": (lambda x: functional.adaptive_avg_pool2d(x, (3, 5)), (2, 2, 7, 8)),
    "adaptive average 2d, larger": (lambda x: functional.adaptive_avg_pool2d(x, (6, 5)), (1, 2, 4, 3)),
    "adaptive average 3d": (lambda x: functional.adaptive_avg_pool3d(x, (2, 2, 3)), (1, 2, 5, 4, 5)),
    "adaptive max 1d": (lambda x: functional.adaptive_max_pool1d(x, 3), (2, 2, 7)),
    "adaptive max 2d": (lambda x: functional.adaptive_max_pool2d(x, (3, 5)), (2, 2, 7, 8)),
    "adaptive max 3d": (lambda x: functional.adaptive_max_pool3d(x, 2), (1, 2, 5, 4, 5)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.share(3)
def test_pools_and_their_gradients_agree(check: Any, name: str) -> None:
    function, shape = POOLS[name]
    torch.manual_seed(0)
    check(_gradients(function), torch.randn(shape))


UPSAMPLES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "nearest 1d": (lambda x: functional.interpolate(x, scale_factor=2), (1, 2, 5)),
    "nearest 2d, down": (lambda x: functional.interpolate(x, size=(3, 4)), (1, 2, 5, 7)),
    "nearest 3d": (lambda x: functional.interpolate(x, size=(3, 5, 2)), (1, 1, 2, 3, 4)),
    "nearest, exact": (lambda x: functional.interpolate(x, scale_factor=1.7, mode="nearest-exact"), (1, 2, 5, 4)),
    "linear": (lambda x: functional.interpolate(x, size=9, mode="linear"), (2, 2, 4)),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=2.5, mode="bilinear"), (1, 2, 4, 3)),
    "bilinear, corners": (
        lambda x: functional.interpolate(x, size=(7, 2), mode="bilinear", align_corners=True),
        (1, 2, 4, 3),
    ),
    "bilinear, to one": (
        lambda x: functional.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True),
        (1, 2, 4, 3),
    ),
    "trilinear": (lambda x: functional.interpolate(x, size=(3, 5, 2), mode="trilinear"), (1, 1, 2, 3, 4)),
}


@pytest.mark.parametrize("name", UPSAMPLES)
@pytest.mark.share(2)
def test_interpolations_and_their_gradients_agree(check: Any, name: str) -> None:
    function, shape = UPSAMPLES[name]
    torch.manual_seed(0)
    check(_gradients(function), torch.randn(shape))


def test_pooled_places_follow_pytorch_for_ties_nan_and_empty_windows(check: Any) -> None:
    image = torch.tensor([[1, 1, math.nan, 2], [1, 1, math.nan, 3], [-math.inf, -math.inf, 0, 0], [-math.inf] * 4])

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            *functional.max_pool2d_with_indices(x[None, None], 2),
            *functional.max_pool2d_with_indices(x[None, None], 3, 1, 1),
            *functional.adaptive_max_pool2d_with_indices(x[None, None], 2),
        ]

    check(function, image)
