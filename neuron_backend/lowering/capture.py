"""From a Python function to a functional ATen graph, and the tidying that every graph gets before it is lowered."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import tracing
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from neuron_backend.inferred_shapes import complete_inference
from neuron_backend.lowering.decompositions import decompositions
from neuron_backend.lowering.views import read_from_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.fx import GraphModule

# make_fx keeps the current tracer in a module-level variable and patches torch.nn.Module.__call__ while it runs, so
# two threads that trace at once would write into each other's graph. Reentrant, as a traced function may trace.
TRACING = threading.RLock()

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

        # "real" takes the inputs as they are: they are fake already.
        tracer: Any = make_fx(functionalize(on_copies), decomposition_table=decompositions(), tracing_mode="real")
        graph: GraphModule = tracer(*inputs)
        if _writes(graph):
            # A decomposition written with in-place operators: it ran below the functionalisation of the first pass.
            again: Any = make_fx(functionalize(graph), decomposition_table=decompositions(), tracing_mode="real")
            graph = again(*inputs)
        return graph


@contextlib.contextmanager
def _on_its_own() -> Iterator[None]:
    """Trace as at the top of a script, wherever the operator was called.

    It may be called below a compiled function, below functorch's layers, or where torch itself, in the middle of a
    trace of its own, computes what follows from a constant. There Python's part in dispatch is switched off: fake
    tensors would be plain ones, with what lies in their memory for values, and these would end up in the program.
    """
    key, local = torch._C.DispatchKey, torch._C  # noqa: SLF001 - there is no public way, here and below
    exclude = local._dispatch_tls_local_exclude_set()  # noqa: SLF001
    include = local._dispatch_tls_local_include_set()  # noqa: SLF001
    for name in _OF_THE_CALLER:
        exclude, include = (each.remove(getattr(key, name)) for each in (exclude, include))
    with (
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        tracing(None),
        local._ForceDispatchKeyGuard(include, exclude),  # noqa: SLF001
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
