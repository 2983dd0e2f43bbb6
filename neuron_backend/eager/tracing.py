"""One call of an operator as a graph without side effects: in-place and ``out=`` arguments become results."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from neuron_backend.eager import signature
from neuron_backend.lowering import PLEASE_REPORT, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

    from neuron_backend.eager.operators import Operator
    from neuron_backend.eager.signature import Call
    from neuron_backend.lowering import Results


# What a mistake in Python code ends in. torch's own refusals are RuntimeErrors and NotImplementedErrors.
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)

UNKNOWN = "what it computes, or the shape of that, depends on values"


class Untraceable(Exception):  # noqa: N818 - a state, as UnsupportedOperator
    """torch could not trace a call: values decide what happens, or the arguments are wrong. The CPU will tell."""


@dataclass(frozen=True, slots=True)
class Traced:
    """``graph`` takes the call's tensors in order and gives its new tensors, then the new values of the written ones.

    ``lengths`` are those of the results that are lists.
    """

    graph: GraphModule
    operator: Operator
    lengths: Sequence[int]

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
    operator = call.operator
    lengths: list[int] = []

    def function(*examples: torch.Tensor) -> list[torch.Tensor | None]:
        tensors = [
            example.clone() if position in call.written else example for position, example in enumerate(examples)
        ]
        args, kwargs = signature.rebuild(call, tensors, numbers)
        if "generator" in kwargs:
            kwargs["generator"] = None  # the program draws with seed and offset
        result = operator.function(*args, **kwargs)
        new: list[torch.Tensor | None] = []
        lengths.clear()
        for kind, value in zip(operator.returns, result if len(operator.returns) > 1 else (result,), strict=False):
            if kind == "tensor":
                new.append(value)
            elif kind == "tensors":
                new.extend(value)
                lengths.append(len(value))
        return [*new, *(tensors[position] for position in call.written)]

    # The caller's autocast and inference mode have done their part before a kernel is called.
    with torch.inference_mode(mode=False), torch._C._DisableAutocast():  # noqa: SLF001 - there is no public way
        try:
            graph = trace(function, call.tensors)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise Untraceable(UNKNOWN) from error
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if _is_ours(error):
                raise Untraceable(f"a bug of neff-cache: tracing it failed: {said}; {PLEASE_REPORT}") from error
            raise Untraceable(f"it cannot be traced: {said}") from error
    return Traced(graph, operator, tuple(lengths))
