"""Element-wise operators give PyTorch's numbers in every dtype that PyTorch has them for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
Function = Callable[..., torch.Tensor]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 3.5, 7.25, -7.25, math.inf, -math.inf, math.nan, 1e-3, 12.0, -0.75]

FLOAT_UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "cos",
        "cosh",
        "digamma",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "isfinite",
        "isinf",
        "isnan",
        "isneginf",
        "isposinf",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logical_not",
        "neg",
        "nan_to_num",
        "reciprocal",
        "relu",
        "round",
        "rsqrt",
        "sgn",
        "sigmoid",
        "sign",
        "signbit",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
        "frac",
    ]
} | {
    "silu": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "softplus": torch.nn.functional.softplus,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "hardswish": torch.nn.functional.hardswish,
    "clamp both": lambda x: x.clamp(-1, 2),
    "clamp crossed": lambda x: x.clamp(2, -1),
    "round decimals": lambda x: torch.round(x, decimals=2),
    "round decimals, negative": lambda x: torch.round(x, decimals=-1),
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow -1": lambda x: x**-1,
    "pow 1.7": lambda x: x**1.7,
    "scalar to the power": lambda x: torch.pow(2.0, x),
}

FLOAT_BINARY: dict[str, Function] = {
    "add": torch.add,
    "add, alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub": torch.sub,
    "sub, alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "rsub": lambda x, _y: 1.7 - x,
    "mul": torch.mul,
    "div": torch.div,
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": torch.pow,
    "copysign": torch.copysign,
    "clamp, tensors": lambda x, y: torch.clamp(x, y, y + 1),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where, number": lambda x, _y: torch.where(x > 0, x, 3.0),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.7),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y, value=0.7),
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
}

INTEGER_BINARY: dict[str, Function] = {
    "add": torch.add,
    "add, alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": lambda x, _y: torch.bitwise_not(x),
    "neg": lambda x, _y: -x,
    "lt": torch.lt,
    "ge": torch.ge,
    "number": lambda x, _y: x + 3,
    "float number": lambda x, _y: x * 0.5,
    "float function": lambda x, _y: torch.sqrt(x.abs()),
    "abs": lambda x, _y: x.abs(),
    "sign": lambda x, _y: x.sign(),
    "pow": lambda x, _y: x**3,
    "compared with float": lambda x, _y: x > 1.5,
    "to float": lambda x, _y: x.float(),
    "to bool": lambda x, _y: x.bool(),
    "isnan": lambda x, _y: torch.isnan(x),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.share(1)
def test_float_functions_of_one_operand_agree_also_at_zeros_infinities_and_nan(
    check_table: Any, dtype: torch.dtype
) -> None:
    check_table(FLOAT_UNARY, torch.tensor(SPECIAL, dtype=dtype).reshape(4, 4))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.share(1)
def test_float_functions_of_two_operands_agree_for_every_pair_of_special_values(
    check_table: Any, dtype: torch.dtype
) -> None:
    values = torch.tensor(SPECIAL, dtype=dtype)
    check_table(FLOAT_BINARY, values[:, None].expand(16, 16).contiguous(), values)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.share(1)
def test_the_sign_of_nan_is_told_and_copied(dtype: torch.dtype) -> None:
    """No comparison of values tells it, nor does an assertion that NaN equals NaN."""
    signed = torch.tensor([math.nan, -1.0, 0.0, -0.0], dtype=dtype).abs().repeat(2)
    signed = torch.copysign(signed, torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=dtype))
    assert signed.signbit().tolist() == [False] * 4 + [True] * 4
    there = signed.to("neuron")
    assert there.signbit().tolist() == signed.signbit().tolist()
    assert torch.copysign(torch.ones_like(there), there).tolist() == [1.0] * 4 + [-1.0] * 4
    assert torch.copysign(there[:1], there).cpu().signbit().tolist() == signed.signbit().tolist()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.share(1)
def test_integer_arithmetic_wraps_and_rounds_as_pytorch_does(check_table: Any, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = torch.tensor([0, 1, 2, 3, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 2], dtype=dtype)
    divisors = torch.tensor([1, 2, 3, 5, 7, limits.max, 10], dtype=dtype)
    divisors = divisors if dtype == torch.uint8 else torch.cat([divisors, -divisors[1:]])
    check_table(INTEGER_BINARY, values[:, None].expand(-1, divisors.numel()).contiguous(), divisors)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_that_pytorch_itself_computes_differently_at_the_edges_agree_within(
    check_table: Any, dtype: torch.dtype
) -> None:
    """gelu(inf) is NaN on the CPU, and float16 alone has a power of 0.5 that is no square root."""
    table: dict[str, Function] = {
        "gelu, erf": torch.nn.functional.gelu,
        "gelu, tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "pow 0.5": lambda x: x.abs() ** 0.5,
        "pow -0.5": lambda x: (x.abs() + 0.25) ** -0.5,
    }
    check_table(table, torch.linspace(-6, 6, 49).to(dtype))


def test_booleans_add_multiply_and_compare(check_table: Any) -> None:
    left = torch.tensor([False, False, True, True])
    right = torch.tensor([False, True, False, True])
    table: dict[str, Function] = {
        "add": torch.add,
        "mul": torch.mul,
        "and": torch.bitwise_and,
        "xor": torch.bitwise_xor,
        "not": lambda x, _y: ~x,
        "lt": torch.lt,
        "ge": torch.ge,
        "maximum": torch.maximum,
        "div": torch.div,
        "plus number": lambda x, _y: x + 2,
        "times float": lambda x, _y: x * 0.5,
        "sum": lambda x, _y: x.sum(),
        "to int8": lambda x, _y: x.to(torch.int8),
        "where": lambda x, y: torch.where(x, y, ~y),
    }
    check_table(table, left, right)


def test_mixed_dtypes_are_promoted_by_rank_and_category(check_table: Any) -> None:
    table: dict[str, Function] = {
        "int + float": lambda i, f, *_: i + f,
        "int + rank-0 double": lambda i, _f, _h, d: i + d,
        "float + rank-0 double": lambda _i, f, _h, d: f + d,
        "half + rank-0 double": lambda _i, _f, h, d: h * d,
        "half + float": lambda _i, f, h, _d: h + f,
        "compare int with rank-0 double": lambda i, _f, _h, d: i < d,
        "compare half with float": lambda _i, f, h, _d: h == f,
        "where half, float": lambda i, f, h, _d: torch.where(i > 1, h, f),
        "maximum int, double": lambda i, _f, _h, d: torch.maximum(i, d),
    }
    inputs = [
        torch.tensor([1, 2, 3], dtype=torch.int32),
        torch.tensor([0.1, 2.5, -1.0]),
        torch.tensor([0.1, 2.5, -1.0], dtype=torch.bfloat16),
        torch.tensor(1.1, dtype=torch.float64),
    ]
    check_table(table, *inputs)


def test_conversions_round_towards_zero_and_see_nan_as_true(check_table: Any) -> None:
    values = torch.tensor([0.0, -0.0, 1.9, -1.9, 100.5, math.nan])
    table: dict[str, Function] = {
        "to bool": lambda x: x.bool(),
        "to int32": lambda x: x[:5].int(),
        "to int64": lambda x: x[:5].long(),
        "to half": lambda x: x.half(),
        "to bfloat16": lambda x: x.bfloat16(),
        "to double": lambda x: x.double(),
        "to uint8": lambda x: x[4:5].to(torch.uint8),
    }
    check_table(table, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_compared_after_rounding_to_the_dtype(check: Any, dtype: torch.dtype) -> None:
    values = torch.tensor([0.1, 0.0999, 0.3, -0.1], dtype=dtype)
    check(lambda x: [x == 0.1, x <= 0.1, x > 0.3, x != -0.1], values)


def test_a_second_opinion_agrees_on_pointwise_numbers(lowered: Any, interpret: Any, same: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.remainder(x, y), torch.floor_divide(x, y), torch.maximum(x, y), torch.erf(x), x.pow(2) + 0.1 * y]

    values = torch.tensor([1.0, -1.0, 2.5, -2.5, 7.0, -7.0])
    inputs = [values[:, None].expand(6, 6).contiguous(), values]
    same(interpret(lowered(function, inputs), inputs), function(*inputs))
