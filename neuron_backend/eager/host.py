"""Run an operator on the CPU, over the same bytes: what happens to operators that cannot be lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend import programs
from neuron_backend.eager import random, signature
from neuron_backend.eager.fallbacks import record_fallback
from neuron_backend.eager.operators import DYNAMIC, NOTHING, VALUE
from neuron_backend.eager.tracing import UNKNOWN, filled
from neuron_backend.reading import ValueNeeded
from neuron_backend.torch_private import DisableAutocast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neuron_backend.eager.signature import Call

_device = torch.ops.neuron_device


@dataclass(frozen=True, slots=True)
class OnHost:
    """The plan of a call that runs on the CPU because of ``reason``, a clause.

    ``warn`` says whether the user is to hear of it, ``counted`` whether it is a fallback at all. A ``doubtful`` call
    may be an error of the user's: it counts once the CPU operator took it.
    """

    reason: str
    warn: bool
    counted: bool = True
    doubtful: bool = False

    def run(self, call: Call) -> Any:
        """Run ``call`` and account for it; raises what the CPU operator raises.

        While programs are recorded there are no values to run it on: raises `ValueNeeded` if it needs some.
        """
        if programs.recording() and self.reason is NOTHING:
            return None
        if programs.recording() and self.reason in (DYNAMIC, VALUE, UNKNOWN):
            raise ValueNeeded(call.operator.name)
        if self.counted and not self.doubtful:
            record_fallback(call.operator.name, self.reason, warn=self.warn)
        result = run(call, signature.device_of(call))
        if self.counted and self.doubtful:
            record_fallback(call.operator.name, self.reason, warn=self.warn)
        return result


def run(call: Call, device: int) -> Any:
    """Run ``call`` on the CPU and return its results on neuron device ``device``, views as views of the same memory.

    Raises what the CPU operator raises.
    """
    operator = call.operator
    fresh = not signature.overlapping(call)  # overlap is for the CPU operator to judge: it has to see the real tensors
    tensors = _device.as_cpu_list(call.tensors)
    outs = _outs(call) if fresh else []
    for position in outs:
        # May be resized, which a tensor over borrowed memory must not be.
        tensors[position] = torch.empty(0, dtype=tensors[position].dtype, device="cpu")
    args, kwargs = signature.rebuild(call, tensors)
    with torch.no_grad(), DisableAutocast(), random.on_host(operator, kwargs, device):
        result = operator.function(*args, **kwargs)
    if outs:
        values = filled(call, [tensors[position] for position in outs])
        _device.store([call.tensors[position] for position in outs], values)
    owners = {
        tensor.untyped_storage().data_ptr(): original
        for tensor, original in zip(tensors, call.tensors, strict=True)
        if tensor.numel() > 0
    }
    return _results(call, result, owners, device)


def _outs(call: Call) -> list[int]:
    """Return the positions, among the call's tensors, of its ``out=`` tensors."""
    names = [argument.name for argument in call.operator.arguments if argument.out]
    wanted = {id(tensor) for name in names for tensor in _flat(call.kwargs.get(name))}
    return [position for position in call.written if id(call.tensors[position]) in wanted]


def _flat(value: Any) -> Iterator[torch.Tensor]:
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(each, torch.Tensor):
            yield each


def _results(call: Call, result: Any, owners: dict[int, torch.Tensor], device: int) -> Any:
    returns = call.operator.returns
    if not returns:
        return None
    results: Sequence[Any] = result if len(returns) > 1 else (result,)
    placed = [
        signature.argument(call, kind) if isinstance(kind, int) else _placed(value, owners, device)
        for kind, value in zip(returns, results, strict=True)
    ]
    return placed[0] if len(placed) == 1 else tuple(placed)


def _placed(value: Any, owners: dict[int, torch.Tensor], device: int) -> Any:
    """Return a CPU result as what it is to the caller: device tensors, or a Python value as it stands."""
    if isinstance(value, (list, tuple)):
        return [_placed(each, owners, device) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    dense = value.layout is torch.strided and value.numel() > 0
    owner = owners.get(value.untyped_storage().data_ptr()) if dense else None
    if owner is None:
        return _device.from_cpu(value, device)
    if owner.device.type == "cpu":
        return _device.from_cpu(value.clone(), device)
    return _device.view_of(owner, value)
