"""A factorization that fails in a compiled graph raises what it raises in eager code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda x: torch.linalg.solve(x, x[0]),
        lambda x: torch.linalg.inv(x + torch.eye(3, device=x.device)) + torch.linalg.cholesky(x),
    ],
)
def test_a_matrix_that_has_no_result_is_an_error(function: Function) -> None:
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    good = torch.tensor([[2.0, 0.5, 0.0], [0.5, 3.0, 0.25], [0.0, 0.25, 1.0]])
    torch.testing.assert_close(compiled(good.to("neuron")).cpu(), function(good))
    bad = torch.zeros(3, 3)
    with pytest.raises(RuntimeError) as expected:
        function(bad)
    with pytest.raises(type(expected.value)) as raised:
        compiled(bad.to("neuron"))
    assert str(raised.value) == str(expected.value)
