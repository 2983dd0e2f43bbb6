"""What people write inside ``torch.compile``: results, gradients, changed inputs are those of torch on the CPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

import neuron_backend

if TYPE_CHECKING:
    from collections.abc import Callable


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Result:
    total: torch.Tensor
    parts: list[torch.Tensor]


def graph_break(x, y):
    z = x @ y
    torch._dynamo.graph_break()
    return x.sin() + z


def break_in_a_branch(x, y):
    if x.sum() > -1e9:
        return x @ y
    return x


def two_outputs_one_unused(x, y):
    return x.exp(), (y.sum(), None, "name", 3)


def mutated_input(x, y):
    x = x.clone()
    x[0] = 1
    x.mul_(2)
    x[:, 1].add_(y.sum())
    return x


def nested_containers(x, y):
    return {"a": [x + 1, (y, {"b": x * y.mean()})], "c": Pair(x, x.relu())}


def dataclass_result(x, y):
    result = Result(x.sum(), [x * 2])
    result.parts.append(y.t())
    return result.total, result.parts


def no_grad_inside(x, y):
    with torch.no_grad():
        scale = (x * x).mean()
    return (x * scale) @ y


def detached(x, y):
    return (x.detach() * 2 + x) @ y


def checkpointed(x, y):
    return checkpoint(lambda a, b: (a @ b).tanh().exp(), x, y, use_reentrant=False)


def keyword_and_default(x, y, *, scale=0.5):
    return functional.gelu(x @ y) * scale


def loops_and_lists(x, y):
    outputs = []
    for index, row in enumerate(x):
        outputs.append(row * index + y[index])
    return torch.stack(outputs)


def factories(x, y):
    mask = torch.ones(x.shape[0], x.shape[0], device=x.device).tril().bool()
    scores = (x @ y).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) + torch.arange(x.shape[0], device=x.device)


def own_autograd_function(x, y):
    return Twice.apply(x) @ y


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return gradient * 2 + value * 0


FUNCTIONS = [
    graph_break,
    break_in_a_branch,
    two_outputs_one_unused,
    mutated_input,
    nested_containers,
    dataclass_result,
    no_grad_inside,
    detached,
    checkpointed,
    keyword_and_default,
    loops_and_lists,
    factories,
    own_autograd_function,
]


def tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# Torch's own remarks about what it meets inside of a function: warnings are errors in tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def run(function: Callable[..., object], device: str) -> tuple[object, list[torch.Tensor]]:
    """Return a function's result on ``device``, and the gradients of its inputs from all of it."""
    torch.manual_seed(0)
    inputs = [torch.randn(4, 4).to(device).requires_grad_() for _ in range(2)]
    result = function(*inputs)
    loss = sum((each.float() * each.float()).sum() for each in tensors(result) if each.requires_grad)
    loss.backward()
    return result, [each.grad for each in inputs]


