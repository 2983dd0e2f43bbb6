"""Operators that move elements without changing them, and how small the modules are that do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Function = Callable[..., torch.Tensor]

TABLE: dict[str, Function] = {
    "view": lambda x: x.view(6, 20),
    "view, inferred": lambda x: x.view(-1, 4),
    "reshape of transposed": lambda x: x.transpose(0, 2).reshape(8, 15),
    "permute, negative": lambda x: x.permute(-1, 0, -2, 1),
    "transpose, negative": lambda x: x.transpose(-1, 1),
    "t": lambda x: x[0, 0].t(),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze, last": lambda x: x.unsqueeze(-1),
    "expand": lambda x: x[:1].expand(3, 3, 4, 5),
    "expand, more dims": lambda x: x[0, 0].expand(2, 2, -1, -1),
    "repeat": lambda x: x[0].repeat(2, 1, 3),
    "repeat, more dims": lambda x: x[0, 0].repeat(2, 1, 1, 2),
    "repeat_interleave": lambda x: x[0, 0].repeat_interleave(3, 0),
    "cat": lambda x: torch.cat([x, x[:, :1]], -3),
    "cat with empty": lambda x: torch.cat([torch.empty(0), x[0, 0]], 0),
    "stack": lambda x: torch.stack([x, x + 1], -1),
    "slice": lambda x: x[:, 1:3, :, ::2],
    "slice, negative": lambda x: x[..., -3:-1],
    "slice, beyond": lambda x: x[..., 3:1000],
    "select, negative": lambda x: x.select(-2, -1),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(2, -1)[2],
    "split, sizes": lambda x: x.split([1, 3, 1], -1)[1],
    "chunk": lambda x: x.chunk(3, -1)[2],
    "unbind": lambda x: x.unbind(1)[2],
    "flip": lambda x: x.flip(0, -1),
    "roll": lambda x: x.roll((1, -2), (0, 3)),
    "rot90": lambda x: x[0, 0].rot90(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 3), value=7.0),
    "pad, negative": lambda x: torch.nn.functional.pad(x, (-1, 2)),
    "pad, reflect": lambda x: torch.nn.functional.pad(x, (1, 2, 1, 0), mode="reflect"),
    "pad, replicate": lambda x: torch.nn.functional.pad(x, (1, 2, 1, 0), mode="replicate"),
    "pad, circular": lambda x: torch.nn.functional.pad(x, (1, 2, 1, 0), mode="circular"),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "diagonal": lambda x: x.diagonal(1, -1, -2),
    "diagonal, below": lambda x: x.diagonal(-2, 2, 3),
    "diag_embed": lambda x: torch.diag_embed(x[0, 0], 1),
    "trace": lambda x: x[0, 0].trace(),
    "unfold": lambda x: x.unfold(3, 3, 1),
    "im2col": lambda x: torch.nn.functional.unfold(x, 2, stride=2),
    "col2im": lambda x: torch.nn.functional.fold(x.reshape(2, 12, 5), (2, 6), 2),
    "pixel_shuffle": lambda x: torch.nn.functional.pixel_shuffle(x.reshape(1, 4, 6, 5), 2),
    "nearest": lambda x: torch.nn.functional.interpolate(x, scale_factor=2),
    "bilinear": lambda x: torch.nn.functional.interpolate(x, size=(7, 3), mode="bilinear"),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="ij")[1],
    "as_strided, rows": lambda x: x.as_strided((3, 5), (10, 2), 1),
    "as_strided, transposed": lambda x: x.as_strided((5, 3), (1, 20)),
    "as_strided, windows": lambda x: x.as_strided((6, 4), (3, 1), 2),
    "as_strided, expanded": lambda x: x.as_strided((4, 3, 2), (5, 0, 1)),
    "as_strided, last step short": lambda x: x.as_strided((2, 5), (100, 4)),
    "as_strided of transposed": lambda x: x.transpose(0, 3).as_strided((4, 5), (6, 1), 3),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[..., :2] + 1, -1, 0, 4, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] + 1, 1, -1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[0, 0], x[0, 0].diagonal() + 1),
    "arange": lambda x: torch.arange(3, 20, 4) + x[0, 0, 0].long(),
    "arange, float": lambda x: torch.arange(0.5, 3, 0.5) + x[0, 0, 0],
    "arange, rounded": lambda x: torch.arange(0, 100, 0.1)[-5:] + 0 * x[0, 0, 0],
    "arange, int8": lambda x: torch.arange(0, 5, dtype=torch.int8) + x[0, 0, 0].char(),
    "linspace": lambda x: torch.linspace(0, 1, 5) + x[0, 0, 0],
    "eye": lambda x: torch.eye(4, 5) + x,
    "full, new": lambda x: x.new_full((2, 3), 1.5),
    "ones_like": torch.ones_like,
    "zeros": lambda x: torch.zeros(2, 3, dtype=torch.int32) + x[0, 0, :2, :3].int(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.share(1)
def test_elements_end_up_where_pytorch_puts_them(check_table: Any, dtype: torch.dtype) -> None:
    floats_only = {"nearest", "bilinear", "pad, reflect", "pad, replicate", "im2col", "col2im"}
    table = {name: f for name, f in TABLE.items() if dtype.is_floating_point or name not in floats_only}
    check_table(table, torch.arange(120).reshape(2, 3, 4, 5).to(dtype))


def test_in_place_writes_through_views_are_functional(check: Any) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.clone()
        y[1:, ::2] = 7
        y[0].add_(1)
        y.t()[2].mul_(2)
        y[..., -1:].zero_()
        return [y, y.diagonal()]

    check(function, torch.arange(20.0).reshape(4, 5))


def test_writes_to_an_input_are_seen_in_the_results(check: Any) -> None:
    check(lambda x: [x.mul_(2).add_(1), x], torch.ones(3))


def test_empty_tensors_pass_through_everything(check: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [
            x + 1,
            x.t(),
            x @ w,
            torch.cat([x, x]),
            x.reshape(4, 0),
            torch.relu(x).sum(1),
            w.t() @ x.t(),
            x.expand(2, 0, 4),
            w[:, 3:],
            torch.cat([w, w[:0]]),
            x.t() @ x,
        ]

    check(function, torch.empty(0, 4), torch.ones(4, 3))


def test_splitting_a_projection_makes_slices_and_no_table_of_indices(lowered: Any, text: Any) -> None:
    x = torch.ones(8, 64, 384)
    module = lowered(lambda x: list(x.split(128, -1)), [x])
    assert "stablehlo.slice" in text(module)
    assert "gather" not in text(module)
    assert len(module.code) < 1000


@pytest.mark.parametrize(
    ("size", "stride"), [((512, 256), (512, 2)), ((500, 64), (1024, 1)), ((256, 512), (1, 512)), ((509, 4), (3, 1))]
)
def test_views_by_strides_hold_no_table_of_indices(check: Any, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    module = check(lambda x: [x.as_strided(size, stride)], torch.arange(512 * 1024.0))
    assert len(module.code) < 1500


def test_filled_tensors_and_ramps_stay_small_whatever_their_size(lowered: Any) -> None:
    module = lowered(lambda x: [torch.full((1000, 1000), 3.0) + x, torch.arange(1_000_000) + x], [torch.ones(1)])
    assert len(module.code) < 1000
