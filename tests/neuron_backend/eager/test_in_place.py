"""Writing to tensors that others look at: views, overlap, ``out=``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Change = "Callable[[torch.Tensor], object]"


def matrix() -> torch.Tensor:
    return torch.arange(16.0).reshape(4, 4)


def masked(x: torch.Tensor) -> None:
    x[x > 5] = 0


def slice_set(x: torch.Tensor) -> None:
    x[0, 1:3] = 5


def rows_set(x: torch.Tensor) -> None:
    x[[0, 2]] = x[[1, 3]]


def accumulate(x: torch.Tensor) -> None:
    index = torch.tensor([0, 0, 1], device=x.device)
    x.index_put_((index,), torch.ones(3, 4, device=x.device), accumulate=True)


def chained(x: torch.Tensor) -> None:
    x.t()[1:].mul_(2).add_(x[0, :1]).clamp_(max=20)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "a row": lambda x: x[1].add_(10),
    "a column": lambda x: x[:, 1].mul_(3),
    "a transposed block": lambda x: x.t()[1:3].mul_(2),
    "every other element": lambda x: x.view(-1)[::2].sub_(1),
    "a diagonal": lambda x: x.diagonal().fill_(9),
    "a diagonal by an operator": lambda x: x.diagonal().add_(1),
    "a slice set": slice_set,
    "a mask set": masked,
    "rows set from rows": rows_set,
    "accumulation": accumulate,
    "the same tensor twice": lambda x: x.add_(x),
    "a column added to its neighbour": lambda x: x[:, 0].add_(x[:, 1]),
    "a row added to another": lambda x: x[0].add_(x[1]),
    "a whole list": lambda x: torch._foreach_add_([x[0], x[1]], 2),
    "one tensor twice in a list": lambda x: torch._foreach_add_([x, x], 1),
    "a chain": chained,
    "zero_": lambda x: x[1:].zero_(),
    "copy_ between types": lambda x: x[0].copy_(torch.arange(4, device=x.device)),
    "copy_ from an expanded tensor": lambda x: x.copy_(x[0].clone().expand(4, 4)),
    "relu_": lambda x: x.sub_(8).relu_(),
}


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in CHANGES.items()])
@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
def test_a_change_is_seen_through_every_view(change: Callable[[torch.Tensor], object]) -> None:
    expected, got = matrix(), matrix().to("neuron")
    view = got.t()
    change(expected)
    change(got)
    assert torch.equal(got.cpu(), expected)
    assert torch.equal(view.cpu(), expected.t())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: x.add_(x.t()), id="a tensor and its transpose"),
        pytest.param(lambda x: x[1:].add_(x[:-1]), id="a shifted tensor"),
        pytest.param(lambda x: x[0].expand(3, 4).add_(1), id="an expanded tensor"),
        pytest.param(lambda x: torch.add(x[:3], 1, out=x[1:]), id="out= over the input"),
        pytest.param(lambda x: x[0].expand(3, 4).copy_(torch.ones(3, 4)), id="a copy to an expanded tensor"),
    ],
)
def test_overlap_that_torch_refuses_is_refused(change: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="unsupported operation") as expected:
        change(matrix())
    device = matrix().to("neuron")
    with pytest.raises(RuntimeError) as got:
        change(device)
    assert str(got.value) == str(expected.value)


def test_out_is_resized_with_torchs_warning() -> None:
    x = matrix().to("neuron")
    assert torch.equal(torch.add(x, x, out=torch.empty(0, device="neuron")).cpu(), matrix() * 2)
    target = torch.ones(2, device="neuron")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=target)
    assert torch.equal(target.cpu(), matrix() * 2)


def test_out_keeps_its_strides_and_its_type() -> None:
    x = matrix().to("neuron")
    base = torch.zeros(4, 8, device="neuron", dtype=torch.float64)
    target = base[:, ::2]
    torch.mul(x, 0.5, out=target)
    assert torch.equal(target.cpu(), matrix().double() * 0.5)
    assert torch.equal(base[:, 1::2].cpu(), torch.zeros(4, 4, dtype=torch.float64))


def test_out_of_a_type_that_cannot_hold_the_result_is_refused() -> None:
    x = matrix().to("neuron")
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(x, x, out=torch.empty(4, 4, dtype=torch.int64, device="neuron"))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        x.long().add_(0.5)


def test_out_of_several_results() -> None:
    x = matrix().to("neuron")
    values, indices = torch.empty(0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
    torch.max(x, 1, out=(values, indices))
    assert torch.equal(values.cpu(), matrix().max(1).values)
    assert torch.equal(indices.cpu(), matrix().max(1).indices)


def test_out_of_an_operator_that_runs_on_the_cpu() -> None:
    x = matrix().to("neuron")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        got = torch.nonzero(x > 13, out=torch.empty(0, 2, dtype=torch.int64, device="neuron"))
    assert torch.equal(got.cpu(), torch.nonzero(matrix() > 13))


def test_views_of_a_result_are_views() -> None:
    x = matrix().to("neuron")
    real = torch.view_as_real(torch.complex(matrix(), matrix()).to("neuron"))
    for view in (x.t(), x[1:], x.view(2, 8), x.unfold(0, 2, 1), x.diagonal(), x.unsqueeze(0), x.movedim(0, 1)):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    real[..., 0].zero_()
    assert torch.equal(torch.view_as_complex(real).cpu(), torch.complex(torch.zeros(4, 4), matrix()))


def test_a_tensor_saved_for_backward_may_not_be_changed() -> None:
    x = matrix().to("neuron").requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_parameters_keep_what_shares_their_memory() -> None:
    parameter = torch.nn.Parameter(matrix().to("neuron"))
    shared = parameter.detach()
    with torch.no_grad():
        parameter.add_(1)
    assert torch.equal(shared.cpu(), matrix() + 1)


@pytest.mark.filterwarnings("ignore:.*torch.range is deprecated")
@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(0, 4, out=out),
        lambda out: torch.linspace(0, 3, 4, out=out),
        lambda out: torch.logspace(0, 3, 4, out=out),
        lambda out: torch.range(0, 3, out=out),
    ],
    ids=["arange", "linspace", "logspace", "range"],
)
@pytest.mark.parametrize(
    "view",
    [lambda x: x.narrow(1, 1, 2), lambda x: x[:, :2].t(), lambda x: x.new_empty(0)],
    ids=["narrow", "transposed", "empty"],
)
def test_a_range_fills_an_out_of_as_many_elements_and_nothing_beside_it(fill: Any, view: Any) -> None:
    found = []
    for device in ("cpu", "neuron"):
        for _ in range(2):  # cold, then warm
            base = torch.zeros(2, 3, device=device)
            out = view(base)
            fill(out)
        found.append((base.cpu().tolist(), out.cpu().tolist(), out.shape, out.stride()))
    assert found[0] == found[1]
