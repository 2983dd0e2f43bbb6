"""Sums, extremes, moments, running sums and places of extremes, with their rules for NaN, ties and emptiness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

Function = Callable[..., torch.Tensor]

FLOAT: dict[str, Function] = {
    "sum": torch.sum,
    "sum, dim": lambda x: x.sum(-1),
    "sum, dims, keepdim": lambda x: x.sum((0, 2), keepdim=True),
    "sum, no dims": lambda x: x.sum(()),
    "sum, dtype": lambda x: x.sum(1, dtype=torch.float64),
    "mean": torch.mean,
    "mean, dim": lambda x: x.mean(-2, keepdim=True),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((1, -1)),
    "amin": lambda x: x.amin(0, keepdim=True),
    "max": torch.max,
    "max, dim": lambda x: x.max(1).values,
    "max, dim, place": lambda x: x.max(1).indices,
    "min, dim, place": lambda x: x.min(-1, keepdim=True).indices,
    "argmax": torch.argmax,
    "argmax, dim": lambda x: x.argmax(-1, keepdim=True),
    "argmin": lambda x: x.argmin(0),
    "any": torch.any,
    "any, dim": lambda x: x.any(1),
    "all, dim": lambda x: x.all(-1, keepdim=True),
    "var": torch.var,
    "var, dim": lambda x: x.var((0, 1), keepdim=True),
    "var, correction": lambda x: torch.var(x, 2, correction=0),
    "std": lambda x: x.std(1),
    "var_mean": lambda x: torch.var_mean(x, -1)[1],
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm, 1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm, inf": lambda x: torch.linalg.vector_norm(x, math.inf, 0),
    "count_nonzero": lambda x: torch.count_nonzero(x, 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(1).values,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 2),
    "aminmax": lambda x: torch.aminmax(x, dim=0)[1],
    "median": lambda x: x.median(1).values,
    "nansum": torch.nansum,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.share(1)
def test_reductions_of_floats_agree(check_table: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    check_table(FLOAT, torch.randn(3, 5, 7).to(dtype))


def test_sums_of_short_floats_are_accumulated_in_single_precision(lowered: Any, run_xla: Any) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        places = torch.zeros(4096, dtype=torch.int64)
        return [x.sum(), x.cumsum(0)[-1:], x.mean(), x @ x, torch.zeros_like(x).index_add(0, places, x)[:1]]

    ones = torch.ones(4096, dtype=torch.bfloat16)
    results = run_xla(lowered(function, [ones]), [ones])
    assert [result.item() for result in results] == [4096, 4096, 1, 4096, 4096]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_reductions_of_integers_and_booleans_agree(check_table: Any, dtype: torch.dtype) -> None:
    table: dict[str, Function] = {
        "sum": torch.sum,
        "sum, own dtype": lambda x: x.sum(1, dtype=dtype),
        "prod": lambda x: x.prod(0),
        "amax": lambda x: x.amax(1),
        "amin": lambda x: x.amin(0),
        "any": lambda x: x.any(0),
        "all": torch.all,
        "cumsum": lambda x: x.cumsum(0),
        "mean": lambda x: x.float().mean(),
    }
    if dtype != torch.bool:
        table |= {"argmax": lambda x: x.argmax(1), "min place": lambda x: x.min(0).indices}
    values = torch.tensor([[0, 1, 100, 3, 1], [1, 0, 100, 27, 2], [1, 1, 127, 1, 1]])
    check_table(table, values.to(dtype))


def test_nan_wins_every_extreme_and_its_first_place_is_reported(check_table: Any) -> None:
    nan = math.nan
    rows = torch.tensor([[1, nan, 3, nan], [nan, nan, nan, nan], [-math.inf, -math.inf, -math.inf, nan], [4, 4, 1, 1]])
    table: dict[str, Function] = {
        "amax": lambda x: x.amax(1),
        "amin": lambda x: x.amin(1),
        "max": lambda x: x.max(1).values,
        "max place": lambda x: x.max(1).indices,
        "min place": lambda x: x.min(1).indices,
        "argmax": lambda x: x.argmax(1),
        "argmin": lambda x: x.argmin(1),
        "argmax of all": torch.argmax,
        "cummax": lambda x: x.cummax(1).values,
        "cummax place": lambda x: x.cummax(1).indices,
        "cummin place": lambda x: x.cummin(1).indices,
        "median": lambda x: x.median(1).values,
        "relu": torch.relu,
    }
    check_table(table, rows)


def test_infinities_alone_do_not_make_a_running_logarithm_nan(check: Any) -> None:
    rows = torch.tensor([[-math.inf, -math.inf, 1.0, 2.0], [math.inf, 1.0, -math.inf, 0.0]])
    check(lambda x: [torch.logcumsumexp(x, 1), torch.logsumexp(x, 1), x.cumsum(1)], rows)


def test_rank_0_tensors_reduce_to_themselves(check: Any) -> None:
    check(
        lambda x: [
            x.sum(),
            x.sum(0),
            x.mean(-1),
            x.amax(0),
            x.argmax(0),
            x.max(0).indices,
            x.cumsum(0),
            x.var(0, correction=0),
        ],
        torch.tensor(3.5),
    )


def test_reductions_over_nothing_give_the_identity(check: Any) -> None:
    check(
        lambda x: [x.sum(1), x.sum(), x.prod(1), x.mean(1), x.any(1), x.all(1), x.amax(0), x.cumsum(1)],
        torch.empty(2, 0),
    )


def test_a_second_opinion_agrees_on_reductions(lowered: Any, interpret: Any, same: Any) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(1), x.amax(0), x.argmax(1), x.cumsum(1), torch.softmax(x, -1), x.sort(1).values]

    torch.manual_seed(2)
    x = torch.randn(3, 4)
    same(interpret(lowered(function, [x]), [x]), function(x))
