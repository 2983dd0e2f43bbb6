"""Between torch's tensors and a program's: which arguments go in, and what the results are to the caller."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from client.names import Kind
from neuron_backend import programs
from neuron_backend.dynamo.aliases import shared
from neuron_backend.lowering import is_random
from neuron_backend.reading import COPY, ValueNeeded
from neuron_backend.torch_private import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule, Node

    from neuron_backend.dynamo.border import Border
    from neuron_backend.lowering import Check, Results
    from neuron_backend.module import Module
    from neuron_backend.runtimes.base import Executable

DEVICE = "neuron"

_device = torch.ops.neuron_device


class Pending:
    """The programs of one graph, its backward's too: all are compiled when the first of them is called.

    Not before: Dynamo holds a lock of the whole process while a backend works, under which every other thread's first
    call of anything waits. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Module] = deque()
        self._loaded: list[Executable] = []

    def add(self, module: Module) -> Callable[[], Executable]:
        """Return what gives the program of ``module``, and raises what `programs.get` raises."""
        position = len(self._loaded) + len(self._waiting)
        self._waiting.append(module)

        def get() -> Executable:
            self.compile()
            return self._loaded[position]

        return get

    def compile(self) -> None:
        """Compile what is not compiled yet; what fails is tried again by the next call."""
        _device.check_fork()  # another thread may have held the lock when this process was made
        with self._lock:
            while self._waiting:
                self._loaded.append(programs.get(Kind.GRAPH, self._waiting[0]))
                self._waiting.popleft()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a result goes: the index of a neuron device, or None for the host, and its strides if not contiguous."""

    index: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    @classmethod
    def of(cls, value: torch.Tensor) -> _Place:
        index = (value.device.index or 0) if value.device.type == DEVICE else None
        shape, strides = tuple(value.shape), tuple(value.stride())
        # a tensor of one element or fewer in a dimension has no meaningful stride there; torch compares as we do
        return cls(index, shape, None if value.is_contiguous() else strides)

    def put(self, result: torch.Tensor) -> torch.Tensor:
        """Return a program's contiguous host tensor as the tensor that the graph promised."""
        if self.strides is not None:
            for axis, stride in enumerate(self.strides):
                if stride == 0 and self.shape[axis] > 1:  # expanded: its elements lie there once
                    result = result.narrow(axis, 0, 1)
            strided = torch.empty_strided(result.shape, self.strides, dtype=result.dtype)
            result = strided.copy_(result).expand(self.shape)
        return result if self.index is None else torch.ops.neuron_device.from_cpu(result, self.index)


def host_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a contiguous host tensor over the bytes of ``value``, without a copy where they lie so already."""
    if value.device.type == DEVICE:
        value = torch.ops.neuron_device.as_cpu(value)
    return value.detach().resolve_conj().resolve_neg().contiguous()


def _drawing_device(graph: GraphModule) -> int | None:
    """Return the index of the first device that a random node's result is on, None if that is the host."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and is_random(node.target):
            value = node.meta["val"]
            device = (value[0] if isinstance(value, (tuple, list)) else value).device
            return device.index if device.type == DEVICE else None
    return None


def _copies_to_host(graph: GraphModule) -> bool:
    """Whether an output or argument that lies on the host takes what was computed from tensors of a device."""
    places: dict[Node, set[str]] = {}  # of what was computed from tensors of a device
    for node in graph.graph.nodes:
        found = {leaf.device.type for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)}
        if DEVICE in found or any(each in places for each in node.all_input_nodes):
            places[node] = found
    written = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return any(places.get(each, set()) - {DEVICE} for each in (*graph.graph.output_node().all_input_nodes, *written))


def _current(index: int | None) -> int:
    return int(_device.current_device()) if index is None else index


def _see(checks: Sequence[Check], operands: Sequence[torch.Tensor]) -> None:
    if not programs.recording():  # else no operand holds what was computed
        for check, operand in zip(checks, operands, strict=True):
            check.run(operand)


def bind(  # noqa: PLR0917 - what compiling one graph gives
    program: Callable[[], Executable] | None,
    graph: GraphModule,
    border: Border,
    used: Sequence[int],
    results: Results,
    draws: int,
    checks: Sequence[Check],
) -> Callable[..., list[torch.Tensor | None]]:
    """Return ``program`` with the calling convention of ``graph``: all arguments in, all outputs back.

    It is asked for at the first call. None stands for a program that would compute nothing. What ``border`` says is
    done here, on the arguments themselves. Each run takes ``draws`` steps of the generator of the device that the
    graph's random numbers are for. It ends in the error that torch raises where one of ``checks`` fails; their operands
    are the program's last outputs.
    While programs are recorded there is nothing to copy to the host: it then raises `ValueNeeded`.
    """
    outputs: Any = graph.graph.output_node().args[0]
    device = _drawing_device(graph) if draws else None
    returned = [position for position in results.positions if position < len(outputs)]
    count = len(returned) + len(border.writes)  # of what the program computes; operands of checks come after that
    values = [outputs[position].meta["val"] for position in returned]
    together = shared(values)
    aliased = {index for group in together for index in group.positions}
    copies = _copies_to_host(graph)
    places = {index: _Place.of(value) for index, value in enumerate(values) if index not in aliased}
    executable: Executable | None = None

    def run(*arguments: Any) -> list[torch.Tensor | None]:
        nonlocal executable
        if executable is None and program is not None:
            executable = program()
        if copies and programs.recording():
            raise ValueNeeded(COPY)
        answer: list[torch.Tensor | None] = [None] * len(outputs)
        with torch.no_grad():
            inputs = (*arguments, *(each.of(arguments) for each in border.inputs)) if border.inputs else arguments
            given = [host_tensor(inputs[index]) for index in used]
            if draws:
                given += _device.draw(_device.default_generator(_current(device)), draws)
            computed = [] if executable is None else executable(given)
            _see(checks, computed[count:])
            for index, place in places.items():
                answer[returned[index]] = place.put(computed[index])
            for group in together:
                views = group.put([computed[index] for index in group.positions])
                for index, view in zip(group.positions, views, strict=True):
                    answer[returned[index]] = view
            for position, value in zip(border.writes, computed[len(returned) : count], strict=True):
                arguments[position].copy_(value)
            for position, passed in border.outputs.items():
                answer[position] = passed.of(arguments)
        return answer

    return run
