"""A child process for operators of several columns: importing PyTorch's operator database costs more than judging one.

Names are ``<column>:<operator>``, columns those that have a record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.sweep import operators, worker
from tests.sweep.answering import answer
from tests.sweep.outcome import Outcome

if TYPE_CHECKING:
    from tests.sweep.outcome import Task


def _verdict(name: str, _task: Task) -> Outcome:
    column, _, operator = name.partition(":")
    (task,) = (each for each in operators.recorded() if each.name == column)
    return replace(worker.verdict(operator, task), operator=name)


if __name__ == "__main__":
    answer(_verdict, Outcome)
