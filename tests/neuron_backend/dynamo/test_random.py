"""Random numbers in compiled graphs: those that the same code draws operator by operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

NEURON = torch.device("neuron")
Function = Callable[[torch.Tensor], torch.Tensor]


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(8, 32),
        torch.nn.Dropout(0.4),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 8),
        torch.nn.Dropout(0.2),
    ]
    return torch.nn.Sequential(*layers).to(NEURON)


def _outcome(function: Function, model: torch.nn.Module) -> list[torch.Tensor]:
    """Result, gradients, and a number drawn after them."""
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 40, device=NEURON).reshape(5, 8).requires_grad_()
    result = function(x)
    gradients = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
    return [each.detach().cpu() for each in (result, *gradients, torch.rand(3, device=NEURON))]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.share(1)
def test_a_graph_draws_what_eager_code_draws(recompute: bool) -> None:
    model = _model()

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        noise = torch.randn_like(hidden) * torch.rand(8, device=x.device)
        return hidden + noise + torch.empty_like(hidden).uniform_(1, 2)

    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    expected = _outcome(function, model)
    for got, wanted in zip(_outcome(compiled, model), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(_outcome(compiled, model)[-1], expected[-1]), "as many steps of the generator"


def test_every_run_of_a_graph_draws_anew_without_another_program() -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="neuron", fullgraph=True)
    x = torch.ones(256, device=NEURON)
    torch.manual_seed(1)
    first, second = compiled(x).cpu(), compiled(x).cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(compiled(x).cpu(), first)
    torch.manual_seed(2)
    assert not torch.equal(compiled(x).cpu(), first)
