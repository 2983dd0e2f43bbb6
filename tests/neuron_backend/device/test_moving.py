"""A module that moves to the device stays the module it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    """An embedding whose weight is also that of the last layer, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, device: str, count: int = 3) -> list[float]:
    tokens = torch.tensor([1, 2, 3, 1], device=device)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("move", [lambda m: m.to("neuron"), lambda m: m.neuron()], ids=["to", "neuron"])
def test_layers_that_share_a_weight_share_it_after_the_move(move):
    model = Tied()
    before = model.embed.weight
    move(model)
    assert model.head.weight is model.embed.weight is before
    assert before.device.type == "neuron"
    model.cpu()
    assert model.head.weight is model.embed.weight is before
    assert before.device.type == "cpu"


@pytest.mark.parametrize("early", [True, False], ids=["before-the-move", "after-the-move"])
def test_an_optimizer_trains_the_model_whenever_it_was_made(early):
    torch.manual_seed(0)
    reference = Tied()
    model = copy.deepcopy(reference)
    if early:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model.to("neuron")
    else:
        model.to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ours = steps(model, optimizer, "neuron")
    theirs = steps(reference, torch.optim.SGD(reference.parameters(), lr=0.5), "cpu")
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[-1] < ours[0]


def test_gradients_move_with_their_parameters():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad.clone()
    model.to("neuron")
    assert model.weight.grad.device.type == "neuron"
    assert torch.equal(model.weight.grad.cpu(), gradient)


def test_a_parameter_in_use_moves_as_between_torchs_own_devices():
    model = Tied()
    alive = model(torch.tensor([1]))  # its graph holds the parameters
    before = model.embed.weight
    model.to("neuron")
    assert model.head.weight is model.embed.weight is before
    del alive


def test_moves_between_other_devices_stay_as_they_were():
    model = nn.Linear(2, 2)
    before = model.weight
    model.double()
    assert model.weight is before
    hollow = nn.Linear(2, 2, device="meta").to_empty(device="neuron")
    assert hollow.weight.device.type == "neuron"
