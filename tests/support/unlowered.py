"""An operator that no table of lowerings will ever know."""

from __future__ import annotations

import torch

NAME = "neff_cache_tests.unlowered.default"


@torch.library.custom_op("neff_cache_tests::unlowered", mutates_args=())
def unlowered(value: torch.Tensor) -> torch.Tensor:
    """Sort every row, whatever the order of equal elements: for tests, the values do not matter."""
    return value.cpu().sort(-1).values.to(value.device)


@unlowered.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def _backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
    del ctx
    return unlowered(gradient)


unlowered.register_autograd(_backward)
