"""Reading and writing at computed places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from neuron_backend.lowering import trace

Function = Callable[..., torch.Tensor]

READ: dict[str, Function] = {
    "index_select": lambda x, i, _g: x.index_select(1, i),
    "index_select, negative dim": lambda x, i, _g: x.index_select(-3, i % 3),
    "embedding": lambda x, i, _g: torch.nn.functional.embedding(i % 3, x[:, 0]),
    "embedding, 2-d": lambda x, i, _g: torch.nn.functional.embedding(i.reshape(2, 2) % 3, x[:, 0]),
    "gather": lambda x, _i, g: x.gather(1, g),
    "gather, last": lambda x, _i, g: x.gather(-1, g),
    "take": lambda x, i, _g: x.take(i - 2),
    "index, one": lambda x, i, _g: x[:, i],
    "index, negative": lambda x, i, _g: x[:, i - 4],
    "index, two together": lambda x, i, _g: x[:, i, i],
    "index, two apart": lambda x, i, _g: x[i % 3, :, i],
    "index, broadcast": lambda x, i, _g: x[:, i[:, None], i],
    "index, front and number": lambda x, i, _g: x[i % 3, 1],
    "take_along_dim": lambda x, _i, g: torch.take_along_dim(x, g, 2),
    "scatter": lambda x, _i, g: x.scatter(1, g[:, :1], x[:, 1:2] + 5),
    "scatter, number": lambda x, _i, g: x.scatter(-1, g[..., :1], 9),
    "scatter_add": lambda x, _i, g: x.scatter_add(1, g, x),
    "scatter, multiply": lambda x, _i, g: x.scatter(1, g[:, :1], 3, reduce="multiply"),
    "scatter_reduce, amax": lambda x, _i, g: x.scatter_reduce(1, g, x * 2, "amax", include_self=False),
    "scatter_reduce, prod": lambda x, _i, g: x.scatter_reduce(1, g % 2, x, "prod"),
    "index_add": lambda x, i, _g: x.index_add(1, i, x, alpha=2),
    "index_copy": lambda x, i, _g: x.index_copy(1, i, x.flip(1)),
    "index_fill": lambda x, i, _g: x.index_fill(2, i[:2], 3),
    "index_put": lambda x, i, _g: x.index_put((i % 3, i), x[0, :4]),
    "index_put, accumulate": lambda x, i, _g: x.index_put((i % 2, i % 2), x[0], accumulate=True),
    "index_put, middle": lambda x, i, _g: torch.ops.aten.index_put(x, [None, i], x),
    "masked_fill": lambda x, _i, _g: x.masked_fill(x > 5, 0),
    "mask, number": lambda x, _i, _g: torch.ops.aten.index_put(x, [x > 9], torch.tensor(1, dtype=x.dtype)),
    "mask, rows": lambda x, _i, _g: torch.ops.aten.index_put(x, [x[:, 0, 0] > 9], x[0]),
    "mask, later dims": lambda x, _i, _g: torch.ops.aten.index_put(x, [None, x[0] > 5], x[:, :1, 0]),
    "mask, add": lambda x, _i, _g: torch.ops.aten.index_put(x, [x > 9], x[0, 0, 1:2], accumulate=True),
    "mask of old": lambda x, i, _g: torch.ops.aten.index_put(x, [(i[:3] > 0).byte()], x[:1] + 1),
    "masked_scatter": lambda x, _i, _g: x.masked_scatter(x > 9, x.flip(0)),
    "one_hot": lambda _x, i, _g: torch.nn.functional.one_hot(i, 5),
    "put": lambda x, i, _g: x.put(i, x.reshape(-1)[:4]),
    "bucketize": lambda x, i, _g: torch.bucketize(x, i.sort().values.to(x.dtype)),
    "searchsorted": lambda x, i, _g: torch.searchsorted(i.sort().values.to(x.dtype), x, right=True),
}


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [(torch.float32, torch.int64), (torch.int64, torch.int64), (torch.bfloat16, torch.int32)],
)
@pytest.mark.share(1)
def test_places_are_those_that_pytorch_reads_and_writes(
    check_table: Any, dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    narrow = ("index", "embedding")
    table = {n: f for n, f in READ.items() if index_dtype == torch.int64 or (n.startswith(narrow) and "put" not in n)}
    table = {n: f for n, f in table.items() if index_dtype == torch.int64 or n not in {"index_copy", "index_fill"}}
    x = torch.arange(48).reshape(3, 4, 4).to(dtype)
    torch.manual_seed(0)
    check_table(table, x, torch.tensor([3, 0, 2, 1], dtype=index_dtype), torch.rand(3, 4, 4).argsort(1))


def test_rank_0_tensors_can_be_indexed_and_written(check: Any) -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.index_select(0, i),
            x.gather(0, i),
            x.scatter(0, i, 3.0),
            x.scatter_add(0, i, x),
        ]

    check(function, torch.tensor(2.5), torch.tensor(0))


def test_embedding_gradients_add_up_repeated_rows_and_skip_padding(check: Any) -> None:
    indices = torch.tensor([[0, 1, 1], [2, 1, 0]])

    def function(gradient: torch.Tensor) -> list[torch.Tensor]:
        backward = torch.ops.aten.embedding_dense_backward
        return [backward(gradient, indices, 5, padding, scale_grad_by_freq=False) for padding in (-1, 1)]

    check(function, torch.randn(2, 3, 4))


def test_a_boolean_index_whose_result_depends_on_values_is_refused() -> None:
    with pytest.raises(DynamicOutputShapeException):
        trace(lambda x: [x[x > 0]], [torch.ones(3)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: [x[:, i], x[i], x.gather(1, i[:, None])],
        # One scatter in a program: the interpreter writes through to the operand.
        lambda x, i: [x.index_add(0, i, x[:2])],
        lambda x, i: [x.scatter(0, i[None], 1.0)],
    ],
)
def test_a_second_opinion_agrees_on_gather_and_scatter(
    lowered: Any, interpret: Any, same: Any, function: Callable[..., list[torch.Tensor]]
) -> None:
    x, i = torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0])
    same(interpret(lowered(function, [x, i]), [x, i]), function(x, i))