def close(ours: torch.Tensor | None, reference: torch.Tensor | None) -> bool:
    if ours is None or reference is None:
        return ours is reference
    assert (ours.dtype, ours.shape, ours.stride()) == (reference.dtype, reference.shape, reference.stride())
    return torch.allclose(ours.detach().cpu(), reference.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.share(4)
def test_results_and_gradients_are_those_of_the_cpu(function):
    reference, wanted = run(function, "cpu")
    ours, got = run(torch.compile(function, backend="neuron"), "neuron")
    _, expected_structure = _pytree.tree_flatten(reference)
    leaves, structure = _pytree.tree_flatten(ours)
    assert structure == expected_structure
    for mine, theirs in zip(leaves, _pytree.tree_leaves(reference), strict=True):
        assert close(mine, theirs) if isinstance(theirs, torch.Tensor) else mine == theirs
    assert all(close(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))
    assert neuron_backend.get_fallback_ops() == {}


def test_an_input_that_is_returned_is_that_input():
    x = torch.ones(3, device="neuron")
    same, more = torch.compile(lambda a: (a, a + 1), backend="neuron")(x)
    assert same is x
    assert more.tolist() == [2, 2, 2]


def test_a_write_through_a_view_of_an_input_reaches_the_input():
    def function(x):
        x.view(-1)[1:3].mul_(5)
        return x.sum()

    ours, reference = torch.ones(2, 2, device="neuron"), torch.ones(2, 2)
    assert torch.compile(function, backend="neuron")(ours).item() == function(reference).item()
    assert ours.cpu().equal(reference)


def test_inputs_that_share_memory_are_both_changed():
    def function(x, y):
        x.add_(1)
        return y * 2

    base, reference = torch.zeros(4, device="neuron"), torch.zeros(4)
    result = torch.compile(function, backend="neuron")(base[:3], base[1:])
    assert result.cpu().equal(function(reference[:3], reference[1:]))
    assert base.cpu().equal(reference)


@pytest.mark.parametrize(
    "views",
    [
        lambda y: (y, y.t()),
        lambda y: (y.t(), y[1:], y.sum()),
        lambda y: (y[:, 1:], y[:2], y[0].expand(3, 4)),
        lambda y: (y[2], [y.view(2, 6), y.detach()]),
    ],
)
@pytest.mark.parametrize("device", ["neuron", "cpu"])
def test_results_that_are_views_of_one_another_share_their_bytes(views, device):
    def function(x):
        return views(x + 1)

    x = torch.arange(12.0).reshape(3, 4)
    ours, reference = torch.compile(function, backend="neuron")(x.to(device)), function(x)
    for results in (ours, reference):
        tensors(results)[0].mul_(3)
    assert all(close(mine, theirs) for mine, theirs in zip(tensors(ours), tensors(reference), strict=True))


class Counting(nn.Module):
    """Changes a buffer in forward, and holds a plain tensor that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.norm(self.layer(x))
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y * self.calls


def test_buffers_that_forward_changes_are_those_of_the_cpu():
    torch.manual_seed(0)
    reference = Counting()
    ours = copy.deepcopy(reference).to("neuron")
    compiled = torch.compile(ours, backend="neuron")
    for _ in range(3):
        batch = torch.randn(5, 4)
        assert close(compiled(batch.to("neuron")), reference(batch))
    assert ours.calls.item() == 3
    assert all(
        close(mine, theirs)
        for mine, theirs in zip(ours.state_dict().values(), reference.state_dict().values(), strict=True)
    )


def test_evaluation_after_training_uses_what_was_learned():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0))
    ours = copy.deepcopy(reference).to("neuron")
    compiled = torch.compile(ours, backend="neuron")
    batch = torch.randn(6, 4)
    for model, given in ((reference, batch), (compiled, batch.to("neuron"))):
        model(given).sum().backward()
        model.eval()
    with torch.no_grad():
        assert close(compiled(batch.to("neuron")), reference(batch))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_every_size_is_right(mode):
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = torch.compile(copy.deepcopy(network).to("neuron"), backend="neuron")
    with mode():
        for size in (2, 3, 5):
            batch = torch.randn(size, 4)
            result = compiled(batch.to("neuron"))
            assert close(result, network(batch))
            assert not result.requires_grad
    assert neuron_backend.get_fallback_ops() == {}


def test_a_checkpointed_block_trains_to_the_cpus_weights():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + checkpoint(lambda y: self.second(functional.gelu(self.first(y))), x, use_reentrant=False)

    torch.manual_seed(0)
    reference = nn.Sequential(Block(), Block())
    ours = copy.deepcopy(reference).to("neuron")
    batch = torch.randn(3, 4)
    for model, call, device in ((reference, reference, "cpu"), (ours, torch.compile(ours, backend="neuron"), "neuron")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            call(batch.to(device)).square().mean().backward()
            optimizer.step()
    assert all(close(mine, theirs) for mine, theirs in zip(ours.parameters(), reference.parameters(), strict=True))


def test_fullgraph_takes_a_whole_function_and_refuses_a_break():
    x = torch.ones(2, 2, device="neuron")
    assert torch.compile(lambda a: a @ a, backend="neuron", fullgraph=True)(x).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(graph_break, backend="neuron", fullgraph=True)(x, x)
