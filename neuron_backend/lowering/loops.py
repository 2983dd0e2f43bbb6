"""Repetition whose number of steps is known only when the program runs: StableHLO's ``while``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.reductions import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def while_loop(
    initial: Sequence[Array], condition: Callable[..., Array], body: Callable[..., Sequence[Array]]
) -> list[Array]:
    """Repeat ``body`` on arrays of fixed dtypes and shapes while ``condition``, a rank-0 boolean, holds."""
    kinds = [array.value.type for array in initial]
    operation = hlo.WhileOp(kinds, [array.value for array in initial])

    def fill(region: int, make: Callable[..., Sequence[Array]]) -> None:
        block = operation.regions[region].blocks.append(*kinds)
        with ir.InsertionPoint(block):
            inner = [array.like(value) for array, value in zip(initial, block.arguments, strict=True)]
            hlo.return_([result.value for result in make(*inner)])

    fill(0, lambda *inner: [condition(*inner)])
    fill(1, body)
    return [array.like(value) for array, value in zip(initial, operation.results, strict=True)]


def repeat(count: int, initial: Sequence[Array], body: Callable[..., Sequence[Array]]) -> list[Array]:
    """Run ``body(step, *arrays)`` for the steps 0 to ``count`` - 1; ``step`` is a rank-0 int32."""
    first = constant(0, torch.int32)
    _, *results = while_loop(
        [first, *initial], lambda step, *_: step < count, lambda step, *inner: [step + 1, *body(step, *inner)]
    )
    return results


def any_of(x: Array) -> Array:
    """Whether any element of a boolean array is true: of rank 0."""
    return fold(x, range(x.rank), "or_", 0)
