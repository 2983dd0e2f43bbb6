"""Each case computes on the CPU and on neuron from equal tensors; values, shapes and types must agree."""

from __future__ import annotations

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation has it
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

import neuron_backend
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

Function = "Callable[..., Any]"


def on_neuron(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.to("neuron") if isinstance(leaf, torch.Tensor) else leaf, value)


def assert_same(got: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Compare all tensors of two nested results; those of ``got`` must be on neuron."""
    left, right = tree_flatten(got)[0], tree_flatten(expected)[0]
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.device.type == "neuron"
            torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert one == other


def matrix() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an operator on a transposed tensor": lambda x: x.t() + 1,
    "a slice with an offset": lambda x: x[1:, 1:] * 2,
    "an expanded tensor": lambda x: x[0].expand(5, 4) + x[:1],
    "broadcasting": lambda x: x + x[:, :1] * x[0],
    "a scalar on the right": lambda x: (x * 0.5, x - 2, x / 3, x**2, x % 5, x // 2),
    "a scalar on the left": lambda x: (2 - x, 1 / (x + 1), 2.0**x),
    "a scalar tensor of the CPU": lambda x: x * torch.tensor(2.0),
    "comparison": lambda x: (x > 5, x == 3, x.bool().logical_not()),
    "reductions": lambda x: (x.sum(), x.mean(1), x.amax(0, keepdim=True), x.var(), x.prod(1), x.norm()),
    "all and any": lambda x: ((x >= 0).all(), (x > 20).any()),
    "extremes with positions": lambda x: (x.max(1), x.argmin(), x.topk(2), x.sort(descending=True)),
    "matrix products": lambda x: (
        x @ x.t(),
        x.mv(x[0]),
        torch.einsum("ij,kj->ik", x, x),
        torch.bmm(x[None], x.t()[None]),
    ),
    "joining": lambda x: (torch.cat([x, x]), torch.stack([x, x], 1), x.repeat(2, 1)),
    "splitting": lambda x: (*x.split(2, 1), *x.chunk(3), *x.unbind()),
    "indexing": lambda x: (x[[0, 2]], x[:, [1, 1]], x.gather(1, torch.zeros(3, 1, dtype=torch.int64, device=x.device))),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 0], device=x.device)),
    "where": lambda x: (torch.where(x > 5, x, 0.0), x.masked_fill(x > 5, -1.0), x.clamp(2, 7)),
    "types": lambda x: (x.to(torch.int64), x.bfloat16() + 1, x.double() * 0.1, x.half() / 3, x.to(torch.uint8) + 1),
    "promotion": lambda x: (x.long() + 0.5, x.long() / 2, x.int() + x.long(), x.bool() + x, x[0, 0] * 0.5),
    "float64 is not rounded to float32": lambda x: (x.double() * 0.1, x.double().add(x.double(), alpha=0.1)),
    "tensors without elements": lambda x: (x[:0] + 1, x[:, :0].sum(1), torch.cat([x[:0], x])),
    "a tensor without dimensions": lambda x: (x[0, 1] * 3, x.sum() + x[2, 3]),
    "activations": lambda x: (F.relu(x - 5), F.gelu(x), F.softmax(x, 1), F.log_softmax(x, 0), F.silu(x), x.tanh()),
    "normalisation": lambda x: (F.layer_norm(x, (4,)), F.group_norm(x[None], 3)),
    "foreach": lambda x: (torch._foreach_add([x, x], 1), torch._foreach_mul([x, x], [0.5, 0.25])),
    "factories": lambda x: (
        torch.ones(2, device=x.device),
        torch.full((2,), 3.0, device=x.device),
        torch.arange(4, device=x.device),
        torch.eye(3, device=x.device),
        torch.linspace(0, 1, 5, device=x.device),
        torch.tensor([1, 2, 3], device=x.device),
        torch.zeros_like(x),
    ),
    "cumulative sums": lambda x: x.cumsum(1),
    "triangles": lambda x: (x.tril(), x.triu(1)),
    "padding and flips": lambda x: (F.pad(x, (1, 2), value=7.0), x.flip(1), x.roll(1, 0)),
    "one_hot and embedding": lambda x: F.embedding(torch.tensor([[0, 2], [1, 1]], device=x.device), x),
    "addmm": lambda x: torch.addmm(x[0, :3], x, x.t(), beta=0.5, alpha=2.0),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in CASES.items()])
def test_results_are_those_of_the_cpu(function: Callable[[torch.Tensor], Any]) -> None:
    assert_same(function(matrix().to("neuron")), function(matrix()))
    assert neuron_backend.get_fallback_ops() == {}


def test_a_program_is_found_again_for_new_values_of_the_same_shape(programs_made: Callable[[], int]) -> None:
    for _ in range(3):
        value = torch.randn(5, 7)
        assert_same(torch.hypot(value.to("neuron"), value.to("neuron")), torch.hypot(value, value))
    assert programs_made() <= 1


def test_addmm_with_beta_zero_ignores_nan() -> None:
    bias = torch.full((3, 3), float("nan"))
    x = matrix()
    assert_same(
        torch.addmm(bias.to("neuron"), x.to("neuron"), x.t().to("neuron"), beta=0), torch.addmm(bias, x, x.t(), beta=0)
    )


def gradients(module: nn.Module, *inputs: torch.Tensor) -> Any:
    """Return a module's output, its parameters' gradients and its buffers after one backward pass."""
    result = module(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    result.pow(2).sum().backward()
    return result.detach(), [each.grad for each in module.parameters()], [*module.buffers()]


class Attention(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(value, value, value, is_causal=True)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 5), (3, 4)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8)),
    "strided, grouped convolution": (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "batch norm in evaluation": (lambda: nn.BatchNorm1d(3).eval(), (5, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (3, 4)),
    "max pooling": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)), (1, 1, 8, 8)),
    "average pooling": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)), (1, 1, 8, 8)),
    "LSTM": (lambda: nn.LSTM(4, 5), (3, 2, 4)),
    "LSTM without bias": (lambda: nn.LSTM(4, 5, bias=False), (3, 2, 4)),
    "GRU": (lambda: nn.GRU(4, 5), (3, 2, 4)),
    "RNN": (lambda: nn.RNN(4, 5), (3, 2, 4)),
    "attention": (lambda: nn.Sequential(nn.Linear(4, 4), Attention()), (2, 3, 4)),
    "multi-head attention layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 3, 8),
    ),
}


@pytest.mark.parametrize(("build", "shape"), [pytest.param(*case, id=name) for name, case in MODULES.items()])
@pytest.mark.share(4)
def test_modules_train_as_on_the_cpu(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    module, value = build(), torch.randn(shape)
    twin = copy.deepcopy(module).to("neuron")
    assert_same(gradients(twin, value.to("neuron")), gradients(module, value), tolerance=1e-4)
    assert neuron_backend.get_fallback_ops() == {}


def test_embedding_and_cross_entropy_train_as_on_the_cpu() -> None:
    module = nn.Embedding(10, 4)
    twin = copy.deepcopy(module).to("neuron")
    indices = torch.tensor([1, 2, 1])
    F.cross_entropy(module(indices), indices).backward()
    F.cross_entropy(twin(indices.to("neuron")), indices.to("neuron")).backward()
    assert_same(twin.weight.grad, module.weight.grad)


def test_double_backward() -> None:
    x = matrix().to("neuron").requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert_same(second, 6 * matrix())


def test_gradients_are_clipped_to_their_norm() -> None:
    x = matrix().to("neuron").requires_grad_()
    (x * x).sum().backward()
    nn.utils.clip_grad_norm_([x], 1.0)
    assert x.grad is not None
    assert x.grad.norm().item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_products_in_low_precision_and_losses_in_full(dtype: torch.dtype) -> None:
    x = matrix().to("neuron") / 8
    with torch.autocast("neuron", dtype=dtype):
        product = x @ x.t()
        loss = F.mse_loss(product, product + 1)
    assert product.dtype is dtype
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(1.0, rel=0.1)


def test_autocast_of_the_cpu_does_not_reach_into_neuron_programs() -> None:
    x = matrix().to("neuron")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.t().contiguous()).dtype is torch.float32


def test_inference_mode_computes() -> None:
    with torch.inference_mode():
        assert_same(matrix().to("neuron") * 3 + 1, matrix() * 3 + 1)


def test_the_default_type_is_part_of_what_a_program_depends_on() -> None:
    count = torch.arange(3)
    assert (count.to("neuron") / 2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(count.to("neuron") / 3, count / 3, tolerance=0)
    finally:
        torch.set_default_dtype(torch.float32)


def test_complex_numbers_are_right_lazy_conjugation_included() -> None:
    value = torch.complex(matrix(), -matrix())
    assert_same(value.to("neuron").conj() * 2, value.conj() * 2)
    assert_same(torch.view_as_real(value.to("neuron")), torch.view_as_real(value))
    assert_same(value.to("neuron").conj().imag + 1, value.conj().imag + 1)
    assert value.to("neuron").conj()[0, 1].item() == value.conj()[0, 1].item()


def test_complex_numbers_are_conjugated_in_place() -> None:
    values = torch.tensor([1 + 2j, 3 - 1j])
    there = values.to("neuron")
    address = there.data_ptr()
    for expected in (values.conj(), values):  # cold, then warm
        there.conj_physical_()
        assert there.cpu().tolist() == expected.tolist()
    assert there.data_ptr() == address


COMPLEX = """
import torch, neuron_backend
value = torch.ones(2, dtype=torch.complex64, device="neuron")
for function in (torch.lgamma, torch.digamma, torch.erf, torch.erfc, torch.erfinv):
    try:
        function(value)
    except NotImplementedError as error:
        print("not implemented for 'ComplexFloat'" in str(error))
"""


def test_a_function_without_complex_numbers_is_refused_in_torchs_words_and_the_process_lives() -> None:
    ended = subprocess.run([sys.executable, "-c", COMPLEX], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["True"] * 5), ended.stderr


def test_the_results_of_an_operator_are_on_the_device_of_its_tensors() -> None:
    assert str((matrix().to("neuron:0") + 1).device) == "neuron:0"
    assert str(torch.arange(3, device="neuron").device) == "neuron:0"


def test_threads_compute_at_the_same_time() -> None:
    def work(number: int) -> bool:
        host = [torch.full((size, 3), float(number)) for size in range(1, 6)]
        return all(torch.equal((x.to("neuron") * 0.5 + number).cpu(), x * 0.5 + number) for x in host)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=HANG_SECONDS))


def test_tensors_are_compared_where_they_are() -> None:
    x = matrix().to("neuron")
    neuron_backend.clear_fallback_ops()
    assert torch.equal(x, x.clone())
    assert torch.equal(x.to(torch.int64), x)
    assert torch.equal(x[:0], x[1:1])
    assert not torch.equal(x, x + (x == 3))
    assert not torch.equal(x, x[:2])
    assert not torch.equal(x * torch.nan, x * torch.nan)
    assert neuron_backend.get_fallback_ops() == {}
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.equal(x, matrix())
