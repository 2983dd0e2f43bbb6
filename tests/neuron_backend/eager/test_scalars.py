"""Which Python scalars are part of a program, and which are its inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neuron_backend.eager import operators, scalars, signature
from neuron_backend.lowering import trace

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


def key(overload: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return signature.read(operators.describe(overload), args, kwargs).key


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, True), (1, 1.0), (1.0, True), (0, False), (2.5, 3.5), (math.nan, math.inf), (0.1, 0.1 + 2**-56)],
)
def test_scalars_that_compare_equal_or_alike_never_share_a_program(one: Any, other: Any) -> None:
    x = torch.ones(2, device="neuron")
    assert key(aten.full_like.default, x, one) != key(aten.full_like.default, x, other)


def test_nan_finds_its_program_again() -> None:
    x = torch.ones(2, device="neuron")
    assert key(aten.full_like.default, x, math.nan) == key(aten.full_like.default, x, float("nan"))
    assert hash(key(aten.full_like.default, x, math.nan)) == hash(key(aten.full_like.default, x, float("nan")))


def test_a_negative_zero_stays_negative() -> None:
    x = torch.tensor([1.0, 2.0], device="neuron")
    for value in (0.0, -0.0):
        result = torch.copysign(x, value).cpu()
        assert torch.equal(result, torch.copysign(x.cpu(), value))


def test_what_a_program_depends_on_is_in_the_key() -> None:
    x = torch.ones(4, 4, device="neuron")
    base = key(aten.relu.default, x)
    for other in (
        x[:3],
        x.double(),
        x.t()[:, :3],
        x.reshape(2, 8),
        torch.ones(4, 4, dtype=torch.complex64, device="neuron").conj().imag,
    ):
        assert key(aten.relu.default, other) != base
    assert key(aten.relu.default, x + 1) == base
    assert key(aten.sigmoid.default, x) != base
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert key(aten.relu.default, x) != base
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert key(aten.relu.default, x) != base
    finally:
        torch.use_deterministic_algorithms(mode=False)
    torch.set_default_dtype(torch.float64)
    try:
        assert key(aten.relu.default, x) != base
    finally:
        torch.set_default_dtype(torch.float32)


def test_how_a_written_tensor_lies_to_the_others_is_in_the_key() -> None:
    x = torch.ones(4, 4, device="neuron")
    apart, over = torch.ones(4, 4, device="neuron"), x.t()
    assert key(aten.add_.Tensor, x, over) != key(aten.add_.Tensor, x, apart.t())


def test_an_argument_given_by_name_is_not_the_one_before_it() -> None:
    x = torch.ones(4, 4, device="neuron")
    assert key(aten.sum.dim_IntList, x, [0], keepdim=True) != key(aten.sum.dim_IntList, x, [0], dtype=torch.float32)
    assert key(aten.cat.default, [x, x], 0) != key(aten.cat.default, [x], 0)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1, True, None])
def test_special_scalars_are_never_lifted(value: Any) -> None:
    assert not scalars.is_lifted(value)


def test_changing_scalars_of_arithmetic_need_one_program(programs_made: Callable[[], int]) -> None:
    x = torch.randn(3, 5)
    device = x.to("neuron")
    for value in (0.1, 0.25, -3.5, 1e-30, 7e20):
        torch.testing.assert_close((device * value).cpu(), x * value, rtol=0, atol=0)
        torch.testing.assert_close(torch.add(device, device, alpha=value).cpu(), torch.add(x, x, alpha=value))
        torch.testing.assert_close(
            torch.addcmul(device, device, device, value=value).cpu(), torch.addcmul(x, x, x, value=value)
        )
        torch.testing.assert_close((device / value).cpu(), x / value)
    assert programs_made() <= 4


def test_a_lifted_scalar_of_float64_tensors_is_not_rounded_to_float32(programs_made: Callable[[], int]) -> None:
    x = torch.randn(3, 5, dtype=torch.float64)
    for value in (0.1, 1 / 3):
        torch.testing.assert_close((x.to("neuron") * value).cpu(), x * value, rtol=0, atol=0)
    assert programs_made() <= 1


def test_scalars_that_choose_what_is_computed_are_compiled_in() -> None:
    x = torch.rand(3, 5) + 0.1
    for exponent in (0.5, 2.0, 3.0, -1.5):
        torch.testing.assert_close((x.to("neuron") ** exponent).cpu(), x**exponent)
    for weight in (0.1, 0.9):
        torch.testing.assert_close(
            torch.lerp(x.to("neuron"), x.to("neuron") * 2, weight).cpu(), torch.lerp(x, x * 2, weight)
        )


def test_graphs_that_differ_in_more_than_sentinels_are_not_lifted() -> None:
    def graph(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.fx.GraphModule:
        return trace(lambda x: [function(x)], [torch.ones(2)])

    (one,), (other,) = scalars.sentinels(1, 0), scalars.sentinels(1, 1)
    pairs = {one: other}
    assert scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x * other), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * (2 * one)), graph(lambda x: x * (2 * other)), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x + other), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x * one), pairs)
