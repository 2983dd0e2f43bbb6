"""The graph path: AOTAutograd's graphs, each lowered whole, compiled and run; nothing may fall back to the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn.attention import SDPBackend, sdpa_kernel

from neuron_backend.dynamo.backend import _program
from neuron_backend.dynamo.calling import Pending
from neuron_backend.dynamo.options import Options
from neuron_backend.dynamo.partition import partition
from neuron_backend.lowering import UnsupportedOperator, decompositions_for_graphs, is_random
from tests.sweep.comparing import difference
from tests.sweep.entries import on_neuron
from tests.sweep.outcome import NO_REFERENCE, OK, UNSUPPORTED, WRONG, Outcome
from tests.sweep.reference import gradients, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

    from tests.sweep.entries import Sample


class _Compiler:
    """The backend's own; remembers whether a graph draws random numbers, which are not those of the CPU."""

    def __init__(self) -> None:
        self.random = False

    def __call__(self, graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.random |= any(is_random(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return _program(graph, examples, Pending(), name="graph", options=Options(fallback=False))


def check(name: str, sample: Sample, *, gradient: bool) -> Outcome:
    """Compare the entry's graphs, compiled, with the CPU."""
    expected = reference(sample, gradient=gradient)
    if isinstance(expected, str):
        return Outcome(name, NO_REFERENCE, expected)
    compiler = _Compiler()

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        result = sample.run(tensors, on_neuron)
        return sample.differentiable(result) if gradient else sample.comparable(result)

    compiled: Any = aot_function(function, compiler, partition_fn=partition, decompositions=decompositions_for_graphs())
    try:
        copies = sample.placed(gradient=gradient)
        torch.manual_seed(1)
        with sdpa_kernel([SDPBackend.MATH]):
            results = list(compiled(*copies))
            if gradient:
                results += gradients(results, copies)
    except UnsupportedOperator as error:
        return Outcome(name, UNSUPPORTED, f"{error.operator}: {error.reason}")
    except DynamicOutputShapeException as error:
        return Outcome(name, UNSUPPORTED, f"{error.func}: the size of its result depends on values")
    except DataDependentOutputException as error:
        return Outcome(name, UNSUPPORTED, f"{error.func}: Python reads its value")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table has to say
        return Outcome(name, UNSUPPORTED, f"{type(error).__name__}: {' '.join(str(error).split())}")
    text = difference(
        results,
        expected.results,
        shapes_only=compiler.random or sample.shapes_only,
        precise=expected.precise,
    )
    if name in _PLAIN_HERE and ": strides " in text:
        text = ""
    return Outcome(name, WRONG, text) if text else Outcome(name, OK)


# AOTAutograd alone resizes a copy in plain order; torch.compile, which users call, keeps the strides as the CPU does.
_PLAIN_HERE = frozenset({"resize_as_"})
