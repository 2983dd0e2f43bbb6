"""What crosses a graph's border without being computed: arguments that come back, views of them, writes to them.

To the caller a result that is an argument, or shows its memory, is that argument: what autograd saves costs no memory
and notices a change, and a write is seen by everybody. A program knows values alone; so these stay outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from neuron_backend.lowering import AS_STRIDED, UnsupportedOperator, read_from_storage, viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

_COPY = torch.ops.aten.copy_.default
_SCATTER = torch.ops.aten.as_strided_scatter.default


@dataclass(frozen=True, slots=True)
class Passed:
    """The argument at ``position``, seen through views: each an operator, with what follows its first argument."""

    position: int
    views: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]

    def of(self, arguments: Sequence[Any]) -> Any:
        """Return it, of the arguments of one call."""
        value = arguments[self.position]
        for view, rest, keywords in self.views:
            value = view(value, *rest, **keywords)
        return value


@dataclass(frozen=True, slots=True)
class Border:
    """What `take_border` found.

    ``inputs`` are inputs that the program has beyond the graph's arguments, ``outputs`` those that it does not compute,
    by position, ``writes`` the arguments that take the values of its last outputs, in this order.
    """

    inputs: tuple[Passed, ...]
    outputs: dict[int, Passed]
    writes: tuple[int, ...]


def take_border(graph: GraphModule) -> Border:
    """Remove from ``graph``, in place, what is not the program's to do.

    Outputs that are arguments become None, each write to an argument an output after all others, and each as_strided of
    an argument an input after all others. Raises `UnsupportedOperator` if the graph reads what it has written.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    positions = {node: position for position, node in enumerate(placeholders)}
    output = graph.graph.output_node()
    results: Any = output.args[0]
    writes = _writes(graph, positions)
    read_from_storage(graph)
    outputs = {}
    for position, result in enumerate(results):
        passed = _passed(result, positions) if isinstance(result, Node) else None
        if passed is not None:
            outputs[position] = passed
    kept = [None if position in outputs else result for position, result in enumerate(results)]
    output.args = ((*kept, *(source for _, source in writes)),)
    inputs = _storage_inputs(graph, placeholders, positions)
    graph.recompile()
    return Border(inputs, outputs, tuple(position for position, _ in writes))


def _writes(graph: GraphModule, positions: dict[Node, int]) -> list[tuple[int, Node]]:
    """Take the writes to arguments out of the graph: each argument's position, and what is written."""
    found = []
    written: set[Node] = set()
    shows: dict[Node, Node] = {}  # of a node that is, or shows, an argument: the argument
    for node in list(graph.graph.nodes):
        base = viewed(node)
        if node in positions or base is not None:
            shows[node] = node if base is None else shows.get(base, base)
        if node.op == "output":
            break
        destination, source = node.args[:2] if node.target is _COPY else (None, None)
        if any(shows.get(each) in written for each in node.all_input_nodes if each is not destination):
            raise UnsupportedOperator(str(node.target), "it reads an argument that the graph has written before")
        if destination in positions and isinstance(source, Node):
            found.append((positions[destination], source))
            written.add(destination)
            node.replace_all_uses_with(destination)
            graph.graph.erase_node(node)
    return found


def _passed(node: Node, positions: dict[Node, int]) -> Passed | None:
    """Return ``node`` as a view of an argument, or None if it is computed."""
    views: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    current: Node | None = node
    while current is not None and current not in positions:
        views.append(_view(current))
        current = viewed(current)
    return None if current is None else Passed(positions[current], tuple(reversed(views)))


def _view(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if node.target not in AS_STRIDED:
        return node.target, node.args[1:], dict(node.kwargs)
    base: Any = node.args[0]
    begin = int(base.meta["val"].storage_offset())
    _, size, stride, *rest = node.args
    offset = rest[0] if rest else node.kwargs.get("storage_offset")
    return _as_strided, (size, stride, begin if offset is None else offset, begin), {}


def _storage_inputs(graph: GraphModule, placeholders: Sequence[Node], positions: dict[Node, int]) -> tuple[Passed, ...]:
    """Let each as_strided of an argument be done by the caller: only he has all of the argument's storage."""
    inputs: list[Passed] = []
    last = placeholders[-1] if placeholders else None
    for node in list(graph.graph.nodes):
        if node.target not in AS_STRIDED or node.args[0] not in positions or not node.users:
            continue
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"storage_{len(inputs)}")
        last.meta["val"] = node.meta["val"]
        inputs.append(Passed(positions[node.args[0]], (_view(node),)))
        node.replace_all_uses_with(last)
        graph.graph.erase_node(node)
    return tuple(inputs)


@dataclass(slots=True)
class Sight:
    """What graphs see of the storages that their arguments lie in.

    ``place``: where an argument begins in its storage; Dynamo compiles anew for other sizes and strides, not for that.
    ``outside``: they scatter by strides into the storage of an argument that may not be all of it.
    """

    place: bool = False
    outside: bool = False

    def add(self, graph: GraphModule) -> None:
        """Look at one more graph."""
        for node in graph.graph.nodes:
            if node.target is not _SCATTER and node.target not in AS_STRIDED:
                continue
            base: Any = node.args[0]
            while base is not None and base.op != "placeholder":
                base = viewed(base)
            if base is not None:
                self.place = True
                self.outside |= node.target is _SCATTER and not _is_whole(base.meta["val"])


def _is_whole(tensor: torch.Tensor) -> bool:
    size = tensor.numel() * tensor.dtype.itemsize
    return tensor.is_contiguous() and not tensor.storage_offset() and tensor.untyped_storage().nbytes() == size


def _as_strided(value: torch.Tensor, size: Any, stride: Any, offset: int, begin: int) -> torch.Tensor:
    """Return the view of a tensor that as_strided with ``offset`` is of one that begins at ``begin``.

    That is where it began when it was traced, and decompositions have computed with it.
    """
    return value.as_strided(size, stride, offset + value.storage_offset() - begin)
