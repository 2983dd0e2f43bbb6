"""A lowered program: the bytes that are hashed and compiled, and the signature read off them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: element type and shape. Its strides are always those of a contiguous tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        strides = [1] * len(self.shape)
        for axis in range(len(self.shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * max(self.shape[axis + 1], 1)
        return tuple(strides)


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a module's entry function, derived from the module and never read from an artifact."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


HOLDS: Final = (1 << 63) - 1
"""What the flag of a program holds for a check that found nothing."""

PAIR: Final = 1 << 32
"""By which the first of two numbers, told as one value, is multiplied."""


@dataclass(frozen=True, slots=True)
class Check:
    """What is wrong if an operator's check of values fails: torch's ``error`` and ``text``.

    ``{}`` in the text stands for the value at fault, ``{high}`` and ``{low}`` for two that it is a `PAIR` of. ``line``
    is the user's line that the operator stands for, empty where that is not known.
    """

    operator: str
    error: type[Exception]
    text: str
    line: str = ""

    def failed(self, value: int, line: str = "") -> Exception:
        """Return the error of ``value``, at ``line`` if the check's own is not known."""
        known = self.line or line
        at = f", at {known}" if known else ""
        high, low = divmod(value, PAIR)
        text = self.text.replace("{}", str(value)).replace("{high}", str(high)).replace("{low}", str(low))
        return self.error(f"{text} (operator {self.operator}{at})")


@dataclass(frozen=True)
class Module:
    """A StableHLO module as VHLO portable bytecode: no locations, no names, every constant by value.

    ``code`` is exactly what the compiler is started on; ``version`` the VHLO version it is written at. ``called_as`` is
    what callers give and get where they have float64 and the target of the module has not; else None. Where there are
    ``checks``, the last output is their flag: see `neuron_backend.value_checks`. They are no part of the bytes.
    """

    code: bytes
    version: str
    signature: Signature
    called_as: Signature | None = None
    checks: tuple[Check, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Digest of ``code``, 64 hexadecimal digits."""
        return hashlib.sha256(self.code).hexdigest()
