"""Checks inputs against a program's signature, for runtimes that themselves look at sizes in bytes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.module import Signature, TensorSpec


def check_inputs(signature: Signature, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ValueError if ``inputs`` are not, in number, dtype, shape and strides, what ``signature`` says."""
    specs = signature.inputs
    if len(inputs) != len(specs):
        raise ValueError(f"this program takes {len(specs)} input(s), but was given {len(inputs)}")
    for index, (tensor, spec) in enumerate(zip(inputs, specs, strict=True)):
        if (
            tensor.dtype is not spec.dtype
            or tensor.shape != spec.shape
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
            or tensor.device.type != "cpu"
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise ValueError(
                f"input {index} of this program is {spec.dtype} of shape {list(spec.shape)}, contiguous, on the host; "
                f"but was given {_describe(tensor, spec)}"
            )


def _describe(tensor: torch.Tensor, spec: TensorSpec) -> str:
    text = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}"
    if tensor.layout is not torch.strided:
        return f"{text}, layout {tensor.layout}"
    if not tensor.is_contiguous():
        return f"{text}, strides {tensor.stride()} instead of {spec.strides}"
    if tensor.is_conj() or tensor.is_neg():
        return f"{text}, lazily conjugated or negated: resolve_conj() and resolve_neg() write it out"
    return text
