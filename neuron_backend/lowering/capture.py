"""From a Python function to a functional ATen graph, and the tidying that every graph gets before it is lowered."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functionalize

from neuron_backend.inferred_shapes import complete_inference
from neuron_backend.lowering.decompositions import decompositions
from neuron_backend.lowering.views import read_from_storage
from neuron_backend.torch_private import (
    DispatchKey,
    FakeTensorMode,
    ForceDispatchKeyGuard,
    OpOverload,
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    compile_lock,
    disable_current_modes,
    excluded_keys,
    get_proxy_slot,
    included_keys,
    temporarily_clear_interpreter_stack,
    tracing,
    track_tensor_tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.fx import GraphModule

# Dynamo's own. torch's tracers keep some of their state in the process, not in the thread: while Dynamo traces in one
# thread, no other may. Reentrant, as a traced function may trace.
TRACING = compile_lock

complete_inference()


@dataclass(frozen=True, slots=True)
class Results:
    """Which outputs of a graph are tensors: their ``positions`` among the ``count`` that there were before `trim`."""

    positions: tuple[int, ...]
    count: int

    def without(self, last: int) -> Results:
        """Leave out the ``last`` outputs, all of them tensors."""
        return Results(self.positions[: len(self.positions) - last], self.count - last)


def trace(function: Callable[..., Sequence[torch.Tensor | None]], examples: Sequence[torch.Tensor]) -> GraphModule:
    """Trace ``function(*tensors)``, which returns a flat list of tensors and None, without running it on data.

    It sees fake CPU tensors of the sizes and dtypes of ``examples``, contiguous whatever their strides. In-place
    operators come out functional, and what they write is seen in the results only; composite operators come out
    decomposed. Autocast and the default device of the caller have no part in it. A graph that depends on values raises
    what PyTorch raises for it.
    """
    with (
        TRACING,
        _on_its_own(),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        inputs = [torch.empty(example.shape, dtype=example.dtype, device="cpu") for example in examples]

        def on_copies(*tensors: torch.Tensor) -> Sequence[torch.Tensor | None]:
            # A write to an input itself would stay in the graph as a copy_ at its end.
            return function(*(tensor.clone() for tensor in tensors))

        graph = _recorded(functionalize(on_copies), inputs)
        # A decomposition written with in-place operators ran below the functionalisation of the first pass.
        return _recorded(functionalize(graph), inputs) if _writes(graph) else graph


def _recorded(function: Callable[..., Sequence[torch.Tensor | None]], inputs: Sequence[torch.Tensor]) -> GraphModule:
    """Return what ``function`` does with ``inputs``, which are fake, as `make_fx` does but without `Tracer.trace`.

    That raises a flag and patches modules for all threads: a compiled function that another one calls, or has torch
    compile, meanwhile fails.
    """
    tracer = PythonKeyTracer()
    tracer.root, tracer.tensor_attrs = torch.nn.Module(), {}
    tracer.graph = torch.fx.Graph(tracer_cls=PythonKeyTracer)
    proxies = [tracer.create_proxy("placeholder", f"arg{position}", (), {}) for position in range(len(inputs))]
    track_tensor_tree(list(inputs), proxies, constant=None, tracer=tracer)
    mode: Any = ProxyTorchDispatchMode
    with mode(tracer, "real", decomposition_table=decompositions()):
        results = function(*inputs)
    found = [each if each is None else get_proxy_slot(each, tracer, each, lambda slot: slot.proxy) for each in results]
    tracer.create_node("output", "output", (tracer.create_arg(found),), {})
    return torch.fx.GraphModule(tracer.root, tracer.graph)


@contextlib.contextmanager
def _on_its_own() -> Iterator[None]:
    """Trace as at the top of a script, wherever the operator was called.

    It may be called below a compiled function, below functorch's layers, or where torch itself, in the middle of a
    trace of its own, computes what follows from a constant. There Python's part in dispatch is switched off: fake
    tensors would be plain ones, with what lies in their memory for values, and these would end up in the program.
    """
    exclude, include = excluded_keys(), included_keys()
    for name in _OF_THE_CALLER:
        exclude, include = (each.remove(getattr(DispatchKey, name)) for each in (exclude, include))
    with (
        disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        tracing(None),
        ForceDispatchKeyGuard(include, exclude),
    ):
        yield


# What torch includes in dispatch, or excludes from it, for a mode, a layer or a kernel at work.
_OF_THE_CALLER = (
    *("Python", "PythonTLSSnapshot", "PythonDispatcher", "PreDispatch", "Meta"),
    *("Functionalize", "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"),
    *("FuncTorchGradWrapper", "FuncTorchBatched", "FuncTorchVmapMode", "Conjugate", "Negative", "ZeroTensor"),
)


def _writes(graph: GraphModule) -> bool:
    targets = [node.target for node in graph.graph.nodes if isinstance(node.target, OpOverload)]
    return any(target._schema.is_mutable for target in targets)  # noqa: SLF001  there is no public way to ask


def trim(graph: GraphModule) -> Results:
    """Drop outputs that are None, dead code and ``device=`` arguments, in place; say which outputs stay.

    What is read by strides is read from the storage that it lies in (see `views`).
    """
    output = graph.graph.output_node()
    flat = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    kept = tuple(position for position, result in enumerate(flat) if result is not None)
    output.args = (tuple(flat[position] for position in kept),)
    read_from_storage(graph)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        if node.op == "call_function" and "device" in node.kwargs:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "device"}
    graph.recompile()
    return Results(kept, len(flat))


def used_inputs(graph: GraphModule) -> tuple[int, ...]:
    """Remove placeholders that nothing reads, in place; return the positions, before that, of those that stay.

    Apart from `trim`, because a caller that may not change a graph's calling convention must not ask for it.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    used = tuple(position for position, node in enumerate(placeholders) if node.users)
    for node in placeholders:
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return used
