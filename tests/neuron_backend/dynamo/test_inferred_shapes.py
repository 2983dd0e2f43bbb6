"""Operators whose results have a shape that only we can tell before they run: no graph breaks there."""

from __future__ import annotations

import pytest
import torch
from torch import linalg
from torch._dynamo.exc import Unsupported
from torch.nn.functional import ctc_loss


def test_a_speech_model_with_lengths_in_tensors_is_one_graph() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4, 5)
    targets = torch.randint(1, 5, (4, 3))
    lengths = torch.tensor([6, 4, 2, 5]), torch.tensor([3, 0, 1, 2])

    def loss(logits: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return ctc_loss(logits.log_softmax(2), *given, zero_infinity=True)

    on_cpu, on_device = (logits.detach().to(device).requires_grad_() for device in ("cpu", "neuron"))
    expected = loss(on_cpu, targets, *lengths)
    result = torch.compile(loss, backend="neuron", fullgraph=True)(
        on_device, *(each.to("neuron") for each in (targets, *lengths))
    )
    torch.autograd.backward([expected, result])
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(on_device.grad.cpu(), on_cpu.grad)


def test_targets_one_after_the_other_still_break_the_graph_if_their_lengths_are_tensors() -> None:
    """How many columns the padded targets have is then a value."""
    compiled = torch.compile(ctc_loss, backend="neuron", fullgraph=True)
    logits, targets, lengths = torch.randn(6, 2, 5), torch.tensor([1, 2, 3]), torch.tensor([1, 2])
    given = (logits, targets, torch.tensor([6, 5]), lengths)
    with pytest.raises(Unsupported, match="_ctc_loss"):
        compiled(*(each.to("neuron") for each in given))


def _fitted(matrix: torch.Tensor, low: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
    return [
        *linalg.lstsq(matrix, right, driver="gels"),
        *linalg.lstsq(matrix.mT, right[:, :3], driver="gels"),
        *linalg.lstsq(low.mT, right[:, :3, 0], driver="gelsd"),
    ]


def test_a_fit_by_least_squares_is_one_graph() -> None:
    """Tall, wide and of low rank, of matrices and vectors; with residuals, rank and singular values as on the CPU."""
    torch.manual_seed(0)
    matrix, low, right = torch.randn(2, 5, 3), torch.randn(2, 5, 1) @ torch.randn(2, 1, 3), torch.randn(2, 5, 2)
    expected = _fitted(matrix, low, right)
    results = torch.compile(_fitted, backend="neuron", fullgraph=True)(*(t.to("neuron") for t in (matrix, low, right)))
    torch.testing.assert_close([each.cpu() for each in results], expected, rtol=1e-4, atol=1e-4)


def test_residuals_that_depend_on_the_rank_still_break_the_graph() -> None:
    compiled = torch.compile(lambda x: linalg.lstsq(x, x, driver="gelsd"), backend="neuron", fullgraph=True)
    with pytest.raises(Unsupported, match="lstsq"):
        compiled(torch.randn(5, 3).to("neuron"))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 5, 3)])
@pytest.mark.parametrize("driver", ["gels", None])
def test_a_solution_of_least_squares_lies_as_on_the_cpu(shape: tuple[int, ...], driver: str | None) -> None:
    draw = torch.Generator().manual_seed(0)
    matrix, right = torch.randn(shape, generator=draw), torch.randn(*shape[:-1], 2, generator=draw)

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lstsq(a, b, driver=driver).solution

    expected = solve(matrix, right)
    ours = torch.compile(solve, backend="neuron")(matrix.to("neuron"), right.to("neuron"))
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-3, atol=1e-4)
    assert ours.stride() == expected.stride()
