"""Factorizations that are to raise an error where they fail (``check_errors=True``), and not only to say so."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.linear import numbers
from neuron_backend.lowering.validity import Condition
from neuron_backend.module import PAIR

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def refuse_failed(call: Call, x: Array, failed: Array, text: str, error: type[Exception]) -> None:
    """Refuse ``x`` where ``failed``, one number for each matrix, is not 0; ``text`` is torch's, ``{low}`` the number.

    Of a batch, torch names the first matrix that failed.
    """
    value = failed.to(torch.int64)
    if failed.rank:
        text = text.replace(": ", ": (Batch element {high}): ", 1)
        count = prod(failed.shape)
        value = numbers((count,), 0).to(torch.int64).reshape(failed.shape) * PAIR + value
    call.refuse(Condition(x, failed.differs(0), text, error, value))
