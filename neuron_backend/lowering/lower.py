"""The driver: walk an FX graph, let each operator's handler build its part, check every result, finish the module."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from torch.fx.node import map_aggregate

from neuron_backend.lowering.array import Array, Lifted, constant, lifted_number
from neuron_backend.lowering.checks import CHECKS
from neuron_backend.lowering.control_flow import control_flow, takes_graphs
from neuron_backend.lowering.dtypes import available, narrowing, tensor_type
from neuron_backend.lowering.errors import Broken, Invalid, LoweringBug, NotLowered, Refused, UnsupportedOperator
from neuron_backend.lowering.families import handler, is_random
from neuron_backend.lowering.flag import Flag
from neuron_backend.lowering.narrowing import narrowed
from neuron_backend.lowering.pipeline import context, finish
from neuron_backend.lowering.registry import Call
from neuron_backend.lowering.sources import dense
from neuron_backend.lowering.threefry import Stream
from neuron_backend.lowering.user_line import user_line
from neuron_backend.lowering.validity import checks_without_results, conditions
from neuron_backend.module import Module, TensorSpec
from neuron_backend.torch_private import disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule, Node

    from neuron_backend.lowering.array import LiftedFloat, LiftedInteger
    from neuron_backend.lowering.validity import Condition


def lower(graph: GraphModule, lifted: Sequence[Lifted] = (), *, float64: bool = True, checks: bool = False) -> Module:
    """Lower a functional ATen graph of static shapes to a module.

    Inputs are the graph's placeholders in order, then one rank-0 input for each of ``lifted``, then, if the graph
    draws random numbers (see `draws_of`), a seed and an offset: 64-bit numbers as int32[2], low word first. Outputs are
    the graph's outputs, which must all be tensors (see `trim`). A number equal to a sentinel of ``lifted``
    reads that input, wherever it stands; a sentinel that stands nowhere leaves its input unused. An operator whose
    lowering depends on the scalar's value is refused: lower the graph again with the scalar left in it.

    With ``checks`` the values that operators refuse are looked for (see `validity`). If there is one such operator,
    one more output follows: the flag that `neuron_backend.value_checks` reads.

    The bytes depend on the graph, ``float64`` and ``checks`` alone: not on names, locations, hash seed, process or the
    values of inputs. Without ``float64``, of a target that lacks that type, the graph is lowered as if it said float32,
    and complex64 for complex128; `Module.called_as` then has the types that it says.

    Whether a factorization succeeded is not checked: see `take_checks`.

    Raises `UnsupportedOperator` if the graph cannot be lowered, `LoweringBug` if a lowering fails that should not, and
    nothing else. Safe to call from several threads.
    """
    # a handler may ask torch about dtypes, and keeps the answer: not as a tensor of whoever is tracing this graph
    with context() as messages, disable_current_modes(), narrowing(on=not float64):
        walk = _Walk(graph, lifted)
        try:
            other = narrowed(graph, lifted)
            if other is not None:
                walk = _Walk(other.graph, other.lifted)
            walk.flag = Flag() if checks else None
            module = walk.build()
            walk.current = "module"
            finished = finish(module, messages)
            walk.check(finished)
        except NotLowered:
            raise
        except Refused as refusal:
            invalid = isinstance(refusal, Invalid)
            raise UnsupportedOperator(walk.current, str(refusal), line=walk.line, invalid=invalid) from refusal
        except Broken as error:
            raise LoweringBug(walk.current, str(error), line=walk.line) from error
        except Exception as error:
            # A handler that met arguments it was not written for. The caller goes on without it.
            raise LoweringBug(walk.current, f"{type(error).__name__}: {error}", line=walk.line) from error
        called_as = None if other is None else other.called_as(finished.signature)
        return replace(finished, called_as=called_as, checks=walk.flag.checks if walk.flag else ())


def draws_of(graph: GraphModule) -> int:
    """Count the nodes that draw random numbers: by so much the offset advances with each run of the graph's program."""
    return sum(node.op == "call_function" and is_random(node.target) for node in graph.graph.nodes)


def specs(value: Any) -> tuple[TensorSpec | None, ...]:
    """Return what shape inference says of a node: one entry per result, None where that is no tensor."""
    results = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(_spec(result) if isinstance(result, torch.Tensor) else None for result in results)


