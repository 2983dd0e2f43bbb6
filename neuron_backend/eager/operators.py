"""What an operator's schema says that the eager path needs to know; worked out once per overload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from neuron_backend.eager.composites import COMPOSITES
from neuron_backend.eager.lifting import UNDECLARED_WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

Result: TypeAlias = Literal["tensor", "tensors", "view", "value"]

# Operators whose index tensors may lie on the CPU though the indexed tensor does not.
_CPU_INDICES = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl", "aten::_index_put_impl_"}
)

# Operators whose tensors must have one element type: torch's kernels check it, its shape inference does not.
_UNIFORM = frozenset(
    f"aten::{name}"
    for name in (
        *("addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv", "vdot"),
        *("convolution_backward_overrideable", "convolution_overrideable"),
    )
)

VIEW = "its result is a view, for which there is nothing to compute"
DYNAMIC = "the shape of its result depends on values"
NOTHING = "it has no result: it looks at values, and raises an error for some"
VALUE = "its result is a Python value, not a tensor"


_lifting = torch.ops.neuron_device.lifting.default


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter: whether it is a tensor, whether it is written to, and whether it is an ``out=`` tensor.

    ``lifting``: whether its numbers may be inputs of a program: 0 for never, 1 unless they have a shortcut, 2 for all;
    but for its ``default``.
    """

    name: str
    tensor: bool
    written: bool
    out: bool
    lifting: int
    default: Any


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload.

    ``function`` computes it, on tensors of any one device. ``returns`` has, for each return, the position of the
    argument that it is, or what kind of new value it is. ``host_only`` says why it can never be a program, or is None.
    """

    overload: torch._ops.OpOverload
    name: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    returns: tuple[int | Result, ...]
    mutable: bool
    random: bool
    takes_generator: bool
    host_only: str | None
    cpu_indices: bool
    uniform: bool


@cache
def describe(overload: torch._ops.OpOverload) -> Operator:
    """Return the facts about ``overload``."""
    schema = overload._schema  # noqa: SLF001 - there is no public way
    undeclared = UNDECLARED_WRITES.get(schema.name, frozenset())
    arguments = tuple(
        Argument(
            each.name,
            tensor=str(each.type) in {"Tensor", "Optional[Tensor]"},
            written=bool(each.alias_info and each.alias_info.is_write) or each.name in undeclared,
            out=bool(each.is_out),
            lifting=lifting,
            default=each.default_value,
        )
        for each, lifting in zip(schema.arguments, _lifting(schema.name, schema.overload_name), strict=True)
    )
    returns = tuple(_return(schema, each) for each in schema.returns)
    tags = overload.tags
    random = torch.Tag.nondeterministic_seeded in tags
    return Operator(
        overload=overload,
        name=str(overload),
        function=COMPOSITES.get(overload, overload),
        arguments=arguments,
        returns=returns,
        mutable=any(argument.written for argument in arguments),
        random=random,
        takes_generator=any(each.name == "generator" for each in schema.arguments),
        host_only=_host_only(tags, returns, writes=any(argument.written for argument in arguments)),
        cpu_indices=schema.name in _CPU_INDICES,
        uniform=schema.name in _UNIFORM,
    )


def _return(schema: Any, value: Any) -> int | Result:
    if value.alias_info is not None:
        if not value.alias_info.is_write:
            return "view"
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.before_set == value.alias_info.before_set:
                return position
    kind = str(value.type)
    if kind == "Tensor":
        return "tensor"
    return "tensors" if kind == "List[Tensor]" else "value"


def _host_only(tags: Any, returns: tuple[int | Result, ...], *, writes: bool) -> str | None:
    if not returns and not writes:
        return NOTHING
    if torch.Tag.dynamic_output_shape in tags:
        return DYNAMIC
    if torch.Tag.data_dependent_output in tags or "value" in returns:
        return VALUE
    if "view" in returns:
        return VIEW
    return None
