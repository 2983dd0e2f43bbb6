"""One call of an operator as a graph without side effects: in-place and ``out=`` arguments become results."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.eager import signature
from neuron_backend.inferred_strides import corrected
from neuron_backend.layout import Layout, as_it_lies, in_plain_order
from neuron_backend.lowering import PLEASE_REPORT, trace
from neuron_backend.torch_private import (
    DataDependentOutputException,
    DisableAutocast,
    DynamicOutputShapeException,
    FakeTensorMode,
    tree_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

    from neuron_backend.eager.operators import Operator
    from neuron_backend.eager.signature import Call
    from neuron_backend.lowering import Results


# What a mistake in Python code ends in. torch's own refusals are RuntimeErrors and NotImplementedErrors.
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)

UNKNOWN = "what it computes, or the shape of that, depends on values"

# They fill an out= of as many elements as they have, whatever its shape; others resize one of another shape.
_FILLS = frozenset({"aten::arange", "aten::linspace", "aten::logspace", "aten::range"})


class Untraceable(Exception):  # noqa: N818 - a state, as UnsupportedOperator
    """torch could not trace a call: values decide what happens, or the arguments are wrong. The CPU will tell."""


@dataclass(frozen=True, slots=True)
class Traced:
    """``graph`` takes the call's tensors in order and gives its new tensors, then the new values of the written ones.

    ``lengths`` are those of the results that are lists. The graph has its inputs as they lie in memory, their axes in
    ``orders``, and gives its outputs so that they lie in ``layouts``; None stands for plain order.
    """

    graph: GraphModule
    operator: Operator
    lengths: Sequence[int]
    orders: Sequence[tuple[int, ...] | None]
    layouts: Sequence[Layout | None]

    def returns(self, results: Results) -> tuple[int | bool | list[bool], ...]:
        """Return, for each of the operator's returns, the position of the argument that it is, or whether it is there.

        For a list it is the latter of each element. ``results`` are those of the graph after `trim`.
        """
        there = iter([position in results.positions for position in range(results.count)])
        lengths = iter(self.lengths)
        answer: list[int | bool | list[bool]] = []
        for kind in self.operator.returns:
            if isinstance(kind, int):
                answer.append(kind)
            elif kind == "tensor":
                answer.append(next(there))
            else:
                answer.append([next(there) for _ in range(next(lengths))])
        return tuple(answer)


def _is_ours(error: Exception) -> bool:
    """Whether an error is one of our own code's. What torch cannot trace, or refuses, it says itself."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__", ""))
    return isinstance(error, _BUGS) and module.partition(".")[0] == "neuron_backend"


def traced(call: Call, numbers: Sequence[float] | None = None) -> Traced:
    """Trace ``call``, with ``numbers`` for its `Call.numbers` if given; raises `Untraceable`."""
    lengths: list[int] = []
    orders = [Layout.of(tensor).order for tensor in call.tensors]

    def function(*examples: torch.Tensor) -> list[torch.Tensor | None]:
        tensors = [in_plain_order(example, order) for example, order in zip(examples, orders, strict=True)]
        for position in call.written:
            tensors[position] = tensors[position].clone()
        results, lengths[:] = _run(call, tensors, numbers)
        results = filled(call, results)
        _need_shapes(call, results)
        layouts[len(layouts) :] = [None] * (len(results) - len(layouts))
        return [
            value if value is None or layout is None else as_it_lies(value, layout.order)
            for value, layout in zip(results, layouts, strict=True)
        ]

    # The caller's autocast and inference mode have done their part before a kernel is called.
    with torch.inference_mode(mode=False), DisableAutocast():
        try:
            layouts = _layouts(call)
            graph = trace(function, [_permuted(*each) for each in zip(call.tensors, orders, strict=True)])
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise Untraceable(UNKNOWN) from error
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if _is_ours(error):
                raise Untraceable(f"a bug of neff-cache: tracing it failed: {said}; {PLEASE_REPORT}") from error
            raise Untraceable(f"it cannot be traced: {said}") from error
    return Traced(graph, call.operator, tuple(lengths), orders, layouts)


