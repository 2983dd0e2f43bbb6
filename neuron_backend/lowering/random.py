"""Random operators. Each node draws from a stream of its own, chosen by seed and offset, which are run-time inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.array import Array, constant, is_lifted
from neuron_backend.lowering.distributions import exponential, integers, normal, positive, uniform, wide_bits
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.errors import Invalid
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.regions import sort
from neuron_backend.lowering.registry import draws, lowers
from neuron_backend.lowering.scans import running_sum
from neuron_backend.lowering.sources import conform, iota

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Number, Operand
    from neuron_backend.lowering.registry import Call
    from neuron_backend.lowering.threefry import Stream

# Bounds closer than this are one slope, as in PyTorch's kernel.
_SAME_SLOPE = 1e-6

# Of torch's multinomial.
_MOST_CATEGORIES = 1 << 24


def _filled(make: Callable[[Stream, torch.dtype, tuple[int, ...]], Array], scale: float = 1) -> Callable[..., Array]:
    """Fill the result; of a complex one both parts, each times ``scale``."""

    def lowering(call: Call, *_arguments: Any, **_options: Any) -> Array:
        out = call.out
        if not out.dtype.is_complex:
            return make(call.stream, out.dtype, out.shape).to(out.dtype)
        parts = make(call.stream, out.dtype.to_real(), (2, *out.shape)) * scale
        real, imaginary = (parts.slice(0, place, place + 1).reshape(out.shape) for place in (0, 1))
        return real.joined(imaginary)

    return lowering


draws("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator")(
    _filled(uniform)
)
_standard_normal = _filled(normal, math.sqrt(0.5))
draws("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator")(
    _standard_normal
)


@draws("aten.uniform.default")
def _uniform(call: Call, _x: Array, low: float = 0.0, high: float = 1.0, **_options: Any) -> Array:
    """Where rounding gives the upper bound, which does not belong to the range, it gives the lower."""
    if low > high:
        raise Invalid("its range ends before it begins")

    def between(stream: Stream, dtype: torch.dtype, shape: tuple[int, ...]) -> Array:
        width: Operand = constant(high, dtype) - low if is_lifted(low) or is_lifted(high) else high - low
        drawn = uniform(stream, dtype, shape)
        values = (drawn * conform(width, drawn.dtype, shape) + low).to(dtype)
        return values if high == low else (values < high).where(values, low)

    return _filled(between)(call)


def _normal(call: Call, mean: Operand, deviation: Operand) -> Array:
    out = call.out
    wide = accumulator(out.dtype)
    centre, spread = (conform(each, wide, out.shape) for each in (mean, deviation))
    return (_standard_normal(call).to(wide) * spread + centre).to(out.dtype)


@draws("aten.normal.float_float", "aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def _normal_of(call: Call, mean: Operand = 0.0, std: Operand = 1.0, _size: Any = None, **_options: Any) -> Array:
    return _normal(call, mean, std)


@draws("aten.normal_functional.default")
def _normal_like(call: Call, _x: Array, mean: float = 0.0, std: float = 1.0, **_options: Any) -> Array:
    return _normal(call, mean, std)


@draws("aten.log_normal.default")
def _log_normal(call: Call, _x: Array, mean: float = 1.0, std: float = 2.0, **_options: Any) -> Array:
    out = call.out
    return (normal(call.stream, out.dtype, out.shape) * std + mean).apply("exponential").to(out.dtype)


@draws("aten.exponential.default")
def _exponential(call: Call, _x: Array, lambd: float = 1.0, **_options: Any) -> Array:
    return (exponential(call.stream, call.out.dtype, call.out.shape) / lambd).to(call.out.dtype)


@draws("aten.geometric.default")
def _geometric(call: Call, _x: Array, p: float, **_options: Any) -> Array:
    """Count trials up to the first success, which is at least one."""
    dtype = call.out.dtype if call.out.dtype.is_floating_point else torch.float32
    trials = (positive(call.stream, dtype, call.out.shape).apply("log") / math.log1p(-p)).apply("ceil")
    return trials.apply("maximum", 1).to(call.out.dtype)


@draws("aten.cauchy.default")
def _cauchy(call: Call, _x: Array, median: float = 0.0, sigma: float = 1.0, **_options: Any) -> Array:
    angle = (positive(call.stream, call.out.dtype, call.out.shape) - 0.5) * math.pi
    return (angle.apply("sine") / angle.apply("cosine") * sigma + median).to(call.out.dtype)


def _chosen(call: Call, probability: Operand, shape: tuple[int, ...]) -> Array:
    """Return true with ``probability``."""
    if not isinstance(probability, Array):
        _check_probability(probability)
    wide = torch.float64 if isinstance(probability, Array) and probability.dtype == torch.float64 else torch.float32
    return uniform(call.stream, wide, shape) < conform(probability, wide, shape)


def _check_probability(probability: Number) -> None:
    if not 0 <= probability <= 1:
        raise Invalid("its probability is not between 0 and 1")


@draws("aten.bernoulli.default")
def _bernoulli(call: Call, probability: Array, **_options: Any) -> Array:
    return _chosen(call, probability, call.out.shape).to(call.out.dtype)


@draws("aten.bernoulli.p", "aten.bernoulli.Tensor")
def _bernoulli_like(call: Call, _x: Array, p: Operand = 0.5, **_options: Any) -> Array:
    return _chosen(call, p, call.out.shape).to(call.out.dtype)


@draws("aten.native_dropout.default")
def _dropout(call: Call, x: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if train is False:
        return x, constant(1, torch.bool, x.shape)
    _check_probability(p)
    share: Operand = constant(1, torch.float32) - p if is_lifted(p) else 1 - p
    kept = _chosen(call, share, x.shape)
    wide = x.to(accumulator(x.dtype))
    scaled = wide * conform(1 / share if p < 1 else 0.0, wide.dtype, x.shape)
    return kept.where(scaled, 0).to(x.dtype), kept


@draws("aten.rrelu_with_noise_functional.default")
def _leaky(  # noqa: PLR0917 - PyTorch's own signature
    call: Call,
    x: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    **_options: Any,
) -> tuple[Array, Array]:
    """Multiply negative elements by a random slope, which is also the second result; 1 where nothing is changed."""
    wide = x.to(accumulator(x.dtype))
    if not training:
        return (wide > 0).where(wide, wide * ((lower + upper) / 2)).to(x.dtype), noise
    slope = uniform(call.stream, x.dtype, x.shape) * (upper - lower) + lower
    slope = (wide > 0).where(slope.full(1), slope)
    return (wide * slope).to(x.dtype), slope.to(noise.dtype)


@draws(
    *("aten.randint.default", "aten.randint.generator", "aten.randint_like.default", "aten.randint_like.generator"),
)
def _integers_below(call: Call, size_or_high: Any, like_or_high: Any, *_rest: Any, **_options: Any) -> Array:
    high = like_or_high if isinstance(size_or_high, Array) else size_or_high
    return _integers(call, 0, high)


@draws("aten.randint.low", "aten.randint.low_generator")
def _integers_between(call: Call, low: int, high: int, _size: Any, **_options: Any) -> Array:
    return _integers(call, low, high)


@draws("aten.randint_like.low_dtype", "aten.randint_like.low_generator_dtype")
def _integers_between_like(call: Call, _x: Array, low: int, high: int, **_options: Any) -> Array:
    return _integers(call, low, high)


def _integers(call: Call, low: int, high: int) -> Array:
    if low >= high:
        raise Invalid("its range is empty")
    least, largest = _bounds(call.out.dtype)
    if low < least or high - 1 > largest:
        raise Invalid(f"{call.out.dtype} does not hold its range")
    return integers(call.stream, low, high, call.out.shape).to(call.out.dtype)


@draws("aten.random.to")
def _random_below(call: Call, _x: Array, to: int, **_options: Any) -> Array:
    return _integers(call, 0, to)


@draws("aten.random.default")
def _random(call: Call, _x: Array, **_options: Any) -> Array:
    return _integers(call, 0, beyond(call.out.dtype))


def random_between(x: torch.Tensor, start: int, to: int | None = None, **_options: Any) -> torch.Tensor:
    """Decompose ``random.from``: FX cannot write down a parameter that is called ``from``."""
    result: torch.Tensor = torch.ops.aten.randint_like.low_dtype(x, start, beyond(x.dtype) if to is None else to)
    return result


def _bounds(dtype: torch.dtype) -> tuple[int, int]:
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return int(info.min), int(info.max)


def beyond(dtype: torch.dtype) -> int:
    """One more than the largest number that ``random_`` gives: a float's digits bound the integers it holds."""
    if dtype.is_floating_point:
        digits = 1 - int(math.log2(torch.finfo(dtype).eps))
        return (1 << digits) + 1
    return 2 if dtype == torch.bool else torch.iinfo(dtype).max + (dtype != torch.int64)


