"""Operators on lists of tensors: one program for a list, and fused optimizers and gradient scaling on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import neuron_backend

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 50


def tensors(device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.rand(shape, device="cpu").to(device) + 0.5 for shape in ((3,), (2, 4), (1,), ())]


LISTS: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "a scalar": lambda x: torch._foreach_add(x, 2.5),
    "a scalar each": lambda x: torch._foreach_mul(x, [1.5, 2.0, 0.0, -1.0]),
    "a list": lambda x: torch._foreach_div(x, x[::-1][::-1]),
    "a tensor": lambda x: torch._foreach_mul(x, x[3]),
    "alpha": lambda x: torch._foreach_sub(x, x, alpha=0.25),
    "three lists": lambda x: torch._foreach_addcdiv(x, x, x, 0.3),
    "a tensor of scalars": lambda x: torch._foreach_addcmul(x, x, x, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "interpolation": lambda x: torch._foreach_lerp(x, torch._foreach_neg(x), 0.1),
    "norms": lambda x: torch._foreach_norm(x, 2),
    "in place": lambda x: (torch._foreach_sqrt_(x), torch._foreach_add_(x, x), x)[2],
    "copies": lambda x: (torch._foreach_copy_(x, [each.cpu() * 2 for each in x]), x)[1],
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in LISTS.items()])
def test_lists_agree_with_the_cpu(function: Callable[[list[torch.Tensor]], Any]) -> None:
    for _ in range(2):
        for got, expected in zip(function(tensors("neuron")), function(tensors("cpu")), strict=True):
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)
    assert neuron_backend.get_fallback_ops() == {}


def test_a_list_is_one_program_whatever_its_scalars(programs_made: Callable[[], int]) -> None:
    values = [torch.rand(3, size + 2, device="cpu").to("neuron") for size in range(6)]
    for scalar in (0.1, 0.2, 7.5):
        torch._foreach_mul_(values, scalar)
        torch._foreach_addcdiv_(values, values, values, [scalar * (index + 2.3) for index in range(6)])
    assert programs_made() == 2


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "fused Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, fused=True),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, maximize=True, fused=True),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, fused=True),
    "fused Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01, fused=True),
}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in OPTIMIZERS.items()])
@pytest.mark.share(2)
def test_fifty_steps_at_falling_rates_compile_nothing_after_the_second(
    make: Callable[[Any], torch.optim.Optimizer], programs_made: Callable[[], int]
) -> None:
    def train(device: str) -> tuple[list[torch.Tensor], list[int]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(device)
        x = torch.randn(8, 4).to(device)
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        programs = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            schedule.step()
            programs.append(programs_made())
        return [parameter.detach().cpu() for parameter in model.parameters()], programs

    expected, _ = train("cpu")
    got, programs = train("neuron")
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert programs[1] == programs[-1], "programs grow with steps"
    assert neuron_backend.get_fallback_ops() == {}


@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaling_skips_what_is_not_finite_and_takes_the_scale_out(fused: bool) -> None:
    def train(device: str) -> tuple[torch.Tensor, list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
        scales = []
        for factor in (1.0, float("inf"), 1.0, 1.0, 2.0):
            optimizer.zero_grad()
            loss = (model(torch.ones(3, 4).to(device)) * factor).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return model.weight.detach().cpu(), scales

    (got, scales), (expected, expected_scales) = train("neuron"), train("cpu")
    torch.testing.assert_close(got, expected)
    assert scales == expected_scales == [256.0, 128.0, 128.0, 256.0, 256.0]
    assert neuron_backend.get_fallback_ops() == {}


@pytest.mark.parametrize(
    "name", ["add_", "sub_", "mul_", "div_", "exp_", "sqrt_", "neg_", "lerp_", "addcmul_", "copy_"]
)
def test_autograd_notices_that_a_list_was_written(name: str) -> None:
    """Else a gradient is made of the changed value, in silence."""
    more = {
        **dict.fromkeys(("add_", "sub_", "mul_", "div_"), lambda _: (2.0,)),
        "lerp_": lambda x: ([x.clone()], 0.5),
        "addcmul_": lambda x: ([x.clone()], [x.clone()]),
        "copy_": lambda x: ([x.clone()],),
    }.get(name, lambda _: ())
    for _ in range(2):  # the second call runs from the device library
        moved = []
        for device in ("cpu", "neuron"):
            x = torch.full((3,), 0.5, device=device)
            before = x._version
            getattr(torch, f"_foreach_{name}")([x], *more(x))
            moved.append(x._version - before)
        assert moved[0] == moved[1]
    leaf = torch.ones(3, device="neuron", requires_grad=True)
    saved = leaf.exp()
    with torch.no_grad():
        getattr(torch, f"_foreach_{name}")([saved], *more(saved))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
