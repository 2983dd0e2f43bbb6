"""Threefry-2x32: random bits as a pure function of a key and a counter, by 32-bit additions, rotations and XOR.

The generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), with its 20 rounds. Not
StableHLO's ``rng_bit_generator``, whose bits are each compiler's own affair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array

_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5  # of four rounds, each followed by an addition of the key
_WORD = 32
_SIGN = 1 << 31

# Blocks are counted in one word, of which the sign bit stays free.
_MOST_BLOCKS = 1 << 31


def _rotated(x: Array, by: int) -> Array:
    return x.apply("shift_left", by) | x.apply("shift_right_logical", _WORD - by)


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Encrypt ``counter`` under ``key``: int32 arrays of one shape, whose bits are what counts."""
    schedule = (*key, key[0] ^ key[1] ^ _PARITY)
    left, right = counter[0] + key[0], counter[1] + key[1]
    for group in range(_GROUPS):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = _rotated(right, rotation) ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + (group + 1)
    return left, right


@dataclass(frozen=True, slots=True)
class Stream:
    """The random words of one node: a key of two words, of rank 0, that no other node of the same seed has."""

    key: tuple[Array, Array]

    @classmethod
    def at(cls, seed: Array, offset: Array, position: int) -> Stream:
        """Return stream ``position`` after ``offset``; this and the seed are 64-bit, as int32[2], low word first."""
        low, high = (offset.slice(0, place, place + 1).reshape(()) for place in (0, 1))
        moved = low + position
        # Unsigned comparison by flipping sign bits: the addition went round where the sum is the smaller.
        carry = ((moved ^ _SIGN) < (low ^ _SIGN)).to(torch.int32)
        words = (seed.slice(0, place, place + 1).reshape(()) for place in (0, 1))
        first, second = words
        return cls(threefry((first, second), (moved, high + carry)))

    def pairs(self, count: int, lane: int = 0) -> tuple[Array, Array]:
        """Return two int32[count] of random bits; each ``lane`` has others."""
        if count >= _MOST_BLOCKS:
            raise Refused(f"{count} random numbers at once are more than {_MOST_BLOCKS}")
        shape = (count,)
        first, second = (word.broadcast(shape) for word in self.key)
        return threefry((first, second), (iota(shape, 0, torch.int32), constant(lane, torch.int32, shape)))

    def words(self, shape: Sequence[int], lane: int = 0) -> Array:
        """Return an int32 array of random bits.

        The second word of each pair is left out: joining halves would keep a compiler from computing the bits where
        they are used, and XLA computes both words for each half.
        """
        return self.pair(shape, lane)[0]

    def pair(self, shape: Sequence[int], lane: int = 0) -> tuple[Array, Array]:
        """Return two int32 arrays of random bits."""
        size = math.prod(shape)
        first, second = self.pairs(size, lane)
        return first.reshape(shape), second.reshape(shape)
