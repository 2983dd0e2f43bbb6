"""Calls that were seen before run from the device library, and nobody can tell but by the clock."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neuron_backend.eager import dispatch
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable


def weight_gradient(x: torch.Tensor) -> torch.Tensor:
    weight = x[:2, :2].reshape(1, 1, 2, 2).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.conv2d(x.view(1, 1, 4, 4), weight).sum(), [weight])
    return gradient


OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "pointwise": lambda x, y: x + y * 2.5,
    "in place": lambda x, y: x.clone().add_(y).mul_(0.5),
    "with itself": lambda x, _: x.clone().add_(x),
    "onto a view": lambda x, y: x.clone()[1:3, ::2].mul_(y[1:3, ::2]),
    "out=": lambda x, y: torch.mm(x, y, out=torch.empty_like(x)),
    "out= of another shape": lambda x, y: torch.add(x, y, out=x.new_empty(0)),
    "two results": lambda x, _: torch.max(x, 1),
    "a list of results": lambda x, _: torch._foreach_sqrt([x.abs(), x * x]),
    "a list of inputs": lambda x, y: torch.cat([x, y, x], 1),
    "transposed": lambda x, y: x.t() @ y,
    "expanded": lambda x, y: x[:, :1].expand(4, 4) - y,
    "not aligned": lambda x, _: x.view(-1)[1:5].exp(),
    "no elements": lambda x, y: x[:0] + y[:0],
    "no dimensions": lambda x, y: x.sum() * y.sum(),
    "lazily conjugated": lambda x, y: torch.complex(x, y).conj() * 2,
    "indices": lambda x, _: x[[2, 0]],
    "integers": lambda x, _: (x * 10).to(torch.int64) // 3,
    "bool": lambda x, y: (x > y).logical_not(),
    "a factory": lambda x, _: torch.arange(5, device=x.device) * 2,
    "a gradient that nobody asked for": lambda x, y: weight_gradient(x - y),
}


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.parametrize("operator", [pytest.param(function, id=name) for name, function in OPERATORS.items()])
def test_every_call_gives_what_the_first_gave_and_the_cpu_gives(
    operator: Callable[[torch.Tensor, torch.Tensor], Any],
) -> None:
    for _ in range(4):
        x, y = torch.rand(4, 4), torch.rand(4, 4)
        for expected, got in zip(flat(operator(x, y)), flat(operator(x.to("neuron"), y.to("neuron"))), strict=True):
            assert got.device.type == "neuron"
            assert got.is_contiguous() == expected.is_contiguous()
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)


def test_a_training_step_that_was_seen_before_needs_no_python(python_calls: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).to("neuron")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, labels = torch.randn(2, 1, 4, 4).to("neuron"), torch.tensor([0, 2]).to("neuron")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    step()
    step()
    python_calls.clear()
    step()
    assert python_calls == []


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(lambda x: nn.functional.layer_norm(x, (4,), x[0], x[1]), id="layer norm"),
        pytest.param(lambda x: nn.functional.group_norm(x[None], 2), id="group norm"),
        pytest.param(lambda x: nn.functional.rms_norm(x, (4,), x[0]), id="RMS norm"),
        pytest.param(lambda x: x.logsumexp(1), id="logsumexp"),
    ],
)
def test_an_operator_that_torch_would_take_apart_is_one_compile(operator: Callable[[torch.Tensor], Any]) -> None:
    x = torch.rand(4, 4)
    with dispatch.without_plans():
        got = operator(x.to("neuron"))
        assert len(dispatch.plans()) == 1
    torch.testing.assert_close(got.cpu(), operator(x), rtol=1e-5, atol=1e-6)


def test_a_program_sees_what_was_written_since_it_last_ran() -> None:
    x = torch.zeros(8, device="neuron")
    seen = [(x + 1).sum().item()]
    for write in (
        lambda: x.mul_(0).fill_(2.0),
        lambda: x.copy_(torch.full((8,), 3.5)),
        lambda: x.add_(1).mul_(2),
        x[::2].zero_,
        lambda: x.view(2, 4)[1].fill_(10.0),
        lambda: x.resize_(16)[8:].fill_(1.0),
    ):
        write()
        assert (x + 1).sum().item() == (x.cpu() + 1).sum().item()
        seen.append(x.sum().item())
    assert len(set(seen)) == len(seen)


def test_a_view_that_is_not_aligned_is_read_anew() -> None:
    x = torch.arange(8.0, device="neuron")
    view = x[1:5]
    for value in (1.0, 2.0, 3.0):
        x.fill_(value)
        assert torch.equal(torch.neg(view).cpu(), torch.full((4,), -value))


def test_views_and_results_that_share_memory_keep_sharing_it() -> None:
    x = torch.zeros(4, device="neuron")
    view, alias = x[:2], x.detach()
    for turn in range(1, 4):
        x.add_(1)
        assert torch.equal(view.cpu(), torch.full((2,), float(turn)))
        assert alias.data_ptr() == x.data_ptr()


def test_scalars_that_look_alike_are_told_apart_when_warm() -> None:
    x = torch.tensor([1.0, -2.0, 0.0])
    device = x.to("neuron")
    for _ in range(3):
        for value in (0.0, -0.0, 1, True, 1.0, 0.5, 0.25, float("inf")):
            expected = torch.copysign(x, value), x * value, torch.full_like(x, value, dtype=torch.float64)
            got = torch.copysign(device, value), device * value, torch.full_like(device, value, dtype=torch.float64)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)
                assert torch.equal(torch.signbit(one.cpu()), torch.signbit(other))


def test_autocast_and_the_default_type_decide_for_warm_calls_too() -> None:
    x = torch.rand(4, 4, device="neuron")
    for _ in range(3):
        assert (x @ x).dtype is torch.float32
        with torch.autocast("neuron", dtype=torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16


def test_an_error_is_the_same_when_the_operator_is_warm() -> None:
    x, y = torch.rand(4, 4, device="neuron"), torch.rand(3, 3, device="neuron")
    for _ in range(3):
        (x + x).sum()
        with pytest.raises(RuntimeError, match="must match"):
            x + y


def test_memory_of_warm_results_is_counted_and_given_back() -> None:
    x = torch.rand(1000, device="neuron")
    for _ in range(2):
        x.exp()
    gc.collect()  # what other tests left in circles
    before = torch.neuron.memory_allocated()
    results = [x.exp() for _ in range(5)]
    assert torch.neuron.memory_allocated() == before + 5 * 4000
    del results
    assert torch.neuron.memory_allocated() == before
    x.requires_grad_()
    for _ in range(3):  # autograd's own threads let tensors go without the interpreter's lock
        (x.exp().sin() * x).sum().backward()
        x.grad = None
    assert torch.neuron.memory_allocated() == before


def test_threads_share_programs_and_tensors() -> None:
    x = torch.rand(16, 16, device="neuron")
    expected = (x.cpu() @ x.cpu()).relu()
    wrong: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(50):
            got = (x @ x).relu().cpu()
            if not torch.allclose(got, expected, rtol=1e-5, atol=1e-5):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_what_was_forgotten_is_made_again(python_calls: list[str]) -> None:
    x = torch.rand(4, device="neuron")
    torch.erf(x)
    python_calls.clear()
    torch.erf(x)
    assert python_calls == []
    dispatch.clear()
    torch.erf(x)
    assert len(python_calls) == 1
    with dispatch.without_plans():
        python_calls.clear()
        torch.erf(x)
        assert len(python_calls) == 1


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_tensors_are_joined_as_on_the_cpu_however_they_lie(dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4).to(dtype)
    for pieces in (
        lambda x: [x, x * 1],
        lambda x: [x, x.t().contiguous().t(), x[:, :]],
        lambda x: [x[:0] if dim == 0 else x[:, :0], x],
        lambda x: [x.conj(), x],
        lambda x: [x, x.float()] if not dtype.is_complex else [x, x.real],
        lambda x: [torch.empty(0, dtype=dtype, device=x.device), x],
        lambda x: [
            x.reshape(1, 3, 2, 2)[:, :, :, :1],
            x.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)[:, :, :, 1:],
        ],
    ):
        expected = torch.cat(pieces(x), dim)
        result = torch.cat(pieces(x.to("neuron")), dim)
        torch.testing.assert_close(result.cpu(), expected)
        assert result.stride() == expected.stride()
    out = torch.zeros(6, 4, dtype=dtype, device="neuron")
    torch.cat([out[:3] + x.to("neuron"), x.to("neuron")], 0, out=out)
    torch.testing.assert_close(out.cpu(), torch.cat([x, x]))
    with pytest.raises(RuntimeError, match="memory"):
        torch.cat([out[:3], out[3:]], 0, out=out)


def test_a_sequence_that_grows_by_a_token_is_no_reason_to_compile(programs_made: Callable[[], int]) -> None:
    ids, step = (
        torch.zeros(1, 1, dtype=torch.int64, device="neuron"),
        torch.ones(1, 1, dtype=torch.int64, device="neuron"),
    )
    for _ in range(12):
        ids = torch.cat([ids, ids[:, -1:] + step], 1)
    assert ids.tolist() == [list(range(13))]
    assert programs_made() <= 2
