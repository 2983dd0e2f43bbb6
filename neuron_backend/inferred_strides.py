"""Strides that PyTorch's shape inference gives otherwise than its kernels for the CPU, whose strides are ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.torch_private import (
    decomposition_table,
    meta_table,
    op_implementations_dict,
    suggest_memory_format,
    tree_leaves,
    tree_map_only,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


def _plain(result: torch.Tensor, *_arguments: Any, **_options: Any) -> torch.Tensor:
    return result.contiguous()


def _in_the_format_of(position: int) -> Callable[..., torch.Tensor]:
    """Return the rule of kernels that make their result ``channels_last`` if an argument is, else plain."""

    def rule(result: torch.Tensor, *arguments: Any, **_options: Any) -> torch.Tensor:
        argument = arguments[position]
        if result.dim() != argument.dim():
            return result
        return result.contiguous(memory_format=suggest_memory_format(argument))

    return rule


def _in_the_format_of_the_batch(position: int) -> Callable[..., torch.Tensor]:
    """Return the rule of pooling in three dimensions: without a batch, the format is that of a batch of one."""

    def rule(result: torch.Tensor, *arguments: Any, **_options: Any) -> torch.Tensor:
        argument = arguments[position]
        if argument.dim() != 4 or result.dim() != 4:  # noqa: PLR2004 - channels, depth, height, width
            return result
        last = torch.channels_last_3d
        lies_so = argument.unsqueeze(0).is_contiguous(memory_format=last)
        return result.unsqueeze(0).contiguous(memory_format=last).squeeze(0) if lies_so else result.contiguous()

    return rule


def _rolled(result: torch.Tensor, first: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    axes = named.get("dims", options[1] if len(options) > 1 else ())
    return result.contiguous(memory_format=suggest_memory_format(first)) if axes else result


def _as_of_a_product(
    result: torch.Tensor, one: torch.Tensor, other: Any = 1, *_rest: Any, **_named: Any
) -> torch.Tensor:
    return result.new_empty_strided(result.shape, torch.mul(one, other).stride())


def _attended(result: torch.Tensor, query: torch.Tensor, *rest: Any, **_options: Any) -> torch.Tensor:
    """As the query, of the CPU's own fused kernel; that needs elements of a vector side by side, the other is plain."""
    if result.dim() != query.dim() or any(each.stride(-1) != 1 for each in (query, *rest[:2])):
        return result.contiguous()
    return torch.empty_like(query)


# What inference has otherwise for tensors of the CPU itself.
_CORRECTED: dict[Any, Callable[..., torch.Tensor]] = {
    **dict.fromkeys(
        (
            aten._batch_norm_with_update.default,  # noqa: SLF001 - torch's names
            aten._batch_norm_with_update_functional.default,  # noqa: SLF001
            aten._native_batch_norm_legit.default,  # noqa: SLF001
            aten._native_batch_norm_legit.no_stats,  # noqa: SLF001
            aten._native_batch_norm_legit_functional.default,  # noqa: SLF001
            aten._native_batch_norm_legit_no_training.default,  # noqa: SLF001
            aten.channel_shuffle.default,
            aten.max_unpool2d.default,
            aten.native_batch_norm.default,
            aten.pixel_shuffle.default,
            aten.pixel_unshuffle.default,
            aten.reflection_pad3d.default,
            aten.replication_pad3d.default,
        ),
        _in_the_format_of(0),
    ),
    **dict.fromkeys(
        (
            aten.native_batch_norm_backward.default,
            aten.reflection_pad2d_backward.default,
            aten.reflection_pad3d_backward.default,
            aten.replication_pad2d_backward.default,
            aten.replication_pad3d_backward.default,
        ),
        _in_the_format_of(1),
    ),
    aten.max_pool3d_with_indices.default: _in_the_format_of_the_batch(0),
    aten.max_pool3d_with_indices_backward.default: _in_the_format_of_the_batch(0),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attended,  # noqa: SLF001
    aten.copysign.Tensor: _as_of_a_product,
    aten.div.Tensor_mode: _as_of_a_product,
    aten.floor_divide.default: _as_of_a_product,
    aten.glu_backward.default: _plain,
    aten.hardswish_backward.default: _as_of_a_product,
    aten.log_sigmoid_forward.default: _plain,
    aten.native_dropout_backward.default: _as_of_a_product,
    aten.normal.Tensor_Tensor: _plain,
    aten.roll.default: _rolled,
    aten.rrelu_with_noise.default: _plain,
    aten.rrelu_with_noise_functional.default: _plain,
}

# What it has otherwise for a device that is not the CPU.
_AS_ON_THE_CPU = (
    *_CORRECTED,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.geqrf.default,
)


def corrected(operator: Any, result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return ``result``, inferred for ``operator`` and arguments on the CPU, with the strides of the CPU's kernel."""
    rule = _CORRECTED.get(operator)
    if rule is None:
        return result
    return tree_map_only(torch.Tensor, lambda each: rule(each, *args, **kwargs), result)


def as_on_the_cpu(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Infer what ``operator`` returns for fake tensors of the device, with the strides of the CPU's kernel."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    device = next((each.device for each in tensors if each.device.type == "neuron"), None)
    args, kwargs = tree_map_only(torch.Tensor, partial(_on, torch.device("cpu")), (args, kwargs))
    result = corrected(operator, operator(*args, **kwargs), args, kwargs)
    return result if device is None else tree_map_only(torch.Tensor, partial(_on, device), result)


def _on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device == device:
        return tensor
    return tensor.new_empty_strided(tensor.shape, tensor.stride(), device=device)


def complete_strides() -> None:
    """Let PyTorch's fake tensors of the device have the strides that those of the CPU have; others are left alone."""
    for operator in _AS_ON_THE_CPU:
        before = op_implementations_dict.get(operator)
        if not isinstance(before, _AsOnTheCpu):
            op_implementations_dict[operator] = _AsOnTheCpu(before)
            # else torch prefers its decomposition to the rule
            if operator in decomposition_table:
                meta_table.setdefault(operator, decomposition_table[operator])


class _AsOnTheCpu:
    """A rule of torch's fake tensors: for those of the device infer as on the CPU, for others do as ``before``."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self._before = before

    def __call__(self, mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, torch.Tensor) and each.device.type == "neuron" for each in tree_leaves((args, kwargs))):
            return as_on_the_cpu(operator, args, kwargs)
        return NotImplemented if self._before is None else self._before(mode, operator, *args, **kwargs)
