"""Call a function the way a job will, on tensors without content, once for each bucket."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from neuron_backend import programs
from neuron_backend.compilers import get_compiler
from neuron_backend.eager import dispatch, get_fallback_ops
from neuron_backend.prewarm.hollow import hollow, hollow_inputs, hollow_module
from neuron_backend.prewarm.report import Bucket
from neuron_backend.reading import values_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neuron_backend.prewarm.recorder import Recorder


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have every operator and graph of this process recorded, and none run.

    What was compiled before is forgotten for as long as this lasts, so that it is asked for again; Dynamo forgets it
    for good, and finds it in the cache at the next call. So it does with what is compiled meanwhile, if that is for a
    target that has not the types of this process's.
    """
    torch._dynamo.reset()  # noqa: SLF001 - torch documents it so
    with ExitStack() as stack:
        stack.enter_context(dispatch.without_plans())
        stack.enter_context(values_refused())
        stack.enter_context(programs.recorded_by(recorder))
        if recorder.has_float64 != get_compiler().has_float64:
            stack.callback(torch._dynamo.reset)  # noqa: SLF001
        yield


def as_called(target: Callable[..., Any], *, as_is: bool) -> Callable[..., Any]:
    """Return what a bucket's inputs are given to: ``target`` compiled for neuron, or as it stands.

    A module is replaced by a hollow copy; one that is compiled already is compiled anew.
    """
    inner = getattr(target, "_orig_mod", target)
    compiled = inner is not target or hasattr(target, "_torchdynamo_orig_callable")
    if isinstance(inner, torch.nn.Module):
        inner = hollow_module(inner)
        return inner if as_is and not compiled else torch.compile(inner, backend="neuron")
    return target if as_is or compiled else torch.compile(target, backend="neuron")


def bucket(
    recorder: Recorder, call: Callable[..., Any], inputs: Sequence[Any], *, label: str, backward: bool, as_is: bool
) -> Bucket:
    """Call ``call`` with hollow ``inputs``, and its backward if that is asked for; return what it needs.

    What the call raises is the bucket's ``error``: other buckets may be right.
    """
    began = time.monotonic()
    dispatch.clear()  # so that an operator that an earlier bucket met too is asked for again
    before = get_fallback_ops()
    error = None
    try:
        with torch.set_grad_enabled(backward or as_is):
            results = call(*hollow_inputs(inputs))
            if backward:
                _backward(results)
    except Exception as raised:  # noqa: BLE001 - the user's code: whatever it raises is what he wants to read
        error = _sentence(raised)
    asked, unsupported = recorder.take()
    after = get_fallback_ops()
    fallback = tuple(name for name, count in after.items() if count > before.get(name, 0))
    return Bucket(label, asked, time.monotonic() - began, unsupported, fallback, error)


def _backward(results: Any) -> None:
    """Differentiate all results at once: the backward graph is the same, whichever of them a job's loss is made of."""
    leaves = [leaf for leaf in _pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not leaves:
        raise ValueError("backward=True, but no result of the function depends on a tensor that requires a gradient")
    parameters = list(_parameters(leaves))
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None  # a gradient that is added to another one takes an operator more
    try:
        torch.autograd.backward(leaves, [hollow(leaf.detach()) for leaf in leaves])
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _parameters(results: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors whose gradients a backward from ``results`` adds to."""
    waiting = [result.grad_fn for result in results]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(following for following, _ in node.next_functions)


def _sentence(error: BaseException) -> str:
    """Return an error in one line: what torch's compiler says around it, hints and traces, is cut off."""
    inner = getattr(error, "inner_exception", None) or error  # of BackendCompilerFailed
    said = []
    for line in str(inner).strip().splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("Hint:", "Developer debug context:", "from user code:")):
            break
        said.append(stripped)
        if not type(inner).__module__.startswith("torch._dynamo"):
            break
    return ": ".join([type(inner).__name__, *said[:1]]) + "".join(f" {line}" for line in said[1:])