@draws("aten.randperm.default", "aten.randperm.generator")
def _permutation(call: Call, _count: int, **_options: Any) -> Array:
    """Sort the numbers by 64 random bits each."""
    keys = wide_bits(call.stream, call.out.shape)
    _, order = sort([keys, iota(call.out.shape, 0)], 0, lambda left, right: left < right)
    return order.to(call.out.dtype)


@draws("aten.multinomial.default")
def _multinomial(call: Call, weights: Array, num_samples: int, replacement: bool = False, **_options: Any) -> Array:
    """Without replacement the largest of weight / exponential number; with it, the inverse of the running sum."""
    axis = weights.rank - 1
    if weights.shape[axis] > _MOST_CATEGORIES:
        raise Invalid("it has too many categories")
    wide = weights.to(accumulator(weights.dtype))
    if not replacement or num_samples == 1:
        ranks = wide / exponential(call.stream, wide.dtype, wide.shape).apply("maximum", torch.finfo(wide.dtype).tiny)
        _, order = sort([ranks, iota(wide.shape, axis)], axis, lambda left, right: left > right)
        return order.slice(axis, 0, num_samples)
    sums = running_sum(wide, axis)
    whole = sums.slice(axis, wide.shape[axis] - 1, wide.shape[axis])
    points = positive(call.stream, wide.dtype, call.out.shape) * whole.broadcast(call.out.shape)
    shape = (*call.out.shape, wide.shape[axis])
    walls = sums.spread(shape, [*range(axis), axis + 1])
    return total((walls < points.spread(shape, range(axis + 1))).to(torch.int64), [axis + 1])


@lowers("aten.rrelu_with_noise_backward.default")
def _leaky_backward(  # noqa: PLR0917 - PyTorch's own signature
    _call: Call,
    gradient: Array,
    x: Array,
    noise: Array,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Array:
    """In training the slopes that were drawn count, else their mean."""
    del self_is_result  # a slope keeps the sign
    if training and upper - lower > _SAME_SLOPE:
        return gradient * noise
    return (x > 0).where(gradient, gradient * ((lower + upper) / 2))
