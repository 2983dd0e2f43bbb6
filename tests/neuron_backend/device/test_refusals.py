"""Tensors that the device does not have are refused in one sentence; the transforms of ``torch.func`` work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "compressed": (lambda: torch.eye(3).to_sparse_csr().to("neuron") @ torch.ones(3, 3, device="neuron"), "sparse"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "said"), [pytest.param(*case, id=name) for name, case in REFUSED.items()])
def test_what_is_not_strided_is_refused_in_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=said) as raised:
        make()
    first = str(raised.value).split("\n", maxsplit=1)[0]
    assert first.startswith("device 'neuron'")
    assert len(first) < 250


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
