"""Operators that take functions, and constants made inside of what is compiled: right values, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import neuron_backend
from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.filterwarnings("ignore:operator .* runs on the CPU, not on neuron:UserWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"),
]


def _x(device: str) -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4).to(device)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x**3 + torch.tensor(1.5, device=x.device)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return gradients[0] * x**2 * torch.tensor(3.0, device=x.device)


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.tensor(2.0, device=x.device)).sin()


def _counted(x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0, device=x.device), x))


def _counted_outside(x: torch.Tensor, start: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))


def _captures(x: torch.Tensor) -> Any:
    step = torch.tensor(0.5, device=x.device)
    start = torch.tensor(0, device=x.device)
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + step * x), (start, x * 2))


def _chosen(x: torch.Tensor) -> torch.Tensor:
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
    return torch.cond(x.sum() > torch.tensor(-5.0, device=x.device), lambda x: x.sin() + bias, lambda x: x.cos(), (x,))


def _mapped(x: torch.Tensor) -> Any:
    offset = torch.tensor(0.25, device=x.device)
    return map_over(lambda row: row.exp() + offset, x)


def _scanned(x: torch.Tensor) -> Any:
    start = torch.tensor([1.0, 1.0, 1.0, 1.0], device=x.device)
    return scan(lambda carry, row: (carry + row, carry * row), start, x)


def _scanned_in_pairs(x: torch.Tensor) -> Any:
    return associative_scan(lambda one, other: one * other + 0 * one, x, 0, combine_mode="generic")


def _noted(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * torch.tensor(2.0, device=x.device)


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_noted, x, use_reentrant=False).exp()


def _checkpointed_reentrant(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_noted, x, use_reentrant=True).exp()


def _nested(x: torch.Tensor) -> torch.Tensor:
    return _region(_region(x)) + 1


def _own_function(x: torch.Tensor) -> torch.Tensor:
    return _Cube.apply(x) * 2


def _vmapped(x: torch.Tensor) -> torch.Tensor:
    def of_row(row: torch.Tensor) -> torch.Tensor:
        return row * torch.tensor([2.0, 0.0, 1.0, 3.0], device=x.device) + torch.tensor(1, device=x.device)

    return torch.vmap(of_row)(x)


def _differentiated(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: ((x * torch.tensor(3.0, device=x.device)) ** 2).sum())(x)


def _constants(x: torch.Tensor) -> Any:
    # torch computes ahead of time what follows from constants alone
    count = torch.tensor(2, device=x.device)
    count.add_(3)
    table = torch.tensor([5, 6, 7], device=x.device)
    return x + count, table * 2 + 1, (table.flip(0) < 6), torch.tensor(3.5, device=x.device).sqrt() * x


def _branch_on_a_constant(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if bool(torch.tensor(4, device=x.device) - 2 > 1) else x - 1


FUNCTIONS: list[Callable[[torch.Tensor], Any]] = [
    *(_counted, _captures, _chosen, _mapped, _scanned, _scanned_in_pairs, _checkpointed, _checkpointed_reentrant),
    *(_nested, _own_function, _vmapped, _differentiated, _constants, _branch_on_a_constant),
]


def _results(function: Callable[..., Any], device: str, *, gradient: bool) -> list[torch.Tensor]:
    x = _x(device).requires_grad_(gradient)
    results = [each for each in tree_leaves(function(x)) if isinstance(each, torch.Tensor)]
    assert {each.device.type for each in results} == {device}
    trained = [each.sum() for each in results if each.requires_grad]
    if trained:
        torch.stack(trained).sum().backward()
        assert x.grad is not None
        results.append(x.grad)
    return [each.detach().cpu() for each in results]


@pytest.mark.share(4)
@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__.strip("_"))
def test_functions_of_functions_and_constants_made_inside_compute_what_the_cpu_does(
    function: Callable[[torch.Tensor], Any], *, gradient: bool
) -> None:
    expected = _results(function, "cpu", gradient=gradient)
    with dispatch.without_plans():  # where an operator is called first must not matter
        for backend in ("neuron", None, "aot_eager", "neuron"):
            torch._dynamo.reset()
            run = torch.compile(function, backend=backend) if backend else function
            torch.testing.assert_close(_results(run, "neuron", gradient=gradient), expected)
        torch.testing.assert_close(_results(run, "neuron", gradient=gradient), expected, msg="at the second call")


def _outside(x: torch.Tensor, start: torch.Tensor) -> Any:
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), (start, x))


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_a_loop_counts_wherever_its_counter_is_made_and_whichever_ran_first(first: str) -> None:
    x = torch.ones(2, device="neuron")

    def inside() -> Any:
        return torch.compile(_counted, backend="neuron", fullgraph=True)(x)

    def outside() -> Any:
        return torch.compile(_outside, backend="neuron", fullgraph=True)(x, torch.tensor(0, device="neuron"))

    with dispatch.without_plans():
        for run in (inside, outside) if first == "inside" else (outside, inside):
            torch._dynamo.reset()
            count, value = run()
            assert (count.item(), value.tolist()) == (3, [8, 8])


def test_flex_attention_is_refused_and_computes_nothing_else() -> None:
    value = torch.ones(1, 1, 2, 4, device="neuron")
    with pytest.raises(ValueError, match="FlexAttention is only supported on"):
        flex_attention(value, value, value)


def _nested_choice(x: torch.Tensor, start: torch.Tensor) -> Any:
    def body(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, torch.cond(y.sum() > 4, lambda y: y - x, lambda y: y * 2 + x, (y,))

    return while_loop(lambda i, _: i < 5, body, (start, x * 2))


def _one_of_two(x: torch.Tensor, start: torch.Tensor) -> Any:
    return torch.cond(start > 0, lambda y: y.sin() + x, lambda y: y.cos() * x, (x + 1,))


@pytest.mark.parametrize("start", [0, 3, 9], ids=["from_zero", "from_three", "no_iteration"])
@pytest.mark.parametrize("function", [_outside, _nested_choice, _one_of_two], ids=lambda each: each.__name__.strip("_"))
def test_control_flow_is_part_of_the_one_program(function: Callable[..., Any], start: int) -> None:
    torch._dynamo.reset()
    expected = tree_leaves(function(_x("cpu"), torch.tensor(start)))
    run = torch.compile(function, backend="neuron", fullgraph=True)
    got = [each.cpu() for each in tree_leaves(run(_x("neuron"), torch.tensor(start, device="neuron")))]
    torch.testing.assert_close(got, expected)
    assert neuron_backend.get_fallback_ops() == {}


def test_a_branch_that_draws_random_numbers_runs_operator_by_operator() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: torch.cond(x.sum() > 100, lambda x: x + torch.rand_like(x), lambda x: x * 2, (x,)), backend="neuron"
    )
    torch.testing.assert_close(run(_x("neuron")).cpu(), _x("cpu") * 2)


def test_the_gradient_of_a_choice_is_part_of_a_program() -> None:
    torch._dynamo.reset()
    expected = _results(_chosen, "cpu", gradient=True)
    got = _results(torch.compile(_chosen, backend="neuron", fullgraph=True), "neuron", gradient=True)
    torch.testing.assert_close(got, expected)
    assert neuron_backend.get_fallback_ops() == {}


def test_a_bad_index_in_a_branch_is_an_error() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x, i: torch.cond(x.sum() > -5, lambda x, i: x[i] * 1, lambda x, i: x[i] * 2, (x, i)), backend="neuron"
    )
    with pytest.raises(IndexError, match="index 99 is out of bounds"):
        run(torch.ones(8, device="neuron"), torch.tensor([1, 99], device="neuron")).cpu()