def _spec(tensor: torch.Tensor) -> TensorSpec:
    if any(not isinstance(size, int) for size in tensor.shape):
        raise Refused("its shape is symbolic; compile with dynamic=False")
    return TensorSpec(tensor.dtype, tuple(int(size) for size in tensor.shape))


_SEED = (TensorSpec(torch.int32, (2,)), TensorSpec(torch.int32, (2,)))


class _Walk:
    """One pass over one graph.

    ``current`` names the node in hand, and ``line`` the user's line that it stands for, for whoever reports a failure.
    """

    def __init__(self, graph: GraphModule, lifted: Sequence[Lifted]) -> None:
        self.current = "placeholder"
        self._node: Node | None = None
        self._graph = graph
        self._lifted = lifted
        self._values: dict[Node, Any] = {}
        self._scalars: dict[float, LiftedFloat | LiftedInteger] = {}
        self._seed: tuple[Array, ...] = ()
        self._drawn = 0
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[TensorSpec, ...] = ()
        self.flag: Flag | None = None
        self._inner = False

    @property
    def line(self) -> str:
        """The line of the user's code that the node in hand stands for; empty where that is not known."""
        return "" if self._node is None else user_line(self._node)

    def build(self) -> ir.Module:
        """Build the module, not yet through any pass."""
        nodes = list(self._graph.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        scalars = tuple(TensorSpec(each.dtype, ()) for each in self._lifted)
        seed = _SEED if draws_of(self._graph) else ()
        self._inputs = (*map(self._placeholder, placeholders), *scalars, *seed)
        kinds = [tensor_type(spec.shape, spec.dtype) for spec in self._inputs]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function: Any = func.FuncOp("main", ir.FunctionType.get(kinds, []))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            self._seed = tuple(
                Array(value, spec.dtype, spec.shape)
                for value, spec in zip(arguments[len(arguments) - len(seed) :], seed, strict=True)
            )
            for scalar, value in zip(self._lifted, arguments[len(placeholders) :], strict=False):
                self._scalars.setdefault(scalar.sentinel, lifted_number(Array(value, scalar.dtype, ()), scalar.number))
            for node, value, spec in zip(placeholders, block.arguments, self._inputs, strict=False):
                self._values[node] = Array(value, spec.dtype, spec.shape)
            for node in nodes:
                self._visit(node)
            results = self._results(nodes[-1])
            func.ReturnOp([result.value for result in results])
        kind = ir.FunctionType.get(kinds, [result.value.type for result in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        return module

    def check(self, module: Module) -> None:
        """Compare the finished module's own signature with what the graph says."""
        if module.signature.inputs != self._inputs or module.signature.outputs != self._outputs:
            raise Broken(f"the module's signature is {module.signature}")

    def _placeholder(self, node: Node) -> TensorSpec:
        self.current = f"placeholder {node.target}"
        (spec,) = specs(node.meta.get("val"))
        if spec is None:
            kind = type(node.meta.get("val")).__name__
            raise Refused(f"the graph has an input that is no tensor but {kind}; compile with dynamic=False")
        return spec

    def _visit(self, node: Node) -> None:
        self._node = node
        if node.op == "get_attr":
            self.current = f"get_attr {node.target}"
            held = _attribute(self._graph, str(node.target))
            self._values[node] = dense(held) if isinstance(held, torch.Tensor) else held
        elif node.op == "call_function":
            self.current = str(node.target)
            call = self._call_with_graphs if takes_graphs(node.target) else self._call
            self._values[node] = call(node)
        elif node.op not in {"placeholder", "output"}:
            raise UnsupportedOperator(f"{node.op} {node.target}", "only calls of ATen operators can be lowered")

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            sequence, position = node.args
            return self._values[sequence][position]  # type: ignore[index]  # getitem's arguments: a node, a number
        if node.target in CHECKS:
            return self._check_outside(node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:  # noqa: SLF001
            raise Refused("it writes to a tensor that it is given, and a program computes new values only")
        lowering = handler(node.target)
        if lowering is None:
            raise Refused("there is no lowering for it")
        expected = specs(node.meta.get("val"))
        if not any(expected):
            raise Refused("its result is no tensor")
        stream = self._stream(node) if is_random(node.target) else None
        arguments, keywords = map_aggregate((node.args, node.kwargs), self._argument)
        nothing = all(spec is None or 0 in spec.shape for spec in expected)
        if not nothing or checks_without_results(node.target):
            self._see(node.target, arguments, keywords)
        if nothing:
            # Nothing to compute, whatever the operator: this spares every handler the case.
            empty = tuple(spec and constant(0, spec.dtype, spec.shape) for spec in expected)
            return empty if isinstance(node.meta["val"], (tuple, list)) else empty[0]
        result = lowering(Call(node, expected, stream, self._refuse), *arguments, **keywords)
        got = result if isinstance(result, (tuple, list)) else (result,)
        for position, (array, spec) in enumerate(zip(got, expected, strict=True)):
            if spec is not None and (array is None or (array.dtype, array.shape) != (spec.dtype, spec.shape)):
                found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
                raise Broken(f"result {position} is {found} where PyTorch says {spec.dtype}{list(spec.shape)}")
        return result

    def _call_with_graphs(self, node: Node) -> Any:
        if node.kwargs:
            raise Refused("it is called with keywords")
        arguments: Any = map_aggregate(node.args, self._argument)
        return control_flow(node.target, self._inside, specs(node.meta.get("val")), arguments)

    def _inside(self, graph: GraphModule, arguments: Sequence[Any]) -> list[Array]:
        """Build a graph that an operator takes, at the current insertion point, and return its results.

        It has neither random numbers, which are counted before a run, nor checks, whose results would be out of reach.
        """
        walk = _Walk(graph, ())
        walk.flag, walk._inner, walk._scalars = self.flag, True, self._scalars
        nodes = list(graph.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        walk._values.update(zip(placeholders, arguments, strict=True))
        for node in nodes:
            if any(spec and available(spec.dtype) != spec.dtype for spec in specs(node.meta.get("val"))):
                raise Refused("a graph that it takes has a type that the target lacks")
            if "strided" in str(node.target):  # read from storages, which only the outermost graph's inputs have
                raise Refused(f"a graph that it takes reads memory by strides ({node.target})")
            if node.op == "call_function" and is_random(node.target):
                raise Refused(f"a graph that it takes draws random numbers ({node.target})")
            walk._visit(node)
        return walk._returned(nodes[-1], "a graph that it takes returns something that is no tensor")

    def _returned(self, node: Node, otherwise: str) -> list[Array]:
        flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
        results = [self._values.get(each) if isinstance(each, torch.fx.Node) else None for each in flat]
        arrays = [result for result in results if isinstance(result, Array)]
        if len(arrays) != len(flat):
            raise Refused(otherwise)
        return arrays

    def _check_outside(self, node: Node) -> None:
        if self._inner:
            raise Refused(f"{node.target} checks values where a program cannot say what it found")

    def _see(self, target: Any, arguments: Any, keywords: Any) -> None:
        """Have the values checked that the operator refuses."""
        for condition in () if self.flag is None else conditions(target, arguments, keywords):
            self._refuse(condition)

    def _refuse(self, condition: Condition) -> None:
        if self.flag is not None and self._node is not None:
            if self._inner:
                raise Refused(f"{self._node.target} checks values where a program cannot say what it found")
            self.flag.add(condition, condition.operator or _named(self._node), self.line)

    def _stream(self, node: Node) -> Stream:
        """Return the random bits of the next node that draws some, also if it has nothing to compute."""
        if node.kwargs.get("generator") is not None:
            raise Refused("it draws from a generator of its own, which is no input of a graph")
        seed, offset = self._seed
        self._drawn += 1
        return Stream.at(seed, offset, self._drawn - 1)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self._values[argument]
        number = type(argument) is float or type(argument) is int
        return self._scalars.get(argument, argument) if number else argument

    def _results(self, node: Node) -> list[Array]:
        self.current = "output"
        arrays = self._returned(
            node, "the graph returns something that is no tensor; trim() drops outputs that are None"
        )
        if self.flag is not None and self.flag.checks:
            arrays = [*arrays, self.flag.value()]
        self._outputs = tuple(TensorSpec(array.dtype, array.shape) for array in arrays)
        return arrays


def _named(node: Node) -> str:
    """Return the operator that the user called, where torch noted it before taking it apart."""
    return str(node.meta.get("original_aten") or node.target)


def _attribute(graph: GraphModule, path: str) -> torch.Tensor | torch.fx.GraphModule:
    holder: Any = graph
    for part in path.split("."):
        holder = getattr(holder, part)
    if not isinstance(holder, (torch.Tensor, torch.fx.GraphModule)):
        raise Refused(f"the graph holds a {type(holder).__name__} where a tensor is expected")
    return holder
