"""Decompositions of ``_foreach_*``, which optimizers use on this device: the operator itself, once per tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

_UNARY = (
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "max",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
)
_BINARY = ("add", "clamp_max", "clamp_min", "div", "lerp", "mm", "mul", "sub")


def _norm(tensor: torch.Tensor, order: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    result: torch.Tensor = torch.linalg.vector_norm(tensor, order, dtype=dtype)
    return result


def _copy(tensor: torch.Tensor, source: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
    return source.to(tensor.dtype).expand(tensor.shape).clone()


def _maximum(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    return torch.clamp_min(tensor, other)


def _minimum(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    return torch.clamp_max(tensor, other)


def _addcdiv(tensor: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: Any = 1) -> torch.Tensor:
    return torch.addcdiv(tensor, first, second, value=value)


def _addcmul(tensor: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: Any = 1) -> torch.Tensor:
    return torch.addcmul(tensor, first, second, value=value)


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """One entry per overload whose scalars are known when it is traced."""
    functions: dict[str, Callable[..., torch.Tensor]] = {
        **{name: getattr(torch, name) for name in (*_UNARY, *_BINARY)},
        "addcdiv": _addcdiv,
        "addcmul": _addcmul,
        "clone": torch.clone,
        "copy": _copy,
        "maximum": _maximum,
        "minimum": _minimum,
        "norm": _norm,
        "pow": torch.pow,
        "zero": torch.zeros_like,
    }
    return {
        getattr(packet, overload): _each(function)
        for name, function in functions.items()
        for packet in [getattr(aten, f"_foreach_{name}")]
        for overload in packet.overloads()
        if not overload.endswith("out") and not (name.startswith("addc") and overload == "Tensor")
    }


def _each(function: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    def over_lists(*arguments: Any, **keywords: Any) -> list[torch.Tensor]:
        (count, *_) = (len(argument) for argument in arguments if isinstance(argument, (list, tuple)))
        columns = [argument if isinstance(argument, (list, tuple)) else [argument] * count for argument in arguments]
        return [function(*row, **keywords) for row in zip(*columns, strict=True)]

    return over_lists
