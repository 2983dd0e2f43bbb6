"""What warm calls give their programs: strided tensors, numbers and random numbers, as the slow path gives them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from neuron_backend.eager import dispatch
from neuron_backend.eager.program import Program
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

NEURON = torch.device("neuron")

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[:, ::2, 1::3],
    "expanded": lambda x: x[:, :1, 2:3].expand(4, 7, 5),
    "one element many times": lambda x: x[1, 2, 3].expand(3, 4),
    "a row that is not aligned": lambda x: x[0, 1, 1:],
    "overlapping windows": lambda x: x.view(-1).unfold(0, 5, 2),
    "no elements": lambda x: x[:, 3:3].transpose(0, 2),
    "axes of size 1": lambda x: x[:1, :, :1].permute(2, 1, 0),
}

DTYPES = (torch.bool, torch.int16, torch.float32, torch.float64, torch.complex128)

# Every call of these runs from the device library, from the second on.
WARM: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "transposed": lambda x, y: x + y.t(),
    "rand": lambda *_: torch.rand(4, device=NEURON),
    "rand of a generator": lambda *_: torch.rand(4, device=NEURON, generator=torch.Generator(NEURON)),
    "in place": lambda x, _: x.normal_(),
    "dropout": lambda x, _: functional.dropout(x),
    "batch norm": lambda x, y: functional.batch_norm(x, y[0], y[1].clone(), training=True),
    "clamp": lambda x, _: x.clamp(0.25, 0.5),
    "power": lambda x, _: x**2.5,
    "rounded division": lambda x, _: torch.div(x, 2.5, rounding_mode="floor"),
    "integers by a float": lambda x, _: x.to(torch.int32) * 2.5,
}


@pytest.mark.parametrize("name", WARM)
def test_no_kind_of_input_needs_python_when_it_was_seen_before(name: str, python_calls: list[str]) -> None:
    x, y = torch.rand(4, 4, device=NEURON), torch.rand(4, 4, device=NEURON)
    for _ in range(2):
        WARM[name](x, y)
    python_calls.clear()
    WARM[name](x, y)
    assert python_calls == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_of_every_size_are_read_where_the_strides_say(dtype: torch.dtype) -> None:
    for turn in range(3):
        x = (torch.arange(4 * 6 * 8).view(4, 6, 8) * 7 + turn).remainder(11).to(dtype)
        device = x.to(NEURON)
        for name, view in VIEWS.items():
            assert torch.equal(torch.cat([view(device), view(device)]).cpu(), torch.cat([view(x), view(x)])), name


def test_large_tensors_are_read_where_the_strides_say() -> None:
    x = torch.rand(120, 130)
    device = x.to(NEURON)
    for _ in range(3):
        for view in (torch.t, lambda x: x[:, 1:], lambda x: x[1:], lambda x: x[::2].t()):
            x += 1
            device += 1
            assert torch.equal((-view(device)).cpu(), -view(x))


def test_inputs_of_one_size_are_not_taken_for_each_other() -> None:
    x, y, z = (torch.rand(4, 4, device=NEURON) for _ in range(3))
    expected = x.cpu().t() - 2 * y.cpu().t() * z.cpu().t()
    for _ in range(3):
        assert torch.allclose(torch.addcmul(x.t(), y.t(), z.t(), value=-2.0).cpu(), expected)


def test_threads_do_not_read_each_others_copies() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((16, 16), float(number)).triu().to(NEURON)
        expected = x.cpu().t() * float(number)
        got = [(x.t() * float(number)).cpu() for _ in range(40)]
        wrong.extend(number for each in got if not torch.equal(each, expected))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_views_that_change_places_see_what_was_written() -> None:
    """Larger than what is copied: both views want an array over the same memory."""
    x = torch.zeros(2, 8192, device=NEURON)
    for turn in range(1, 4):
        x[0].fill_(float(turn))
        x[1].fill_(-float(turn))
        for row, value in ((0, turn), (1, -turn), (0, turn)):
            assert torch.equal(torch.neg(x[row]).cpu(), torch.full((8192,), -float(value)))


def draws() -> list[torch.Tensor]:
    generator = torch.Generator(NEURON).manual_seed(7)
    x = torch.empty(3, 5, device=NEURON)
    made = [torch.rand(6, device=NEURON), torch.rand(6, device=NEURON, generator=generator)]
    made += [x.uniform_(generator=generator).clone(), functional.dropout(torch.ones(9, device=NEURON))]
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        made.append(torch.rand(6, device=NEURON))
    state = torch.neuron.get_rng_state()
    made += [torch.rand(6, device=NEURON), functional.gumbel_softmax(torch.ones(5, device=NEURON))]
    torch.neuron.set_rng_state(state)
    made += [torch.rand(6, device=NEURON), torch.neuron.get_rng_state(), generator.get_state()]
    return [each.cpu() for each in made]


def test_warm_and_cold_calls_draw_the_same_numbers_and_leave_the_same_state() -> None:
    torch.manual_seed(3)
    with dispatch.without_plans():
        cold = draws()
    for _ in range(3):
        torch.manual_seed(3)
        for expected, got in zip(cold, draws(), strict=True):
            assert torch.equal(got, expected)
    assert torch.equal(cold[4], cold[5])
    assert torch.equal(cold[5], cold[7])


def test_a_program_that_xla_refuses_takes_no_steps_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch.clear()
    torch.rand(17, device=NEURON)
    ((key, plan),) = dispatch._plans.items()
    assert isinstance(plan, Program)

    refused = []

    def refuse(_arrays: Any) -> None:
        refused.append(1)
        raise RuntimeError("no")

    class Refusing:
        signature = plan.executable.signature
        direct = plan.executable.direct._replace(execute=refuse)

        def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return plan.executable(inputs)

    wrapped = replace(plan, executable=Refusing())
    monkeypatch.setitem(dispatch._plans, key, wrapped)
    torch.ops.neuron_device.forget()
    torch.manual_seed(5)
    for _ in range(3):
        torch.rand(17, device=NEURON)
    assert refused
    assert torch.neuron.default_generators()[0].get_offset() == 3
    dispatch.clear()


def test_running_statistics_follow_every_warm_step() -> None:
    cpu = nn.BatchNorm1d(5)
    device = nn.BatchNorm1d(5).to(NEURON)
    view = device.running_mean[1:3]
    for _ in range(5):
        x = torch.rand(6, 5)
        torch.testing.assert_close(device(x.to(NEURON)).cpu(), cpu(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(device.running_mean.cpu(), cpu.running_mean)
    torch.testing.assert_close(device.running_var.cpu(), cpu.running_var)
    assert torch.equal(view.cpu(), device.running_mean.cpu()[1:3])
    assert device.num_batches_tracked.item() == 5


def test_floats_that_are_compiled_in_are_told_apart_when_warm() -> None:
    x = torch.tensor([7, -3, 12])
    device = x.to(NEURON)
    for _ in range(3):
        for value in (2.5, 0.5, -1.5, 2.5, 3.0):
            expected = torch.div(x, value, rounding_mode="floor"), x * value, torch.add(x.float(), 1, alpha=value)
            got = (
                torch.div(device, value, rounding_mode="floor"),
                device * value,
                torch.add(device.float(), 1, alpha=value),
            )
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one.cpu(), other)
