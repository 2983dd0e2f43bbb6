"""How a call is carried out: by a compiled program where there can be one, else on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from client.names import Kind
from neuron_backend import programs
from neuron_backend.eager import scalars, signature
from neuron_backend.eager.host import OnHost
from neuron_backend.eager.operators import VIEW
from neuron_backend.eager.program import Program
from neuron_backend.eager.tracing import Untraceable, traced
from neuron_backend.lowering import Lifted, UnsupportedOperator, lower, trim, used_inputs

if TYPE_CHECKING:
    from neuron_backend.eager.signature import Call


class Plan(Protocol):
    """Carries out every call that has one key."""

    def run(self, call: Call) -> Any:
        """Run ``call`` and return its results as torch expects them from a kernel."""


@dataclass(frozen=True, slots=True)
class Baked:
    """The program depends on the values of the call's floats: there is one for each set of them."""

    plans: dict[tuple[str, ...], Plan]

    def run(self, call: Call) -> Any:
        """Find or make the program for these floats, then run it."""
        values = tuple(number.hex() for number in call.numbers)
        plan = self.plans.get(values)
        if plan is None:
            plan = self.plans.setdefault(values, _program(call, lift=False))
        return plan.run(call)


def make(call: Call) -> Plan:
    """Trace, lower and compile ``call``, or decide that it runs on the CPU.

    Raises RuntimeError if its tensors are on different devices, `client.errors.CompileError` if the compiler fails.
    """
    check_devices(call)
    check_out_types(call)
    operator = call.operator
    if operator.host_only is not None:
        is_view = operator.host_only is VIEW
        return OnHost(operator.host_only, warn=not operator.random and not is_view, counted=not is_view)
    if signature.overlapping(call):
        return OnHost("a tensor that it writes overlaps another in memory", warn=False)
    try:
        return _program(call, lift=bool(call.numbers))
    except Untraceable as error:
        return OnHost(str(error), warn=True, doubtful=True)
    except UnsupportedOperator as error:
        return OnHost(error.reason if error.operator == operator.name else str(error), warn=True)


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


def check_out_types(call: Call) -> None:
    """Raise RuntimeError, in torch's words, if an ``out=`` tensor cannot hold the result's type.

    Tracing would convert the result, because functional operators have no ``out=``. torch's own kernels for tensors
    without data judge it as all its kernels do.
    """
    if len({tensor.dtype for tensor in call.tensors}) < 2 or not any(each.out for each in call.operator.arguments):  # noqa: PLR2004
        return
    shapes = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in call.tensors]
    args, kwargs = signature.rebuild(call, shapes)
    try:
        call.operator.function(*args, **kwargs)
    except RuntimeError as error:  # also NotImplementedError: not every operator has such a kernel
        if "can't be cast to the desired output type" in str(error):
            raise


def _program(call: Call, *, lift: bool) -> Plan:
    """Make the program for ``call``, its floats inputs of it if ``lift`` says so and its graph allows it."""
    lifted: list[Lifted] = []
    if lift:
        ones, others = (scalars.sentinels(len(call.numbers), which) for which in (0, 1))
        found = traced(call, ones)
        if not scalars.differ_only_in(found.graph, traced(call, others).graph, dict(zip(ones, others, strict=True))):
            return Baked({})
        lifted = [Lifted(sentinel, scalars.dtype_of(call.tensors)) for sentinel in ones]
    else:
        found = traced(call)
    results = trim(found.graph)
    inputs = used_inputs(found.graph)
    executable = programs.get(Kind.EAGER, lower(found.graph, lifted))
    return Program(executable, inputs, lifted[0].dtype if lifted else None, found.returns(results))
