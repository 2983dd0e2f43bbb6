"""Training with torch's optimizers: the CPU's numbers, and no compile after the first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import neuron_backend

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 8
WARM = 2

Make = "Callable[[Any], torch.optim.Optimizer]"

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam, one tensor at a time": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.05, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


def train(device: str, make: Callable[[Any], torch.optim.Optimizer], count: Callable[[], int]) -> Any:
    """Return losses, final parameters, and the number of programs after each step. The learning rate changes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs, labels = torch.randn(16, 6), torch.randint(0, 3, (16,))
    model, inputs, labels = model.to(device), inputs.to(device), labels.to(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses, programs = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        programs.append(count())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()], programs


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in OPTIMIZERS.items()])
def test_training_agrees_with_the_cpu_and_compiles_nothing_once_warm(
    make: Callable[[Any], torch.optim.Optimizer], programs_made: Callable[[], int]
) -> None:
    losses, parameters, _ = train("cpu", make, programs_made)
    got, trained, programs = train("neuron", make, programs_made)
    assert got == pytest.approx(losses, abs=1e-5)
    for one, other in zip(trained, parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert programs[WARM] == programs[-1], "programs grow with steps"
    assert neuron_backend.get_fallback_ops() == {}


def test_two_runs_agree_to_the_bit(programs_made: Callable[[], int]) -> None:
    make = OPTIMIZERS["Adam"]
    first, second = train("neuron", make, programs_made), train("neuron", make, programs_made)
    assert first[0] == second[0]
    assert all(torch.equal(one, other) for one, other in zip(first[1], second[1], strict=True))
