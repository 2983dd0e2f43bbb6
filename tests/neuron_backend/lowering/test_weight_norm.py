"""Weight normalisation trains on the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import neuron_backend


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_normalised_weight_are_the_cpus(dim, dtype):
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3), dim=dim).to(dtype)
    twin = copy.deepcopy(layer).to("neuron")
    values = torch.randn(2, 4, 9).to(dtype)
    neuron_backend.clear_fallback_ops()
    for each, place in ((layer, "cpu"), (twin, "neuron")):
        each(values.to(place)).square().sum().backward()
    assert neuron_backend.get_fallback_ops() == {}
    for name, parameter in layer.named_parameters():
        found = twin.get_parameter(name).grad
        assert found is not None
        near = {"rtol": 5e-2, "atol": 0.5} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(found.cpu(), parameter.grad, **near)
