"""Results lie in memory as those of the CPU do: channels_last stays so, and a graph agrees with its operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable


def channels_last() -> torch.Tensor:
    return torch.rand(2, 4, 5, 6).to(memory_format=torch.channels_last)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "channels_last": channels_last,
    "another order": lambda: torch.rand(5, 2, 6, 4).permute(1, 3, 0, 2),
    "channels_last with gaps": lambda: torch.rand(2, 5, 6, 8)[..., ::2].permute(0, 3, 1, 2),
    "expanded": lambda: torch.rand(2, 4, 1, 6).expand(2, 4, 5, 6),
    "one channel": lambda: torch.rand(2, 5, 6, 1).permute(0, 3, 1, 2).expand(2, 4, 5, 6),
}


def _like(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, torch.Size(shape).numel()).reshape(shape).to(x.device)


OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "hardtanh": functional.hardtanh,
    "relu6": functional.relu6,
    "hardswish": functional.hardswish,
    "where": lambda x: torch.where(x > 0.5, x, 1),
    "batch_norm": lambda x: functional.batch_norm(x, _like(x, 4), _like(x, 4)),
    "batch_norm, training": lambda x: functional.batch_norm(x, _like(x, 4), _like(x, 4), training=True),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "conv2d": lambda x: functional.conv2d(x, _like(x, 3, 4, 2, 2)),
    "conv_transpose2d": lambda x: functional.conv_transpose2d(x, _like(x, 4, 3, 2, 2)),
    "roll": lambda x: x.roll(1, 1),
    "roll of several axes": lambda x: x.roll((1, 2), (0, 3)),
    "roll of all": lambda x: x.roll(3),
    "flip": lambda x: x.flip(2),
    "add": lambda x: x + x,
    "a row added": lambda x: x + _like(x, 6),
    "multiplied by a number": lambda x: x * 2.5,
    "floor_divide": lambda x: x // 0.3,
    "logsigmoid": functional.logsigmoid,
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0),
    "cat": lambda x: torch.cat([x, x], 1),
    "max_pool2d": lambda x: functional.max_pool2d(x, 2),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=2),
    "channel_shuffle": lambda x: functional.channel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x[..., :4, :4], 2),
    "pad": lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"),
    "rrelu": functional.rrelu,
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x: x.softmax(1),
    "mean": lambda x: x.mean(1),
    "a list": lambda x: torch._foreach_exp([x])[0],
    "matmul": lambda x: x @ x.mT,
    "inverse": lambda x: torch.linalg.inv(x[..., :4, :4] + 4 * torch.eye(4, device=x.device)),
    "fft": lambda x: torch.fft.fft(x, dim=1),
    "complex": lambda x: torch.complex(x, x).conj().exp(),
    "zeros_like": torch.zeros_like,
    "another type": lambda x: x.to(torch.float16),
    "out= that is resized": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "no element": lambda x: torch.relu(x[:0]),
}


def strides(tensor: torch.Tensor) -> list[int]:
    """Return those that say where an element lies; all of them have a tensor of some elements."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and tensor.numel()]


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert (strides(result), result.dtype) == (strides(expected), expected.dtype)
    torch.testing.assert_close(result.cpu().resolve_conj(), expected.resolve_conj(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.share(24)
def test_a_result_lies_as_on_the_cpu(name: str, layout: str) -> None:
    """The first call, which Python carries out, and those that the device library does."""
    given = LAYOUTS[layout]()
    expected = OPERATORS[name](given)
    dispatch.clear()
    base = given.as_strided((given.untyped_storage().nbytes() // 4,), (1,)).to("neuron")
    on_device = base.as_strided(given.shape, given.stride())
    for _ in range(3):
        same(OPERATORS[name](on_device), expected)


@pytest.mark.parametrize("name", ["relu", "conv3d", "batch_norm", "max_pool3d", "pad"])
def test_channels_last_of_a_volume_is_kept(name: str) -> None:
    volume: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": torch.relu,
        "conv3d": lambda x: functional.conv3d(x, _like(x, 2, 4, 2, 2, 2)),
        "batch_norm": lambda x: functional.batch_norm(x, _like(x, 4), _like(x, 4)),
        "max_pool3d": lambda x: functional.max_pool3d(x, 2),
        "pad": lambda x: functional.pad(x, (1,) * 6, mode="replicate"),
    }
    given = torch.rand(2, 4, 3, 5, 6).to(memory_format=torch.channels_last_3d)
    for _ in range(2):
        same(volume[name](given.to("neuron")), volume[name](given))


def test_a_layout_that_was_seen_is_not_taken_for_another() -> None:
    """Equal shapes, three orders in memory: each call has the strides and the values of its own."""
    for _ in range(2):
        for given in (torch.rand(4, 4), torch.rand(4, 4).t(), torch.rand(4, 8)[:, ::2]):
            same(functional.hardtanh(given.to("neuron"), 0.2, 0.7), functional.hardtanh(given, 0.2, 0.7))


def test_gradients_lie_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    found = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU6())
        model = model.to(device, memory_format=torch.channels_last)
        given = channels_last().to(device).requires_grad_()
        result = model(given)
        result.square().sum().backward()
        found.append([result.detach(), given.grad, *(each.grad for each in model.parameters())])
    for expected, got in zip(*found, strict=True):
        assert strides(got) == strides(expected)


GRADIENTS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "reflected": ((2, 4, 5, 6), lambda x: functional.pad(x, (1,) * 4, mode="reflect")),
    "replicated": ((2, 4, 5, 6), lambda x: functional.pad(x, (1,) * 4, mode="replicate")),
    "reflected volume": ((2, 4, 3, 5, 6), lambda x: functional.pad(x, (1,) * 6, mode="reflect")),
    "replicated volume": ((2, 4, 3, 5, 6), lambda x: functional.pad(x, (1,) * 6, mode="replicate")),
    "glu": ((2, 4, 5, 6), lambda x: functional.glu(x, 1)),
    "hardswish": ((2, 4, 5, 6), functional.hardswish),
    "a volume pooled": ((4, 6, 5, 6), lambda x: functional.max_pool3d(x, 2)),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True)], ids=["both", "input", "gradient"])
@pytest.mark.share(4)
def test_a_gradient_lies_as_on_the_cpu_whether_its_input_or_what_comes_in_is_channels_last(
    name: str, last: tuple[bool, bool]
) -> None:
    shape, function = GRADIENTS[name]
    axis = 0 if name == "a volume pooled" else 1

    def lying(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
        return tensor.movedim(axis, -1).contiguous().movedim(-1, axis) if channels_last else tensor.contiguous()

    given = torch.rand(shape)
    found = []
    for device in ("cpu", "neuron"):
        leaf = lying(given, last[0]).to(device).requires_grad_()
        result = function(leaf)
        incoming = lying(torch.ones(result.shape), last[1]).to(device)
        found.append((result.detach(), *torch.autograd.grad(result, leaf, incoming)))
    for expected, got in zip(*found, strict=True):
        same(got, expected)


@pytest.mark.parametrize("layout", ["channels_last", "another order"])
def test_a_compiled_graph_agrees_with_its_operators(layout: str) -> None:
    names = [
        name for name in OPERATORS if name not in {"inverse", "complex", "out= that is resized", "a list", "attention"}
    ]

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [OPERATORS[name](x) for name in names]

    given = LAYOUTS[layout]()
    results = torch.compile(function, backend="neuron", fullgraph=True)(given.to("neuron"))
    for name, result, expected in zip(names, results, function(given), strict=True):
        assert (name, strides(result)) == (name, strides(expected))
