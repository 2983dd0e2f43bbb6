"""How a call is carried out: by a compiled program where there can be one, else on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from client.names import Kind
from neuron_backend import programs
from neuron_backend.eager import random, scalars, signature
from neuron_backend.eager.host import OnHost
from neuron_backend.eager.operators import NOTHING, VIEW
from neuron_backend.eager.program import Program
from neuron_backend.eager.tracing import Untraceable, traced
from neuron_backend.lowering import (
    LoweringBug,
    NotLowered,
    UnsupportedOperator,
    draws_of,
    lower,
    trim,
    used_inputs,
    without_checks,
)
from neuron_backend.value_checks import asked_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.eager.signature import Call
    from neuron_backend.eager.tracing import Traced
    from neuron_backend.lowering import Lifted


class Plan(Protocol):
    """Carries out every call that has one key."""

    def run(self, call: Call) -> Any:
        """Run ``call`` and return its results as torch expects them from a kernel."""


@dataclass(frozen=True, slots=True)
class Baked:
    """The program depends on the values of the call's numbers: there is one for each set of them."""

    plans: dict[tuple[str, ...], Plan]

    def run(self, call: Call) -> Any:
        """Find or make the program for these numbers, then run it."""
        return self._plan(call).run(call)

    def offer(self, call: Call) -> None:
        """Let the device library run the calls that are like ``call``, with these numbers."""
        plan = self._plan(call)
        if isinstance(plan, Program):
            plan.offer(call)

    def _plan(self, call: Call) -> Plan:
        values = tuple(number.hex() if type(number) is float else str(number) for number in call.numbers)
        plan = self.plans.get(values)
        if plan is None:
            if len(self.plans) >= _MOST_VALUES:
                self.plans.clear()
            made = OnHost(_OVERFLOW, warn=False, doubtful=True) if scalars.overflow(call) else _compiled(call)
            plan = self.plans.setdefault(values, made)
        return plan


_OVERFLOW = "the type of one of its tensors does not hold its number"


_MOST_VALUES = 256
"""Sets of numbers that the programs of one kind of call are kept for."""


def make(call: Call) -> Plan:
    """Trace, lower and compile ``call``, or decide that it runs on the CPU.

    Raises RuntimeError if its tensors are on different devices, `client.errors.CompileError` if the compiler fails.
    """
    check_devices(call)
    operator = call.operator
    if operator.host_only is not None:
        told = operator.host_only not in {VIEW, NOTHING}
        return OnHost(operator.host_only, warn=told, counted=told)
    if operator.random and random.names_host_generator(call):
        return OnHost("the generator that it was given is one of the CPU", warn=False)
    if signature.overlapping(call):
        return OnHost("a tensor that it writes overlaps another in memory", warn=False)
    if operator.uniform and len({tensor.dtype for tensor in call.tensors}) > 1:
        return OnHost("its tensors have different element types", warn=True, doubtful=True)
    if _converts_into_out(call):
        return OnHost("its out= tensor has another type than its result", warn=False, doubtful=True)
    return _lifted(call) or Baked({}) if call.numbers else _compiled(call)


def check_devices(call: Call) -> None:
    """Raise RuntimeError, in torch's words, unless all tensors are on one device; scalars on the CPU may join them."""
    first: torch.device | None = None
    for position, tensor in enumerate(call.tensors):
        device = tensor.device
        if device.type == "cpu" and position not in call.written and (tensor.dim() == 0 or call.operator.cpu_indices):
            continue
        first = first or device
        if device != first:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {first} and {device}! "
                f"(when calling {call.operator.name})"
            )


def _converts_into_out(call: Call) -> bool:
    """Whether an ``out=`` tensor has another type than the result.

    Each of torch's kernels has its own mind about that, and tracing would convert whatever the result is.
    """
    outs = [argument.name for argument in call.operator.arguments if argument.out]
    if not outs or len({tensor.dtype for tensor in call.tensors}) == 1:
        return False
    shapes = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in call.tensors]
    args, kwargs = signature.rebuild(call, shapes)
    given = [kwargs.pop(name, None) for name in outs]
    try:
        result = call.operator.overload.overloadpacket(*args, **kwargs)
    except Exception:  # noqa: BLE001 - no such operator without out=, or no shape inference for it: nothing to compare
        return False
    results = result if isinstance(result, (tuple, list)) else (result,)
    return any(
        isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype != other.dtype
        for one, other in zip(given, results, strict=False)
    )


def _lifted(call: Call) -> Program | None:
    """Return the program that has the call's numbers for inputs; None if there can be none."""
    lifted = scalars.sentinels(call)
    if lifted is None:
        return None
    sentinels = [each.sentinel for each in lifted]
    try:
        found = traced(call, sentinels)
        pairs = dict(zip(sentinels, call.numbers, strict=True))
        return _program(found, lifted) if scalars.differ_only_in(found.graph, traced(call).graph, pairs) else None
    except (Untraceable, NotLowered):  # with the numbers themselves it may come out otherwise, or says why it does not
        return None


def _compiled(call: Call) -> Plan:
    """Return the program of ``call``, or the plan to run it on the CPU if there can be none."""
    try:
        return _program(traced(call))
    except Untraceable as error:
        return OnHost(str(error), warn=True, doubtful=True)
    except UnsupportedOperator as error:
        return OnHost(_reason(error, call), warn=True, doubtful=error.invalid)
    except LoweringBug as error:
        return OnHost(str(error), warn=True)


def _reason(error: UnsupportedOperator, call: Call) -> str:
    return error.reason if error.operator == call.operator.name else str(error)


def _program(found: Traced, lifted: Sequence[Lifted] = ()) -> Program:
    """Make the program of a trace in which sentinels stand for the numbers that are its inputs."""
    look = asked_for()
    if not look:
        without_checks(found.graph)
    results = trim(found.graph)
    inputs = used_inputs(found.graph)
    module = lower(found.graph, lifted, float64=programs.has_float64(), checks=look)
    executable = programs.get(Kind.EAGER, module)
    return Program(
        executable,
        inputs,
        tuple(found.orders[position] for position in inputs),
        tuple(each.dtype for each in lifted),
        found.returns(results),
        tuple(found.layouts[position] for position in results.positions),
        draws_of(found.graph),
        len(module.checks),
    )
