"""How a call is carried out: a compiled program where there can be one, else a run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from client.names import Kind
from neuron_backend import programs
from neuron_backend.eager import scalars, signature
from neuron_backend.eager.host import OnHost
from neuron_backend.eager.operators import VIEW
from neuron_backend.lowering import Lifted, UnsupportedOperator, lower, trace, trim, used_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

    from neuron_backend.eager.signature import Call
    from neuron_backend.lowering import Results
    from neuron_backend.runtimes.base import Executable

_device = torch.ops.neuron_device
_as_cpu_contiguous = _device.as_cpu_contiguous.default
_from_cpu = _device.from_cpu.default
_store = _device.store.default


class Plan(Protocol):
    """Carries out every call that has one key."""

    def run(self, call: Call) -> Any:
        """Run ``call`` and return its results as torch expects them from a kernel."""


@dataclass(frozen=True, slots=True)
class Baked:
    """The program depends on the values of the call's floats: there is one for each set of them."""

    programs: dict[tuple[str, ...], Plan]

    def run(self, call: Call) -> Any:
        """Find or make the program for these floats, then run it."""
        values = tuple(number.hex() for number in call.numbers)
        plan = self.programs.get(values)
        if plan is None:
            plan = self.programs.setdefault(values, _program(call, lift=False))
        return plan.run(call)


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program and how a call's tensors fit to its inputs and outputs.

    ``inputs`` are positions among the call's tensors; then come the call's floats, as ``numbers``, if that is not None.
    Outputs are the new tensors of ``returns`` in order, then the new values of the written tensors. ``returns`` has for
    each return an argument's position, or for each of its new tensors whether it is there (a list if it is a list).
    """

    executable: Executable
    inputs: tuple[int, ...]
    numbers: torch.dtype | None
    returns: tuple[int | bool | list[bool], ...]

    def run(self, call: Call) -> Any:
        """Run the program on the call's tensors, write the written ones, and return the results."""
        tensors = call.tensors
        values = _as_cpu_contiguous([tensors[position] for position in self.inputs])
        if self.numbers is not None:
            values += [scalars.tensor(number, self.numbers) for number in call.numbers]
        outputs = self.executable(values)
        new = len(outputs) - len(call.written)
        if call.written:
            _store([tensors[position] for position in call.written], outputs[new:])
        fresh = iter(outputs[:new])
        del outputs, values
        device = signature.device_of(call)
        results = tuple(self._result(call, kind, fresh, device) for kind in self.returns)
        if len(results) == 1:
            return results[0]
        return results or None

    @staticmethod
    def _result(call: Call, kind: int | bool | list[bool], fresh: Any, device: int) -> Any:
        if kind is True:
            return _from_cpu(next(fresh), device)
        if kind is False:
            return None
        if isinstance(kind, list):
            return [_from_cpu(next(fresh), device) if there else None for there in kind]
        return signature.argument(call, kind)


class _Untraceable(Exception):  # noqa: N818 - a state, as UnsupportedOperator
    """torch could not trace a call: values decide what happens, or the arguments are wrong. The CPU will tell."""


def make(call: Call) -> Plan:
    """Trace, lower and compile ``call``, or decide that it runs on the CPU.

    Raises RuntimeError if its tensors are on different devices, `client.errors.CompileError` if the compiler fails.
    """
    check_devices(call)
    operator = call.operator
    if operator.host_only is not None:
        is_view = operator.host_only is VIEW
        return OnHost(operator.host_only, warn=not operator.random and not is_view, counted=not is_view)
    if signature.overlapping(call):
        return OnHost("a tensor that it writes overlaps another in memory", warn=False)
    try:
        return _program(call, lift=bool(call.numbers))
    except _Untraceable as error:
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


def _program(call: Call, *, lift: bool) -> Plan:
    traced = _traced(call, scalars.sentinels(len(call.numbers), 0) if lift else None)
    dtype = scalars.dtype_of(call.tensors)
    lifted: list[Lifted] = []
    if lift:
        ones, others = (scalars.sentinels(len(call.numbers), which) for which in (0, 1))
        if not scalars.differ_only_in(traced.graph, _traced(call, others).graph, dict(zip(ones, others, strict=True))):
            return Baked({})
        lifted = [Lifted(sentinel, dtype) for sentinel in ones]
    results = trim(traced.graph)
    inputs = used_inputs(traced.graph)
    executable = programs.get(Kind.EAGER, lower(traced.graph, lifted))
    return Program(executable, traced.positions(inputs), dtype if lift else None, traced.returns(results))


@dataclass(frozen=True, slots=True)
class _Traced:
    """A call as a graph: its placeholders are the call's tensors at ``tensors``, its outputs as `Program` has them."""

    graph: GraphModule
    tensors: tuple[int, ...]
    kinds: tuple[int | str, ...]
    counts: list[int]

    def positions(self, inputs: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.tensors[position] for position in inputs)

    def returns(self, results: Results) -> tuple[int | bool | list[bool], ...]:
        """Say for each return which argument it is, or which of its tensors the graph gives."""
        there = iter([position in results.positions for position in range(results.count)])
        counts = iter(self.counts)
        answer: list[int | bool | list[bool]] = []
        for kind in self.kinds:
            if isinstance(kind, int):
                answer.append(kind)
            elif kind == "tensor":
                answer.append(next(there))
            else:
                answer.append([next(there) for _ in range(next(counts))])
        return tuple(answer)


def _traced(call: Call, numbers: Sequence[float] | None) -> _Traced:
    """Trace the call as a function without side effects, with ``numbers`` for its floats if given."""
    operator = call.operator
    positions = tuple(position for position in range(len(call.tensors)) if position not in call.wrapped)
    counts: list[int] = []

    def function(*examples: torch.Tensor) -> list[torch.Tensor | None]:
        tensors: list[Any] = [None] * len(call.tensors)
        for position, example in zip(positions, examples, strict=True):
            tensors[position] = example.clone() if position in call.written else example
        args, kwargs = signature.rebuild(call, tensors, numbers)
        result = operator.function(*args, **kwargs)
        results = result if len(operator.returns) > 1 else (result,)
        new: list[torch.Tensor | None] = []
        counts.clear()
        for kind, value in zip(operator.returns, results, strict=False):
            if kind == "tensor":
                new.append(value)
            elif kind == "tensors":
                new.extend(value)
                counts.append(len(value))
        return [*new, *(tensors[position] for position in call.written)]

    # The caller's autocast and inference mode have done their part before a kernel is called.
    with torch.inference_mode(mode=False), torch._C._DisableAutocast():
        try:
            graph = trace(function, [call.tensors[position] for position in positions])
        except Exception as error:
            reason = f"it cannot be traced: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise _Untraceable(reason) from error
    return _Traced(graph, positions, operator.returns, counts)
