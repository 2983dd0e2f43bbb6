"""Where torch enters the eager path: every operator on neuron tensors that the device library does not do itself."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.eager import operators, plan, signature
from neuron_backend.eager.plan import Baked
from neuron_backend.eager.program import Program
from neuron_backend.torch_private import set_eval_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_backend.eager.plan import Plan
    from neuron_backend.eager.signature import Call

_device = torch.ops.neuron_device
_plans: dict[tuple[Any, ...], Plan] = {}

MOST = 1 << 14
"""Kinds of calls that are remembered: beyond it the table begins anew, with those that are in use. device/warm.cpp has
one of the same size."""

# In a forked child no program can run. With an empty table every call takes the slow path, which says so.
os.register_at_fork(after_in_child=_plans.clear)


def dispatch(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out one operator; the plan of a call that was seen before is found without tracing anything.

    Raises what torch would raise for these arguments, and `client.errors.CompileError` if the compiler fails.
    """
    call = signature.read(operators.describe(overload), args, kwargs)
    found = _plans.get(call.key)
    if found is None:
        _device.check_fork()
        if len(_plans) >= MOST:
            _plans.clear()
        found = _plans.setdefault(call.key, _made(call))
    result = found.run(call)
    if isinstance(found, (Program, Baked)) and _device.offer_wanted():
        found.offer(call)
    return result


def _made(call: Call) -> Plan:
    """Make the plan with Dynamo off: below a graph break it would trace our tracing, as if that were the model's."""
    before = set_eval_frame(None)
    try:
        return plan.make(call)
    finally:
        set_eval_frame(before)


def plans() -> list[Plan]:
    """Return the plans that were made so far."""
    return list(_plans.values())


def clear() -> None:
    """Forget all plans: the next call of every operator is traced again."""
    _plans.clear()
    _device.forget()


@contextmanager
def without_plans() -> Iterator[None]:
    """Begin with an empty table, and put back what was in it afterwards: what is made meanwhile is forgotten."""
    kept = dict(_plans)
    _plans.clear()
    warm = _device.set_warm(False)
    try:
        yield
    finally:
        _plans.clear()
        _plans.update(kept)
        _device.set_warm(warm)
