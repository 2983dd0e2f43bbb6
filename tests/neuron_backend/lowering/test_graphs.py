"""Whole models, forward and backward as AOTAutograd captures them, and optimizer steps, agree with the CPU."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from neuron_backend.lowering import decompositions, lower, trim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.module import Module


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(self.first(x)).split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 50, width: int = 32, heads: int = 4, length: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 16, 3, stride=2), nn.Linear(16 * 9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        return self.head(functional.relu(self.second(x)).flatten(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "perceptron": (Perceptron, lambda: torch.randn(8, 64), 8),
    "transformer": (Transformer, lambda: torch.randint(0, 50, (2, 12)), 24),
    "convolutional": (Convolutional, lambda: torch.randn(4, 3, 16, 16), 4),
}


def _compiler(run_xla: Any, modules: list[Module]) -> Callable[..., Any]:
    """A compiler for AOTAutograd that runs what we lower."""

    def compile_(graph: torch.fx.GraphModule, _examples: Sequence[Any]) -> Callable[..., Any]:
        kept = trim(graph)
        module = lower(graph)
        modules.append(module)

        def run(arguments: list[torch.Tensor]) -> list[torch.Tensor | None]:
            results = run_xla(module, [argument.detach() for argument in arguments])
            arguments.clear()
            full: list[torch.Tensor | None] = [None] * kept.count
            for position, result in zip(kept.positions, results, strict=True):
                full[position] = result
            return full

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark for a list that is emptied
        return run

    return compile_


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.share(1)
def test_a_model_has_the_loss_gradients_and_buffers_of_the_cpu(run_xla: Any, same: Any, text: Any, name: str) -> None:
    make, example, count = MODELS[name]
    torch.manual_seed(0)
    model, inputs, modules = make(), example(), []
    twin, targets = copy.deepcopy(model), torch.arange(count) % 10
    compiler = _compiler(run_xla, modules)
    with sdpa_kernel([SDPBackend.MATH]):
        compiled = aot_module(twin, fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())
        loss = functional.cross_entropy(compiled(inputs), targets)
        loss.backward()
        wanted = functional.cross_entropy(model(inputs), targets)
        wanted.backward()
    same([loss.detach()], [wanted.detach()])
    same(
        [p.grad for p in twin.parameters()],
        [p.grad for p in model.parameters()],
        [n for n, _ in model.named_parameters()],
    )
    same(list(twin.buffers()), list(model.buffers()))
    assert [module.version for module in modules] == ["1.0.0", "1.0.0"]
    assert not any("custom_call" in text(module) for module in modules)


def _adamw(
    parameters: list[torch.Tensor], gradients: list[torch.Tensor], first: list[torch.Tensor], second: list[torch.Tensor]
) -> list[torch.Tensor]:
    """One step by ``_foreach_*``, as torch.optim.AdamW does it on an accelerator."""
    torch._foreach_mul_(parameters, 1 - 1e-3 * 0.01)
    torch._foreach_lerp_(first, gradients, 1 - 0.9)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - 0.999)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, [0.03, 0.03])
    torch._foreach_add_(scale, 1e-8)
    torch._foreach_addcdiv_(parameters, first, scale, [-0.01, -0.01])
    return [*parameters, *first, *second]


def test_an_adamw_step_by_foreach_agrees(check: Any) -> None:
    torch.manual_seed(0)
    tensors = [torch.rand(shape) for _ in range(4) for shape in ((3, 4), (5,))]

    def step(*flat: torch.Tensor) -> list[torch.Tensor]:
        copies = [each.clone() for each in flat]
        return _adamw(copies[:2], copies[2:4], copies[4:6], copies[6:])

    check(step, *tensors)


def test_a_momentum_step_of_sgd_agrees(check: Any) -> None:
    def step(parameter: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor) -> list[torch.Tensor]:
        gradient = gradient.add(parameter, alpha=1e-4)
        momentum = momentum.mul_(0.9).add_(gradient, alpha=1 - 0.1)
        return [parameter.add_(momentum, alpha=-0.05), momentum]

    check(step, torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.share(1)
def test_losses_norms_and_attention_agree_on_their_own(check_table: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 6, 8).to(dtype), torch.randn(4, 6, 8).to(dtype)
    targets = torch.tensor([1, 7, -100, 3])
    table: dict[str, Callable[..., torch.Tensor]] = {
        "cross entropy": lambda x, _y: functional.cross_entropy(x[:, 0], targets),
        "cross entropy, smoothed": lambda x, _y: functional.cross_entropy(x[:, 0], targets, label_smoothing=0.1),
        "cross entropy, weights": lambda x, y: functional.cross_entropy(x[:, 0], targets, y[0, 0].abs()),
        "cross entropy, pixels": lambda x, _y: functional.cross_entropy(
            x, targets.clamp(0, 5)[:, None].expand(4, 8).clone()
        ),
        "mean square": functional.mse_loss,
        "absolute": functional.l1_loss,
        "huber": functional.smooth_l1_loss,
        "binary": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
        "divergence": lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        "layer norm": lambda x, y: functional.layer_norm(x, (8,), y[0, 0], y[0, 1]),
        "group norm": lambda x, _y: functional.group_norm(x, 3),
        "instance norm": lambda x, _y: functional.instance_norm(x),
        "rms norm": lambda x, y: functional.rms_norm(x, (8,), y[0, 0]),
        "batch norm, inference": lambda x, y: functional.batch_norm(x, y[0, :, 0], y[1, :, 0].abs()),
        "normalize": lambda x, _y: functional.normalize(x, dim=-1),
        "cosine": lambda x, y: functional.cosine_similarity(x, y, dim=-1),
        "attention": lambda x, y: torch._scaled_dot_product_attention_math(x, y, x)[0],
        "attention, causal": lambda x, y: torch._scaled_dot_product_attention_math(x, y, x, is_causal=True)[0],
        "attention, fused entry": lambda x, y: functional.scaled_dot_product_attention(x, y, x, is_causal=True),
        "swish gate": lambda x, y: functional.silu(x) * y,
        "embedding": lambda x, _y: functional.embedding(targets.clamp(0, 5), x[0]),
    }
    check_table(table, x, y, tolerance=None if dtype == torch.float32 else 3e-2)
