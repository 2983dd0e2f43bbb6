"""Tensors that the device does not have are refused in one sentence; the transforms of ``torch.func`` work."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

COMPRESSED = r"sparse compressed \(CSR.*to_dense\(\)\), or keep them on the CPU"


def compressed(make: Callable[..., torch.Tensor], place: str, **options: Any) -> torch.Tensor:
    pointers, indices, values = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
    return make(pointers.to(place), indices.to(place), values.to(place), (2, 2), **options)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse, moved": (lambda: torch.eye(3).to_sparse().to("neuron"), r"sparse \(COO\)"),
    "sparse, made": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (2, 2), device="neuron"),
        r"sparse \(COO\)",
    ),
    "sparse gradients": (
        lambda: nn.Embedding(4, 2, sparse=True, device="neuron")(torch.tensor([1], device="neuron")).sum().backward(),
        r"sparse \(COO\)",
    ),
    "to_sparse": (lambda: torch.eye(3, device="neuron").to_sparse(), "strided tensors only"),
    "nested, moved": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("neuron"),
        "nested tensors",
    ),
    "nested, made": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="neuron"),
        "nested tensors.*layout=torch.jagged",
    ),
    "nested, of tensors of the device": (
        lambda: torch.nested.as_nested_tensor([torch.ones(2, device="neuron"), torch.ones(3, device="neuron")]),
        "nested tensors",
    ),
    "CSR, moved": (lambda: torch.eye(4).to_sparse_csr().to("neuron"), COMPRESSED),
    "CSC, moved": (lambda: torch.eye(4).to_sparse_csc().to("neuron"), COMPRESSED),
    "BSR, moved": (lambda: torch.eye(4).to_sparse_bsr((2, 2)).to("neuron"), COMPRESSED),
    "BSC, moved with its gradient": (
        lambda: torch.eye(4, requires_grad=True).to_sparse_bsc((2, 2)).to("neuron"),
        COMPRESSED,
    ),
    "CSR, made": (lambda: compressed(torch.sparse_csr_tensor, "cpu", device="neuron"), COMPRESSED),
    "CSC, made of tensors of the device": (lambda: compressed(torch.sparse_csc_tensor, "neuron"), COMPRESSED),
    "CSR, of zeros": (lambda: torch.zeros(2, 2, layout=torch.sparse_csr, device="neuron"), COMPRESSED),
    "CSR on the host beside a tensor of the device": (
        lambda: torch.eye(3).to_sparse_csr() @ torch.ones(3, 3, device="neuron"),
        COMPRESSED,
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "said"), [pytest.param(*case, id=name) for name, case in REFUSED.items()])
def test_what_is_not_strided_is_refused_in_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=said) as raised:
        make()
    first = str(raised.value).split("\n", maxsplit=1)[0]
    assert first.startswith("device 'neuron'")
    assert len(first) < 250


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # once in a process
def test_ragged_tensors_of_layout_jagged_work_and_nested_ones_of_the_host_still_do() -> None:
    rows = [torch.rand(2, 3), torch.rand(4, 3)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.jagged, device="neuron").softmax(-1)
    torch.testing.assert_close(ragged.values().cpu(), torch.cat(rows).softmax(-1))
    nested = torch.nested.nested_tensor(rows)
    assert nested.device.type == "cpu"
    assert torch.equal(nested.to_padded_tensor(0)[1], rows[1])


TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "grad": torch.func.grad(lambda x: (x**3).sum()),
    "vmap": torch.func.vmap(lambda x: x * 2),
    "jacrev": torch.func.jacrev(torch.sin),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "hessian": torch.func.hessian(lambda x: (x**3).sum()),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("transform", [pytest.param(function, id=name) for name, function in TRANSFORMS.items()])
def test_function_transforms_agree_with_the_cpu(transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.rand(3)
    torch.testing.assert_close(transform(x.to("neuron")).cpu(), transform(x))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of inductor's own imports
def test_torch_compile_without_a_backend_names_ours_and_still_compiles_for_the_cpu() -> None:
    layer = torch.nn.Linear(3, 3)
    on_device = copy.deepcopy(layer).to("neuron")
    x = torch.ones(2, 3)
    with pytest.raises(Exception, match=r'no code for device neuron: write torch.compile\(..., backend="neuron"\)'):
        torch.compile(on_device)(x.to("neuron"))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(on_device, backend="neuron")(x.to("neuron")).cpu(), layer(x))
    torch.testing.assert_close(torch.compile(layer)(x), layer(x))
