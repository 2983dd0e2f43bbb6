"""Between torch's tensors and a program's: which arguments go in, and what the results are to the caller."""

from __future__ import annotations

import threading
import weakref
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
_run_held = torch.ops.neuron_device.run_held.default


class Loaded:
    """A program, called on tensors as they are: by the device library where it can, else on copies on the host.

    Its last output is the flag of that many value ``checks``, if there are any, and no result.
    """

    def __init__(self, executable: Executable, checks: int) -> None:
        self._executable = executable
        self._checks = checks
        self._number: int | None = None
        self._asked = False

    def __call__(self, tensors: Sequence[torch.Tensor], device: int) -> tuple[list[torch.Tensor], bool]:
        """Return contiguous results, and whether they are on ``device``, the same at each call, or on the host."""
        if not self._asked:
            self._asked = True
            self._hold(device)
        if self._number is not None:
            results: list[torch.Tensor] = _run_held(self._number, tensors)
            if results:
                return results, True
        return self._executable([host_tensor(each) for each in tensors]), False

    def _hold(self, device: int) -> None:
        direct, signature = self._executable.direct, self._executable.signature
        if direct is None or not signature.outputs:
            return
        self._number = _device.hold(
            [id(each) for each in direct],
            [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in signature.inputs],
            [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in signature.outputs],
            device,
            self._checks,
        )
        weakref.finalize(self, _device.release, self._number).atexit = False


class Pending:
    """The programs of one graph, its backward's too: all are compiled when the first of them is called.

    Not before: Dynamo holds a lock of the whole process while a backend works, under which every other thread's first
    call of anything waits. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Module] = deque()
        self._loaded: list[Executable] = []

    def add(self, module: Module) -> Callable[[], Loaded]:
        """Return what gives the program of ``module``, and raises what `programs.get` raises."""
        position = len(self._loaded) + len(self._waiting)
        self._waiting.append(module)
        checks = len(module.checks)

        def get() -> Loaded:
            self.compile()
            return Loaded(self._loaded[position], checks)

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

    def put(self, result: torch.Tensor, *, there: bool) -> torch.Tensor:
        """Return a program's contiguous result as the tensor that the graph promised.

        It is on the host or, if it is ``there``, on the device.
        """
        if there and self.strides is None and self.index is not None:
            return result
        (result,) = _on_host([result])
        if self.strides is not None:
            for axis, stride in enumerate(self.strides):
                if stride == 0 and self.shape[axis] > 1:  # expanded: its elements lie there once
                    result = result.narrow(axis, 0, 1)
            strided = torch.empty_strided(result.shape, self.strides, dtype=result.dtype)
            result = strided.copy_(result).expand(self.shape)
        return result if self.index is None else _device.from_cpu(result, self.index)


def _on_host(results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return a program's results, which are all in one place, as host tensors."""
    there = results and results[0].device.type == DEVICE
    return _device.as_cpu_list(results) if there else results


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


class _Returns:
    """What a program's results are to the caller of ``graph``: where they go, and which share memory.

    ``target`` is the index of the device they are made on, None if all go to the host.
    """

    def __init__(self, graph: GraphModule, results: Results) -> None:
        outputs: Any = graph.graph.output_node().args[0]
        self.count = len(outputs)
        self.positions = [position for position in results.positions if position < len(outputs)]
        values = [outputs[position].meta["val"] for position in self.positions]
        self._together = shared(values)
        aliased = {index for group in self._together for index in group.positions}
        self._places = {index: _Place.of(value) for index, value in enumerate(values) if index not in aliased}
        indices = [*(place.index for place in self._places.values()), *(group.device for group in self._together)]
        self.target = next((index for index in indices if index is not None), None)

    def put(self, computed: Sequence[torch.Tensor], *, there: bool) -> list[torch.Tensor | None]:
        """Return the graph's outputs, None for what is not computed; ``there``: whether results are on the device."""
        answer: list[torch.Tensor | None] = [None] * self.count
        for index, place in self._places.items():
            result = computed[index]
            answer[self.positions[index]] = place.put(result, there=there and place.index == self.target)
        for group in self._together:
            views = group.put(_on_host([computed[index] for index in group.positions]))
            for index, view in zip(group.positions, views, strict=True):
                answer[self.positions[index]] = view
        return answer


def bind(  # noqa: PLR0917 - what compiling one graph gives
    program: Callable[[], Loaded] | None,
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
    returns = _Returns(graph, results)
    device = _drawing_device(graph) if draws else None
    copies = _copies_to_host(graph)
    new = len(returns.positions)
    count = new + len(border.writes)  # of what the program computes; operands of checks come after that
    loaded: Loaded | None = None

    def run(*arguments: Any) -> list[torch.Tensor | None]:
        nonlocal loaded
        if loaded is None and program is not None:
            loaded = program()
        if copies and programs.recording():
            raise ValueNeeded(COPY)
        with torch.no_grad():
            inputs = (*arguments, *(each.of(arguments) for each in border.inputs)) if border.inputs else arguments
            given = [inputs[index] for index in used]
            if draws:
                given += _device.draw(_device.default_generator(_current(device)), draws)
            computed, there = ([], False) if loaded is None else loaded(given, _current(returns.target))
            _see(checks, _on_host(computed[count:]))
            answer = returns.put(computed, there=there)
            for position, value in zip(border.writes, computed[new:count], strict=True):
                arguments[position].copy_(value)
            for position, passed in border.outputs.items():
                answer[position] = passed.of(arguments)
        return answer

    return run
