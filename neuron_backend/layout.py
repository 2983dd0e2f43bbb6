"""How the elements of a tensor lie in memory.

A program has its inputs and outputs in plain order, the last axis innermost. A tensor that lies in another order
(channels_last, a transpose) is given to it as it lies, as a tensor of permuted axes; the program itself puts them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and strides of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return that of ``tensor``."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()))

    @property
    def dense(self) -> bool:
        """Whether the elements fill their memory, each in a place of its own."""
        return 0 not in self.shape and self._from_outermost() is not None

    @property
    def order(self) -> tuple[int, ...] | None:
        """The axes, the outermost in memory first; None in plain order, or if there are gaps."""
        axes = self._from_outermost()
        if 0 in self.shape or axes is None or axes == sorted(axes):
            return None
        return (*axes, *(axis for axis, size in enumerate(self.shape) if size == 1))

    def _from_outermost(self) -> list[int] | None:
        """Return the axes of more than one element in their order in memory, or None if they leave gaps."""
        axes = [axis for axis, size in enumerate(self.shape) if size != 1]
        axes.sort(key=lambda axis: -self.strides[axis])
        expected = prod(self.shape)
        for axis in axes:
            expected //= self.shape[axis] or 1
            if self.strides[axis] != expected:
                return None
        return axes


def in_plain_order(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a contiguous tensor of what `as_it_lies` made ``tensor`` of."""
    return tensor if order is None else tensor.permute(_back(order)).contiguous()


def as_it_lies(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a contiguous tensor of the axes of ``tensor`` in ``order``."""
    return tensor if order is None else tensor.permute(tuple(order)).contiguous()


def lying_in(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a tensor equal to ``tensor`` whose axes lie in memory in ``order``; None is plain order."""
    return tensor.contiguous() if order is None else as_it_lies(tensor, order).permute(_back(order))


def _back(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
