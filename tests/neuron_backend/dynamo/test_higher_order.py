"""Operators that take functions, and constants made inside of what is compiled: right values, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._mode_utils import no_dispatch
from torch.utils.checkpoint import checkpoint

from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:operator .* runs on the CPU, not on neuron:UserWarning")


def _x(device: str) -> torch.Tensor:
    return torch.linspace(-1, 1, 8, device="cpu").reshape(2, 4).to(device)


def _zero(device: str) -> torch.Tensor:
    return torch.tensor(0, device=device)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x**3 + torch.tensor(1.5, device=x.device)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return gradients[0] * x**2 * torch.tensor(3.0, device=x.device)


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.tensor(2.0, device=x.device)).sin()


def _counted(x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (_zero(x.device.type), x))


def _counted_outside(x: torch.Tensor, start: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))


def _captures(x: torch.Tensor) -> Any:
    step = torch.tensor(0.5, device=x.device)
    return while_loop(
        lambda i, y: (i < 3) & (y.sum() < 90), lambda i, y: (i + 1, y + step * x), (_zero(x.device.type), x)
    )


def _chosen(x: torch.Tensor) -> torch.Tensor:
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
    return torch.cond(x.sum() > torch.tensor(-5.0, device=x.device), lambda x: x.sin() + bias, lambda x: x.cos(), (x,))


def _mapped(x: torch.Tensor) -> Any:
    offset = torch.tensor(0.25, device=x.device)
    return map_over(lambda row: row.exp() + offset, x)


def _scanned(x: torch.Tensor) -> Any:
    start = torch.tensor([1.0, 1.0, 1.0, 1.0], device=x.device)
    return scan(lambda carry, row: (carry + row, (carry * row).clone()), start, x)


def _scanned_in_pairs(x: torch.Tensor) -> Any:
    return associative_scan(lambda one, other: one * other + 0 * one, x, 0, combine_mode="generic")


def _attended(x: torch.Tensor) -> torch.Tensor:
    value = x.reshape(1, 1, 2, 4)
    return flex_attention(value, value * 2, value + 1, score_mod=lambda score, b, h, q, k: score + (q - k) * 0.5)


def _attended_in_blocks(x: torch.Tensor) -> torch.Tensor:
    value = x.reshape(1, 1, 2, 4)
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 2, 2, device=x.device.type)
    return flex_attention(value, value * 2, value + 1, block_mask=mask)


def _noted(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * torch.tensor(2.0, device=x.device)


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_noted, x, use_reentrant=False).exp()


def _checkpointed_reentrant(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_noted, x, use_reentrant=True).exp()


def _nested(x: torch.Tensor) -> torch.Tensor:
    return _region(_region(x)) + 1


def _own_function(x: torch.Tensor) -> torch.Tensor:
    return _Cube.apply(x) * 2


def _vmapped(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(
        lambda row: row * torch.tensor([2.0, 0.0, 1.0, 3.0], device=x.device) + torch.tensor(1, device=x.device)
    )(x)


def _differentiated(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: ((x * torch.tensor(3.0, device=x.device)) ** 2).sum())(x)


def _constants(x: torch.Tensor) -> Any:
    # torch computes ahead of time what follows from constants alone
    count = torch.tensor(2, device=x.device)
    count.add_(3)
    table = torch.tensor([5, 6, 7], device=x.device)
    return x + count, table * 2 + 1, (table.flip(0) < 6), torch.tensor(3.5, device=x.device).sqrt() * x


def _branch_on_a_constant(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if bool(torch.tensor(4, device=x.device) - 2 > 1) else x - 1
