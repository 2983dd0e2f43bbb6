"""Which Python scalars are part of a program, and which are its inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_backend.eager import dispatch, operators, scalars, signature
from neuron_backend.lowering import trace

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


def key(overload: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return signature.read(operators.describe(overload), args, kwargs).key


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, True), (1, 1.0), (1.0, True), (0, False), (2.5, -3.5), (math.nan, math.inf), (0.5, 2.0)],
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


@pytest.mark.parametrize(
    ("value", "lifted"),
    [
        *((number, True) for number in (0.1, -7e20, 1.0, 5, 2, -(2**40), 0.0, 0)),
        *((other, False) for other in (-0.0, math.inf, -math.inf, math.nan, True, None, 1j)),
    ],
)
def test_numbers_are_lifted_and_what_is_none_is_not(value: Any, lifted: bool) -> None:
    x = torch.ones(2, device="neuron")
    call = signature.read(operators.describe(aten.full_like.default), (x, value), {})
    assert bool(call.numbers) is lifted


def test_defaults_shortcuts_and_constants_of_models_cost_no_input() -> None:
    x = torch.ones(2, device="neuron")
    for overload, args, kwargs in (
        (aten.add.Tensor, (x, x), {"alpha": 1}),
        (aten.pow.Tensor_Scalar, (x, 2), {}),
        (aten.native_layer_norm.default, (x, [2], None, None, 1e-5), {}),
        (aten.sum.dim_IntList, (x, [0]), {}),
    ):
        assert not signature.read(operators.describe(overload), args, kwargs).numbers


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


FLOATS = torch.tensor([[0.25, -1.5, 3.0], [0.0, 7.75, -0.5]])
INTEGERS = torch.tensor([[5, -3, 0], [100, 7, -100]], dtype=torch.int8)
MASK = FLOATS > 0

COMPUTED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": lambda x, n: x + n,
    "subtracted from": lambda x, n: n - x,
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "multiply": lambda x, n: x * n,
    "divide": lambda x, n: x / (n + 11),
    "round down": lambda x, n: x // (n + 11),
    "remainder": lambda x, n: x % (n + 11),
    "power": lambda x, n: (x * x) ** (n + 11),
    "equal": lambda x, n: x == n,
    "less": lambda x, n: x < n,
    "clamp": lambda x, n: x.clamp(n, n + 4),
    "fill": lambda x, n: x.masked_fill(MASK.to(x.device), n),
    "threshold": lambda x, n: torch.threshold(x, n, type(n)(23)),
    "list": lambda x, n: torch._foreach_mul([x, x + 1], [n, n + 4])[1],
}


@pytest.mark.parametrize("values", [range(20), [each + 0.3 for each in range(20)], range(-9, 9)])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_program_serves_every_value_of_a_number(name: str, values: Any, programs_made: Callable[[], int]) -> None:
    function = COMPUTED[name]
    x = FLOATS.to("neuron")
    for each in values:
        torch.testing.assert_close(function(x, each).cpu(), function(FLOATS, each), rtol=1e-5, atol=1e-6)
    assert programs_made() <= 4  # with those for what is around it


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**62), 2**62),
    st.sampled_from(
        [0, 0.0, -0.0, 1, -1, 1.0, 0.5, 2, 3, 2.0, True, False, 127, 128, 255, 256, 65504.0, 65505.0, 1e39]
    ),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("name", COMPUTED)
@given(values=st.lists(numbers, min_size=1, max_size=4))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.share(3)
def test_what_one_value_computes_and_refuses_is_no_business_of_the_ones_before(
    name: str, dtype: torch.dtype, values: list[Any]
) -> None:
    """The same values, types and refusals as on the CPU, whatever came first."""
    if name == "threshold" and not dtype.is_floating_point:
        pytest.skip("torch's kernel first rounds the numbers to the tensor's type, or has none for it")
    function = COMPUTED[name]
    x = (FLOATS if dtype.is_floating_point else INTEGERS).to(dtype)
    for each in values:
        try:
            expected = function(x, each)
        except (RuntimeError, ZeroDivisionError) as error:
            with pytest.raises(type(error)):
                function(x.to("neuron"), each)
            continue
        result = function(x.to("neuron"), each).cpu()
        torch.testing.assert_close(
            result, expected, equal_nan=True, rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-5
        )


def test_the_tables_of_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST", 8)
    with dispatch.without_plans():
        for size in range(1, 30):
            assert torch.arange(size, device="neuron").tolist() == list(range(size))
        assert len(dispatch.plans()) <= 8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_powers_of_integers_beyond_the_sixty_third_are_right(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3, -3], dtype=dtype) if dtype.is_signed else torch.tensor([0, 1, 2, 3, 255], dtype=dtype)
    last = torch.iinfo(dtype).max
    for exponent in (3, 63, 64, 65, 100, last):
        assert (x.to("neuron") ** exponent).tolist() == (x**exponent).tolist()
    exponents = torch.tensor([5, 64, 100, last, 65], dtype=dtype)
    assert (x.to("neuron") ** exponents.to("neuron")).tolist() == (x**exponents).tolist()
    compiled = torch.compile(lambda a: a**100, backend="neuron")
    assert compiled(x.to("neuron")).tolist() == (x**100).tolist()


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

    one, other = 1.0173, 2.5
    pairs = {one: other}
    assert scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x * other), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * (2 * one)), graph(lambda x: x * (2 * other)), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x + other), pairs)
    assert not scalars.differ_only_in(graph(lambda x: x * one), graph(lambda x: x * one), pairs)
    assert not scalars.differ_only_in(graph(lambda _: torch.arange(83)), graph(lambda _: torch.arange(5)), {83: 5})
