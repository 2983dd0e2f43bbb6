"""What the CPU makes of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sweep.entries import Sample


@dataclass(frozen=True)
class Reference:
    """Results, then gradients; and for 16-bit floats the same computed in float32, if that runs."""

    results: list[torch.Tensor | None]
    precise: list[torch.Tensor | None] | None


def reference(sample: Sample, *, gradient: bool) -> Reference | str:
    """Run ``sample`` on copies of its tensors; the text is why it has no reference."""
    try:
        results = computed(sample, sample.tensors, gradient=gradient)
    except Exception as error:  # noqa: BLE001 - OpInfo has samples that the CPU refuses: they are not counted
        return f"the CPU refuses it: {type(error).__name__}: {' '.join(str(error).split())}"
    if not results:
        return "its result is no tensor" if not gradient else "nothing in it has a gradient"
    precise = None
    if any(each.dtype in {torch.float16, torch.bfloat16} for each in sample.tensors):
        wide = [each.detach().float() if each.is_floating_point() else each for each in sample.tensors]
        wide = [w.requires_grad_(each.requires_grad) for w, each in zip(wide, sample.tensors, strict=True)]
        try:
            precise = computed(sample, wide, gradient=gradient)
        except Exception:  # noqa: BLE001 - some samples name their dtype: then the CPU's own result is all there is
            precise = None
        if precise is not None and len(precise) != len(results):
            precise = None
    return Reference(results, precise)


def computed(sample: Sample, tensors: Sequence[torch.Tensor], *, gradient: bool) -> list[torch.Tensor | None]:
    """Return the results that are compared, then the gradients of their sum."""
    copies = [each.detach().clone().requires_grad_(gradient and each.requires_grad) for each in tensors]
    torch.manual_seed(1)
    with sdpa_kernel([SDPBackend.MATH]):
        result = sample.run(copies)
        if not gradient:
            return list(sample.comparable(result))
        roots = sample.differentiable(result)
        return [*roots, *gradients(roots, copies)] if roots else []


def gradients(roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of the sum of ``roots`` by those of ``inputs`` that require one."""
    wanted = [each for each in inputs if each.requires_grad]
    ones = [torch.ones_like(each) for each in roots]
    return list(torch.autograd.grad(roots, wanted, ones, allow_unused=True))
