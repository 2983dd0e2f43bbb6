"""Random numbers of a distribution from random bits.

Uniform numbers have as many random bits as the type has digits, and so are exact wherever they are computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.dtypes import accumulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.threefry import Stream

_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
_WORD = 32
_HALF_WORD_DIGITS = (26, 27)  # of a double's 53, from each of two words
_LOW_WORD = (1 << _WORD) - 1


def uniform(stream: Stream, dtype: torch.dtype, shape: Sequence[int], lane: int = 0) -> Array:
    """Return numbers of [0, 1), in the accumulator's type."""
    if dtype == torch.float64:
        return _double(stream.pair(shape, lane))
    return _single(stream.words(shape, lane), _DIGITS[dtype])


def _single(words: Array, digits: int) -> Array:
    return words.apply("shift_right_logical", _WORD - digits).to(torch.float32) * 2.0**-digits


def _double(words: tuple[Array, Array]) -> Array:
    high, low = (
        word.apply("shift_right_logical", _WORD - digits).to(torch.float64)
        for word, digits in zip(words, _HALF_WORD_DIGITS, strict=True)
    )
    return high * 2.0 ** -_HALF_WORD_DIGITS[0] + low * 2.0 ** -sum(_HALF_WORD_DIGITS)


def positive(stream: Stream, dtype: torch.dtype, shape: Sequence[int]) -> Array:
    """Return numbers of (0, 1], single precision at least: what a logarithm is taken of."""
    return 1 - uniform(stream, accumulator(dtype), shape)


def normal(stream: Stream, dtype: torch.dtype, shape: Sequence[int]) -> Array:
    """Return numbers of mean 0 and variance 1 by Box and Muller's transform, in the accumulator's type."""
    wide = accumulator(dtype)
    if wide == torch.float64:
        first, second = (_double(stream.pair(shape, lane)) for lane in (0, 1))
    else:
        first, second = (_single(words, _DIGITS[wide]) for words in stream.pair(shape))
    radius = ((1 - first).apply("log") * -2.0).apply("sqrt")
    return radius * (second * (2 * math.pi)).apply("cosine")


def exponential(stream: Stream, dtype: torch.dtype, shape: Sequence[int]) -> Array:
    """Return numbers of rate 1, in the accumulator's type."""
    return -positive(stream, dtype, shape).apply("log")


def integers(stream: Stream, low: int, high: int, shape: Sequence[int]) -> Array:
    """Return int64 numbers of [low, high), by the remainder of a random word, or of 63 bits for a wider range."""
    span = high - low
    if span <= 1 << _WORD:
        bits = stream.words(shape).to(torch.int64) & _LOW_WORD
    else:
        bits = wide_bits(stream, shape) & torch.iinfo(torch.int64).max
    if span <= torch.iinfo(torch.int64).max:
        bits = bits.apply("remainder", span)
    return bits + low


def wide_bits(stream: Stream, shape: Sequence[int]) -> Array:
    """Return int64 numbers of 64 random bits."""
    high, low = (word.to(torch.int64) for word in stream.pair(shape))
    return high.apply("shift_left", _WORD) | (low & _LOW_WORD)
