"""What a user may ask of the backend: ``options``, ``mode``, ``dynamic``, and what is refused with a reason."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from client.errors import ConfigurationError
from neuron_backend.torch_private import dynamo_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch.fx import GraphModule

GRAPH_FALLBACK: Final = "NEURON_BACKEND_GRAPH_FALLBACK"
"""Set to 0, a graph with an unsupported operator raises instead of running operator by operator."""

_KNOWN: Final = {"fallback": "True: a graph with an unsupported operator runs operator by operator; False: it raises"}

# torch's names for how hard its own compiler tries. A user who moves a script here has set one for another device.
_MODES_OF_TORCH: Final = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_warned: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Options:
    """How graphs are compiled. ``fallback``: whether one with an unsupported operator runs operator by operator."""

    fallback: bool

    @classmethod
    def read(cls, mode: str | None, options: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Options:
        """Return what ``torch.compile(mode=…, options=…)`` and the environment ask for; options come first.

        Raises `ConfigurationError` for a key, value or mode that this backend does not know.
        """
        given = dict(options or {})
        unknown = sorted(str(name) for name in given if name not in _KNOWN)
        if unknown:
            known = "; ".join(f"{name!r} ({meaning})" for name, meaning in _KNOWN.items())
            raise ConfigurationError(f"backend neuron knows no options {unknown}: leave them out; it knows {known}")
        fallback = given.get("fallback", environ.get(GRAPH_FALLBACK, "").strip() != "0")
        if not isinstance(fallback, bool):
            raise ConfigurationError(f"option 'fallback' of backend neuron is {fallback!r}: expected True or False")
        _check_mode(mode)
        return cls(fallback)


def _check_mode(mode: str | None) -> None:
    if mode in (None, "default"):
        return
    if mode not in _MODES_OF_TORCH:
        raise ConfigurationError(
            f"backend neuron knows no mode {mode!r}: leave it out, or give 'default'; "
            "what the compiler is to do is said with NEURON_CC_FLAGS"
        )
    with _lock:
        if mode in _warned:
            return
        _warned.add(mode)
    warnings.warn(
        f"backend neuron has one mode: mode={mode!r} changes nothing (it is about kernels and launches of another "
        "device; a Neuron program is compiled and launched whole)",
        stacklevel=2,
    )


def refuse_dynamic(graph: GraphModule) -> None:
    """Raise `ConfigurationError` if the user asked for a size that is not fixed: by ``dynamic=True`` or by a mark.

    Sizes that Dynamo itself made symbolic, because they changed between calls, are not refused.
    """
    if not dynamo_config.assume_static_by_default:
        raise ConfigurationError(f"dynamic=True is not supported on neuron: {_WHY}. Leave dynamic out")
    for node in graph.graph.find_nodes(op="placeholder"):
        marked = _marked(node)
        if marked:
            raise ConfigurationError(
                f"mark_dynamic is not supported on neuron (dimension {marked[0]} of input {node.target}): {_WHY}. "
                "Leave the mark out"
            )


_WHY: Final = (
    "a program has fixed shapes, and every new shape is a new compile; pad inputs to a few bucket sizes to bound the "
    "number of compiles (`neff-cache plan shapes` chooses them)"
)


def _marked(node: torch.fx.Node) -> list[int]:
    """Return the dimensions of a graph's input that ``torch._dynamo.mark_dynamic`` was called for."""
    argument = node.meta.get("grapharg")
    example = None if argument is None else getattr(argument, "example", None)
    return sorted(getattr(example, "_dynamo_dynamic_indices", None) or ())
