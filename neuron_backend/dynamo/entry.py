"""The function that ``torch_dynamo_backends`` names; light, because Dynamo loads it to list its backends."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from neuron_backend.inferred_shapes import complete_inference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

_GROUP = "torch_dynamo_backends"
_DISTRIBUTION = "neff-cache"


def _other_owner() -> EntryPoint | None:
    """Return another distribution's backend ``neuron``: the vendor's, where it is installed."""
    for entry in entry_points(group=_GROUP, name="neuron"):
        if entry.dist is not None and entry.dist.name.lower().replace("_", "-") != _DISTRIBUTION:
            return entry
    return None


def _leave_alone_our_own_code() -> None:
    """Keep Dynamo out of the kernels that run where a graph breaks: they are Python, but no part of a model."""
    from torch._dynamo import trace_rules  # noqa: PLC0415 - Dynamo is there by the time it asks for this module

    trace_rules.add("neuron_backend")


_leave_alone_our_own_code()
complete_inference()  # before Dynamo traces: it asks for shapes where it would break the graph


def neuron(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a Dynamo graph for Neuron through the shared cache.

    Where another distribution owns the backend's name this forwards to it, whichever of the two Dynamo finds first.
    """
    owner = _other_owner()
    if owner is not None:
        return owner.load()(graph, example_inputs, **options)  # type: ignore[no-any-return]
    from neuron_backend.dynamo.backend import compile_graph  # noqa: PLC0415 - heavy, and not where it forwards

    return compile_graph(graph, example_inputs, **options)
