"""The one output in which a program says whether its operators' checks of values hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.reductions import fold
from neuron_backend.lowering.sources import concatenate
from neuron_backend.module import Check

if TYPE_CHECKING:
    from neuron_backend.lowering.validity import Condition

_NONE = torch.iinfo(torch.int64).max


class Flag:
    """Collects a program's checks, in the order of its operators.

    Its value is int64[2]: 0 if all hold, else the number of the first that does not, from 1, and the value at fault,
    the least if there are several.
    """

    def __init__(self) -> None:
        self.checks: tuple[Check, ...] = ()
        self._results: list[tuple[Array, Array]] = []

    def add(self, condition: Condition, operator: str, line: str) -> None:
        """Take a condition whose operands are at MLIR's current insertion point, which is no operation's inside."""
        bad = condition.bad
        if condition.value is None:
            failed, value = fold(bad, range(bad.rank), "or_", 0), constant(0, torch.int64)
        else:
            # one reduction finds both: whether there is such a value, and which
            values = bad.where(condition.value, condition.value.full(_NONE))
            value = fold(values, range(values.rank), "minimum", _NONE)
            failed = value.differs(_NONE)
        self._results.append((failed, value))
        self.checks += (Check(operator, condition.error, condition.text, line),)

    def value(self) -> Array:
        """Return the flag of all that was added."""
        number, fault = constant(0, torch.int64), constant(0, torch.int64)
        for position in range(len(self._results), 0, -1):
            failed, value = self._results[position - 1]
            number = failed.where(number.full(position), number)
            fault = failed.where(value, fault)
        return concatenate([number.reshape((1,)), fault.reshape((1,))], 0)
