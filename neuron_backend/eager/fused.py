# ruff: noqa: SLF001 - torch has no public names for its operators on lists
"""Optimizers with ``fused=True``: torch's fused operators, as a dozen programs over the whole list of parameters.

The formulas are those of torch's CPU kernels (aten/src/ATen/native/cpu/Fused*Kernel.cpp). Numbers that follow from
hyperparameters are computed here in double precision, as there, and are inputs of the programs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Tensors: TypeAlias = "list[torch.Tensor]"


def adam(*lists: Tensors, **options: Any) -> None:
    """``_fused_adam_``."""
    _adam(*lists, decoupled=False, **options)


def adamw(*lists: Tensors, **options: Any) -> None:
    """``_fused_adamw_``."""
    _adam(*lists, decoupled=True, **options)


def _adam(  # noqa: PLR0917 - torch's own signature
    parameters: Tensors,
    gradients: Tensors,
    averages: Tensors,
    squares: Tensors,
    largest: Tensors,
    steps: Tensors,
    *,
    decoupled: bool,
    lr: torch.Tensor | float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    rate = float(lr)
    gradients = _unscaled(gradients, grad_scale, maximize=maximize)
    if weight_decay != 0 and decoupled:
        torch._foreach_mul_(parameters, 1 - rate * weight_decay)
    elif weight_decay != 0:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
    torch._foreach_mul_(averages, beta1)
    torch._foreach_add_(averages, gradients, alpha=1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    if amsgrad:
        torch._foreach_maximum_(largest, squares)
    divisors = torch._foreach_sqrt(largest if amsgrad else squares)
    second = _bias_corrections(steps, beta2)
    torch._foreach_sqrt_(second)
    torch._foreach_div_(divisors, second)
    torch._foreach_add_(divisors, eps)
    torch._foreach_mul_(divisors, _bias_corrections(steps, beta1))
    torch._foreach_addcdiv_(parameters, averages, divisors, -rate)


def sgd(
    parameters: Tensors,
    gradients: Tensors,
    momenta: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: torch.Tensor | float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """``_fused_sgd_``."""
    if _skipped(found_inf):
        return
    gradients = _unscaled(gradients, grad_scale, maximize=maximize)
    if weight_decay != 0:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
    if momentum != 0:
        if is_first_step:
            torch._foreach_copy_(momenta, gradients)
        else:
            torch._foreach_mul_(momenta, momentum)
            torch._foreach_add_(momenta, gradients, alpha=1 - dampening)
        gradients = list(torch._foreach_add(gradients, momenta, alpha=momentum)) if nesterov else momenta
    torch._foreach_add_(parameters, gradients, alpha=-float(lr))


def adagrad(
    parameters: Tensors,
    gradients: Tensors,
    sums: Tensors,
    steps: Tensors,
    *,
    lr: torch.Tensor | float,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """``_fused_adagrad_``."""
    if _skipped(found_inf):
        return
    gradients = _unscaled(gradients, grad_scale, maximize=maximize)
    if weight_decay != 0:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
    torch._foreach_addcmul_(sums, gradients, gradients)
    divisors = torch._foreach_sqrt(sums)
    torch._foreach_add_(divisors, eps)
    if lr_decay != 0:
        slower = torch._foreach_sub(steps, 1)
        torch._foreach_mul_(slower, lr_decay)
        torch._foreach_add_(slower, 1)
        torch._foreach_mul_(divisors, slower)
    torch._foreach_addcdiv_(parameters, gradients, divisors, -float(lr))


def _skipped(found_inf: torch.Tensor | None) -> bool:
    """Whether a `torch.amp.GradScaler` found gradients that are not finite: then the step changes nothing."""
    return found_inf is not None and found_inf.item() != 0


def _unscaled(gradients: Tensors, scale: torch.Tensor | None, *, maximize: bool) -> Tensors:
    """Take the scale of a `torch.amp.GradScaler` out of ``gradients``, and return them, negated to ``maximize``."""
    if scale is not None:
        torch._foreach_div_(gradients, scale)
    return list(torch._foreach_neg(gradients)) if maximize else gradients


def _bias_corrections(steps: Tensors, beta: float) -> Tensors:
    """Return ``1 - beta ** step``, without the cancellation of that formula in single precision."""
    if beta == 0:
        return [torch.ones_like(step) for step in steps]
    powers = list(torch._foreach_mul(steps, math.log(beta)))
    torch._foreach_expm1_(powers)
    torch._foreach_neg_(powers)
    return powers


FUSED: dict[str, Callable[..., None]] = {
    "_fused_adam_": adam,
    "_fused_adamw_": adamw,
    "_fused_sgd_": sgd,
    "_fused_adagrad_": adagrad,
}
