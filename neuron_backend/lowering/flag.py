"""The one output in which a program says whether its operators' checks of values hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.reductions import fold
from neuron_backend.lowering.sources import concatenate
from neuron_backend.module import HOLDS, Check

if TYPE_CHECKING:
    from neuron_backend.lowering.validity import Condition


class Flag:
    """Collects a program's checks, in the order of its operators.

    Its value is int64, one element for each check: `neuron_backend.module.HOLDS`, or the least of the values at fault.
    One reduction finds both, which XLA fuses with what it reduces.
    """

    def __init__(self) -> None:
        self.checks: tuple[Check, ...] = ()
        self._results: list[Array] = []

    def add(self, condition: Condition, operator: str, line: str) -> None:
        """Take a condition whose operands are at MLIR's current insertion point, which is no operation's inside."""
        bad = condition.bad
        holds = constant(HOLDS, torch.int64, bad.shape)
        fault = holds.full(0) if condition.value is None else condition.value.apply("minimum", HOLDS - 1)
        values = bad.where(fault, holds)
        self._results.append(fold(values, range(bad.rank), "minimum", HOLDS))
        self.checks += (Check(operator, condition.error, condition.text, line),)

    def value(self) -> Array:
        """Return the flag of all that was added."""
        return concatenate([result.reshape((1,)) for result in self._results], 0)
