"""Python numbers reach the program whole, as constants or as lifted inputs."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch

from neuron_backend.lowering import Lifted, UnsupportedOperator, lower, trace, trim


@pytest.mark.parametrize("number", [0.1, 1 / 3, math.pi, 1e300, -0.0, math.inf, -math.inf, math.nan, 2.0**53 + 2])
def test_a_double_times_a_python_float_never_passes_through_single_precision(check: Any, number: float) -> None:
    values = torch.tensor([1.0, 3.0, 0.1], dtype=torch.float64)
    check(lambda x: [x * number, torch.full_like(x, number)], values, tolerance=0)


def test_the_sign_of_a_zero_constant_is_kept(lowered: Any, run_xla: Any) -> None:
    (result,) = run_xla(lowered(lambda x: [torch.full_like(x, -0.0)], [torch.ones(1)]), [torch.ones(1)])
    assert struct.pack("<f", result.item()) == struct.pack("<f", -0.0)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)])
def test_integer_constants_beyond_the_precision_of_doubles_are_exact(check: Any, number: int) -> None:
    values = torch.tensor([0, 1], dtype=torch.int64)
    check(lambda x: [torch.full_like(x, number), torch.where(x > 0, x, number)], values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_that_a_short_float_cannot_hold_is_not_rounded_to_it_first(
    lowered: Any, run_xla: Any, same: Any, dtype: torch.dtype
) -> None:
    values = torch.linspace(-4, 4, 200).to(dtype)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 0.1, x + 0.1, x - 0.3, x / 0.7, 0.1 - x, torch.add(x, x, alpha=0.1)]

    # PyTorch's own CPU kernels round some of these numbers first; doubles do not.
    exact = [result.to(dtype) for result in function(values.double())]
    same(run_xla(lowered(function, [values]), [values]), exact, tolerance=0)


def test_tensors_that_the_graph_holds_are_constants_by_value(check: Any) -> None:
    held = torch.tensor([1.5, math.nan, -math.inf, 1e-40])
    integers = torch.tensor([[2**53 + 1, -1]])
    flags = torch.tensor([True, False, True])
    check(lambda x: [x + held, integers + 0, flags.clone(), torch.tensor(2.5) * x], torch.ones(4))


def _scaled(number: float, dtype: torch.dtype) -> Any:
    example = torch.ones(3, dtype=dtype)
    graph = trace(lambda x: [torch.add(x, x * number, alpha=number)], [example])
    trim(graph)
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_lifted_scalar_becomes_an_input_wherever_its_sentinel_stands(
    run_xla: Any, same: Any, dtype: torch.dtype
) -> None:
    sentinel = 0.8613527
    module = lower(_scaled(sentinel, dtype), [Lifted(sentinel, dtype, 0.7)])
    assert [(spec.dtype, spec.shape) for spec in module.signature.inputs] == [(dtype, (3,)), (dtype, ())]
    x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    for value in (0.1, -7.25):
        same(run_xla(module, [x, torch.tensor(value, dtype=dtype)]), [torch.add(x, x * value, alpha=value)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: torch.ops.aten.hardshrink_backward(x, x, number),
        lambda x, number: torch.ops.aten.var.correction(x, [0], correction=number),
    ],
)
def test_a_lowering_that_computes_with_a_lifted_scalar_is_refused_and_bakes_nothing(function: Any) -> None:
    sentinel = 0.8613527
    graph = trace(lambda x: [function(x, sentinel)], [torch.ones(4)])
    trim(graph)
    lower(graph)
    with pytest.raises(UnsupportedOperator, match="computes with the value of a scalar that is lifted"):
        lower(graph, [Lifted(sentinel, torch.float32, 0.7)])


def test_a_lifted_exponent_or_factor_takes_no_shortcut_for_the_value_of_its_sentinel(run_xla: Any, same: Any) -> None:
    sentinel = 2.0
    graph = trace(lambda x, y: [x**sentinel, torch.add(x, y, alpha=sentinel), x.clamp(sentinel)], [torch.ones(3)] * 2)
    trim(graph)
    module = lower(graph, [Lifted(sentinel, torch.float32, 0.7)])
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 0.5, -1.0])
    same(run_xla(module, [x, y, torch.tensor(1.5)]), [x**1.5, x + 1.5 * y, x.clamp(1.5)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_operator_of_an_optimizer_takes_its_scalar_lifted(run_xla: Any, same: Any, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, number: float) -> list[torch.Tensor]:
        return [
            x + number,
            torch.add(x, y, alpha=number),
            x - number,
            torch.sub(x, y, alpha=number),
            x * number,
            x / number,
            torch.addcmul(x, y, y, value=number),
            torch.addcdiv(x, y, y + 3, value=number),
            *torch._foreach_add([x, y], [y, x], alpha=number),
            *torch._foreach_addcdiv([x], [y], [y + 3], number),
        ]

    sentinel, value = 1.0173028564453125, 0.001
    x, y = torch.linspace(-2, 2, 9).to(dtype), torch.linspace(1, 2, 9).to(dtype)
    graph = trace(lambda x, y: function(x, y, sentinel), [x, y])
    trim(graph)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    results = run_xla(lower(graph, [Lifted(sentinel, compute, 0.7)]), [x, y, torch.tensor(value, dtype=compute)])
    same(results, [result.to(dtype) for result in function(x.double(), y.double(), value)])


def test_modules_that_differ_in_a_lifted_scalar_alone_are_the_same_module() -> None:
    first, second = (
        lower(_scaled(number, torch.float32), [Lifted(number, torch.float32, 0.7)]) for number in (0.37, 0.59)
    )
    assert first.code == second.code
    baked, other = (lower(_scaled(number, torch.float32)) for number in (0.37, 0.59))
    assert baked.code != other.code


def test_a_lifted_scalar_of_a_short_float_keeps_its_own_precision(run_xla: Any, same: Any) -> None:
    sentinel = 0.5  # a value that bfloat16 could hold: being lifted counts, not being exact
    graph = trace(lambda x: [x * sentinel], [torch.ones(100, dtype=torch.bfloat16)])
    trim(graph)
    module = lower(graph, [Lifted(sentinel, torch.float32, 0.7)])
    x = torch.linspace(-4, 4, 100).bfloat16()
    same(run_xla(module, [x, torch.tensor(0.1)]), [x * 0.1], tolerance=0)


def test_lifted_scalars_stay_in_the_signature_in_their_order_even_if_unused(run_xla: Any, same: Any) -> None:
    graph = trace(lambda x: [x + 0.31], [torch.ones(2)])
    trim(graph)
    module = lower(graph, [Lifted(0.77, torch.float64, 0.7), Lifted(0.31, torch.float32, 0.7)])
    assert [spec.dtype for spec in module.signature.inputs] == [torch.float32, torch.float64, torch.float32]
    inputs = [torch.zeros(2), torch.tensor(9.0, dtype=torch.float64), torch.tensor(4.0)]
    same(run_xla(module, inputs), [torch.full((2,), 4.0)])