def _run(
    call: Call, tensors: Sequence[torch.Tensor], numbers: Sequence[float] | None = None
) -> tuple[list[torch.Tensor | None], list[int]]:
    """Run the operator on ``tensors``; return its new tensors, then the written ones, and the lengths of its lists."""
    args, kwargs = _arguments(call, tensors, numbers)
    new, lengths = _new(call.operator, call.operator.function(*args, **kwargs))
    return [*new, *(tensors[position] for position in call.written)], lengths


def filled(call: Call, results: list[Any]) -> list[Any]:
    """Return ``results``, in the shape of what they go into if that is an ``out=`` which keeps its own."""
    if not _fills(call, results):
        return results
    return [each.reshape(call.tensors[call.written[0]].shape) for each in results]


def _fills(call: Call, results: Sequence[torch.Tensor | None]) -> bool:
    if call.operator.overload._schema.name not in _FILLS or not call.written:  # noqa: SLF001 - there is no public way
        return False
    (result,) = results
    return result is not None and result.numel() == call.tensors[call.written[0]].numel()


def _need_shapes(call: Call, results: Sequence[torch.Tensor | None]) -> None:
    """Refuse to write what has another shape: an ``out=`` is resized, a tensor that an operator changes is not."""
    changed = [argument for argument in call.operator.arguments if argument.written and not argument.out]
    if len(changed) != len(call.written):  # lists of tensors, or out=
        return
    for position, result in zip(call.written, results[len(results) - len(call.written) :], strict=True):
        if result is not None and result.shape != call.tensors[position].shape:
            raise RuntimeError("it would change the shape of what it writes to")


def _arguments(
    call: Call, tensors: Sequence[torch.Tensor], numbers: Sequence[float] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = signature.rebuild(call, tensors, numbers)
    if "generator" in kwargs:
        kwargs["generator"] = None  # the program draws with seed and offset
    return args, kwargs


def _new(operator: Operator, result: Any) -> tuple[list[torch.Tensor | None], list[int]]:
    """Return the new tensors among an operator's results, flat, and the lengths of those that are lists."""
    new: list[torch.Tensor | None] = []
    lengths = []
    for kind, value in zip(operator.returns, result if len(operator.returns) > 1 else (result,), strict=False):
        if kind == "tensor":
            new.append(value)
        elif kind == "tensors":
            new.extend(value)
            lengths.append(len(value))
    return new, lengths


def _permuted(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    shape = tensor.shape if order is None else [tensor.shape[axis] for axis in order]
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


def _layouts(call: Call) -> list[Layout | None]:
    """Return how torch's own kernel would have its results lie, by its inference for the real strides of the inputs.

    None for plain order, and for a tensor with gaps: the program gives its elements in plain order. Empty if torch
    infers nothing for this operator, as for some that are traced by decompositions of ours.
    """
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            results = _inferred(call)
    except Exception:  # noqa: BLE001 - if the arguments are wrong, tracing says so
        return []
    return [None if result is None else _unless_plain(Layout.of(result)) for result in results]


def _inferred(call: Call) -> list[torch.Tensor | None]:
    operator = call.operator
    tensors = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cpu") for each in call.tensors]
    before = [tensors[position] for position in call.written]
    outs = {argument.name for argument in operator.arguments if argument.out}
    if outs:  # such an operator writes nothing else; what is empty is resized without a warning
        for position in call.written:
            tensors[position] = torch.empty(0, dtype=tensors[position].dtype, device="cpu")
    args, kwargs = _arguments(call, tensors)
    result = operator.function(*args, **kwargs)
    new, _ = _new(operator, corrected(operator.overload, result, args, kwargs))
    written = [tensors[position] for position in call.written]
    if not outs:
        return [*new, *written]
    same = all(one.shape == other.shape for one, other in zip(before, written, strict=True))
    if same or _fills(call, written):
        return [*new, *before]
    # where out= is resized, inference has it plain, and the kernels as they would have a new tensor
    rest = {name: value for name, value in kwargs.items() if name not in outs}
    return [*new, *tree_leaves(operator.overload.overloadpacket(*args, **rest))]


def _unless_plain(layout: Layout) -> Layout | None:
    plain = Layout.of(torch.empty(layout.shape, device="meta"))
    return layout if layout.dense and layout != plain else None
