"""Dynamo leaves the backend's own Python alone."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from neuron_backend.eager import dispatch


def test_operators_of_a_function_that_dynamo_skips_run_as_they_do_elsewhere():
    """Its callees are still looked at, and our kernels are such: traced as a model, they failed or filled graphs."""

    @torch.compiler.disable(recursive=False)
    def skipped(x: torch.Tensor) -> torch.Tensor:
        return torch.asinh(x[:, :3]).clamp(max=0.75) * 1.75

    @torch.compile(backend="neuron")
    def function(x: torch.Tensor) -> torch.Tensor:
        return skipped(x.sin()) + x[:, :3]

    torch._dynamo.reset()
    counters.clear()
    example = torch.arange(10, dtype=torch.float32).reshape(2, 5)
    for _ in range(2):
        found = function(example.to("neuron"))
        torch.testing.assert_close(
            found.cpu(), torch.asinh(example.sin()[:, :3]).clamp(max=0.75) * 1.75 + example[:, :3]
        )
    assert counters["stats"]["unique_graphs"] == 2  # before and after it


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # that is what it is told
def test_an_operator_that_is_kept_out_of_graphs_runs_between_them_the_first_time_too():
    """It is called with Dynamo's hook in place; a warm call never enters our Python."""
    torch._dynamo.reset()
    dispatch.clear()
    torch._dynamo.disallow_in_graph(torch.sub)
    try:
        compiled = torch.compile(lambda x: torch.sub(x + 1, 2) * 2, backend="eager")
        example = torch.arange(7, dtype=torch.float32)
        torch.testing.assert_close(compiled(example.to("neuron")).cpu(), (example - 1) * 2)
    finally:
        torch._dynamo.allow_in_graph(torch.sub)
        torch._dynamo.reset()
