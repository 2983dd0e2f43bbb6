"""One training step of an architecture on a device, and how far its numbers are from the CPU's.

What is right is judged by the same step in float64 on the CPU. Depth, normalisation and cancellation make one float32
result good to six digits and another to three; how good is seen on what the CPU itself loses in float32. A device may
lose `SLACK` times as much, and the rounding of a few operations (`ROUNDINGS`) where the CPU happens to be exact.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.models.building import Subject

SLACK = 16
ROUNDINGS = 32
_EPSILON = torch.finfo(torch.float32).eps

Results = dict[str, torch.Tensor]


def step(
    subject: Subject,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    compiled: Callable[[nn.Module], Any] = lambda network: network,
) -> Results:
    """Run forward and backward on copies, and return outputs, gradients and changed buffers as tensors of the CPU."""
    network = copy.deepcopy(subject.network).to(dtype).to(device)
    inputs = {
        name: (each.to(dtype) if each.is_floating_point() else each).to(device) for name, each in subject.inputs.items()
    }
    positional = [inputs.pop("x")] if "x" in inputs else []
    outputs = _tensors(compiled(network)(*positional, **inputs))
    loss = torch.stack([(each * _weights(each)).sum() for each in outputs]).sum()
    loss.backward()
    results = {f"output {number}": each.detach() for number, each in enumerate(outputs)}
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            results[f"gradient of {name}"] = parameter.grad
    for name, buffer in network.named_buffers():
        results[f"buffer {name}"] = buffer
    return {name: each.cpu() for name, each in results.items()}


def _tensors(outputs: Any) -> list[torch.Tensor]:
    """Return the outputs that depend on weights."""
    return [each for each in tree_flatten(dict(outputs) if isinstance(outputs, dict) else outputs)[0] if _learns(each)]


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad


def _weights(output: torch.Tensor) -> torch.Tensor:
    """Return fixed weights for a loss, so that every element of an output counts differently."""
    number = torch.arange(output.numel(), dtype=torch.float64)
    weights = (number * 0.7).sin().reshape(output.shape) / output.shape[0]
    return weights.to(output.dtype).to(output.device)


def error(results: Results, cpu: Results, exact: Results) -> tuple[float, str]:
    """Return the largest difference of ``results`` from ``exact``, as a share of what is allowed, and where it is.

    Where is the first output or buffer that is wrong, else the result that is furthest off. ``cpu`` are the CPU's own
    in float32. A result that is missing, of another shape or not finite is infinitely wrong.
    """
    if missing := sorted(set(cpu) ^ set(results)):
        return math.inf, f"{missing[0]} is there on one side only"
    largest, where = 0.0, ""
    forward = ""
    noise = _EPSILON * max((_size(each) for name, each in exact.items() if name.startswith("gradient")), default=0.0)
    for name, wanted in exact.items():
        result, own = results[name], cpu[name]
        if (result.shape, result.dtype) != (own.shape, own.dtype):
            one, other = (f"{each.dtype}{list(each.shape)}" for each in (result, own))
            return math.inf, f"{name} is {one}, {other} on the CPU"
        if not own.numel():
            continue
        if not own.is_floating_point():
            if not torch.equal(result, own):
                return math.inf, f"{name} is not the CPU's"
            continue
        same = result == own  # infinities of masks
        allowed = SLACK * _furthest(own, wanted, same) + ROUNDINGS * _EPSILON * _size(wanted)
        if name.startswith("gradient"):
            allowed += noise  # where a gradient is zero but for rounding, as that of a bias before a normalisation
        found = _furthest(result, wanted, same)
        share = found / allowed if allowed else (math.inf if found else 0.0)
        share = math.inf if math.isnan(share) else share
        if share > largest:
            largest, where = share, name
        if share > 1 and not name.startswith("gradient"):
            forward = forward or name
    return largest, forward or where


def _furthest(one: torch.Tensor, other: torch.Tensor, same: torch.Tensor) -> float:
    return (one.double() - other.double()).abs().masked_fill(same, 0).max().item()


def _size(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0
