"""Which values operators refuse: what the CPU's kernels raise an error for, and StableHLO computes through.

An index out of range is clamped or its write dropped, an integer divided by zero is -1. Each operator named here says
where its values are at fault, in terms that mean the same for an `Array` and for a tensor that is being traced: the
first where the operator is lowered itself, the second where it is taken apart before (`checked`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch

from neuron_backend.lowering.array import Array, LiftedInteger, constant
from neuron_backend.lowering.errors import Invalid
from neuron_backend.lowering.linear import diagonal, numbers
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers
from neuron_backend.module import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from torch.fx import GraphModule

    from neuron_backend.lowering.registry import Call

    Values: TypeAlias = Any  # an `Array` or a tensor
    Conditions: TypeAlias = Iterator["Condition"]


@dataclass(frozen=True, slots=True)
class Condition:
    """``bad`` says where ``subject``, a tensor argument of the operator, holds values that it refuses.

    ``error`` and ``text`` are torch's; ``{}`` in the text is for ``value``, int64 of the shape of ``bad``. ``operator``
    is named only where it is not the one that the condition was asked of.
    """

    subject: Values
    bad: Values
    text: str
    error: type[Exception] = RuntimeError
    value: Values = None
    operator: str = ""


LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch exports it for users only

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_CONDITIONS: dict[str, Callable[..., Conditions]] = {}
_WITHOUT_RESULTS: set[str] = set()


def refuses(*operators: str, without_results: bool = False) -> Callable[[_Function], _Function]:
    """Register the decorated function as what ``operators`` refuse; it has their own signature.

    ``without_results``: the CPU looks at the values even if there is nothing to compute.
    """

    def register(function: _Function) -> _Function:
        _CONDITIONS.update(dict.fromkeys(operators, function))
        if without_results:
            _WITHOUT_RESULTS.update(operators)
        return function

    return register


def conditions(operator: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Condition]:
    """Return what the values of a call of ``operator`` must not be."""
    found = _CONDITIONS.get(str(operator))
    return () if found is None else tuple(found(*args, **kwargs))


def checks_without_results(operator: object) -> bool:
    """Whether ``operator`` looks at values even if it has nothing to compute."""
    return str(operator) in _WITHOUT_RESULTS


# ------------------------------------------------------------------------------- operators that are taken apart first


_ERRORS: Final = {error.__name__: error for error in (IndexError, RuntimeError)}


def _on_host(  # noqa: PLR0917 - as defined below
    subject: torch.Tensor, bad: torch.Tensor, value: torch.Tensor | None, operator: str, error: str, text: str
) -> torch.Tensor:
    """Check what a graph holds by value; torch computes with it while it traces."""
    if bad.any():
        fault = 0 if value is None else int(value[bad].min())
        raise Check(operator, _ERRORS[error], text).failed(fault)
    return subject.clone()


# Its result is its first argument; the graph thus needs the check wherever it needs that. In a graph that runs operator
# by operator it is a program like any other.
_library = torch.library.Library("neuron_check", "DEF")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "passes(Tensor subject, Tensor bad, Tensor? value, str operator, str error, str text) -> Tensor"
)
_library.impl("passes", lambda subject, *_: torch.empty_like(subject), "Meta")  # type: ignore[no-untyped-call]
_library.impl("passes", _on_host, "CPU")  # type: ignore[no-untyped-call]
_PASSES: Final = torch.ops.neuron_check.passes.default


def checked(operator: object, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``decomposition`` of ``operator``, with the checks that its parts do not make."""
    if str(operator) not in _CONDITIONS:
        return decomposition

    @functools.wraps(decomposition)
    def on_checked(*args: Any, **kwargs: Any) -> Any:
        passed: dict[int, torch.Tensor] = {}
        try:
            found = conditions(operator, args, kwargs)
        except Invalid as error:  # who traces this knows torch's errors only
            raise NotImplementedError(f"operator {operator}: {error}") from error
        for each in found:
            before = passed.get(id(each.subject), each.subject)
            said = (str(operator), each.error.__name__, each.text)
            passed[id(each.subject)] = _PASSES(before, each.bad, each.value, *said)
        return decomposition(
            *(passed.get(id(value), value) for value in args),
            **{name: passed.get(id(value), value) for name, value in kwargs.items()},
        )

    return on_checked


def without_checks(graph: GraphModule) -> None:
    """Take the checks that `checked` put into a graph out again, in place."""
    for node in graph.graph.find_nodes(op="call_function", target=_PASSES):
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()


@refuses("neuron_check.passes.default")
def _passes(subject: Values, bad: Values, value: Values, operator: str, error: str, text: str) -> Conditions:  # noqa: PLR0917 - as defined above
    yield Condition(subject, bad, text, _ERRORS[error], value, operator)


@lowers("neuron_check.passes.default")
def _lower_passes(_call: Call, subject: Array, *_check: Any) -> Array:
    return subject


# ------------------------------------------------------------------------------------------------------------- indices


def _outside(  # noqa: PLR0917 - what there is to say
    index: Values, size: int, text: str, error: type[Exception] = IndexError, low: int = 0, also: Values = None
) -> Conditions:
    """Refuse indices that are not in [low, size), but for those where ``also`` is false."""
    if math.prod(index.shape):
        wide = index.to(torch.int64)
        bad = (wide < low) | (wide >= size)
        yield Condition(index, bad if also is None else bad & also, text, error, wide)


def _size(x: Values, dim: int) -> tuple[int, int]:
    """Return a dimension counted from the front, and its length; a scalar has one of length 1."""
    shape = tuple(x.shape) or (1,)
    axis = dim % len(shape)
    return axis, shape[axis]


@refuses("aten.embedding.default")
def _embedding(weight: Values, indices: Values, *_rest: Any) -> Conditions:
    return _outside(indices, weight.shape[0], "index out of range in self")


@refuses("aten.index_select.default")
def _index_select(x: Values, dim: int, index: Values) -> Conditions:
    return _outside(index, _size(x, dim)[1], "index out of range in self")


@refuses("aten.gather.default")
def _gather(x: Values, dim: int, index: Values, **_options: Any) -> Conditions:
    axis, size = _size(x, dim)
    return _outside(index, size, f"index {{}} is out of bounds for dimension {axis} with size {size}", RuntimeError)


refuses(
    *("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce"),
    *("aten.scatter_add.default", "aten.scatter_reduce.two"),
    without_results=True,
)(lambda x, dim, index, *_rest, **_options: _gather(x, dim, index))


@refuses("aten.index_put.default")
def _index_put(x: Values, indices: Sequence[Values | None], values: Values, *_rest: Any) -> Conditions:
    _need_one_type(x, values)
    return _index(x, indices)


def _need_one_type(x: Values, source: Values) -> None:
    if source.dtype != x.dtype:
        raise Invalid(f"it puts {source.dtype} into {x.dtype}")


@refuses("aten.index.Tensor")
def _index(x: Values, indices: Sequence[Values | None], *_rest: Any) -> Conditions:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.dtype in {torch.bool, torch.uint8} or not math.prod(index.shape) for _, index in given):
        return
    for axis, index in given:
        size = x.shape[axis]
        text = f"index {{}} is out of bounds for dimension {axis} with size {size}"
        yield from _outside(index, size, text, low=-size)


@refuses("aten.put.default")
def _put(x: Values, index: Values, source: Values, *_rest: Any) -> Conditions:
    _need_one_type(x, source)
    return _take(x, index)


@refuses("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def _reflection(x: Values, padding: Sequence[int]) -> Conditions:
    """Refuse to reflect more than there is: torch's decomposition reads on from the other end."""
    for place, width in enumerate(padding):
        if width >= x.shape[len(x.shape) - 1 - place // 2]:
            raise Invalid("what it reflects is too short")
    yield from ()


@refuses("aten.take.default")
def _take(x: Values, index: Values, *_rest: Any) -> Conditions:
    count = math.prod(x.shape)
    text = f"out of range: tried to access index {{}} on a tensor of {count} elements."
    return _outside(index, count, text, low=-count)


@refuses("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(x: Values, dim: int, index: Values, _value: Any) -> Conditions:
    axis, size = _size(x, dim)
    return _outside(index, size, f"index {{}} is out of bounds for dimension {axis} with size {size}", low=-size)


@refuses("aten.index_copy.default")
def _index_copy(x: Values, dim: int, index: Values, _source: Values) -> Conditions:
    axis, size = _size(x, dim)
    return _outside(index, size, f"index_copy_(): index {{}} is out of bounds for dimension {axis} with size {size}")


@refuses("aten.index_add.default")
def _index_add(x: Values, dim: int, index: Values, *_rest: Any, **_options: Any) -> Conditions:
    size = _size(x, dim)[1]
    if len(x.shape) <= 1:
        return _outside(index, size, "index out of range in self")
    return _outside(index, size, f"index {{}} is out of bounds for dimension 0 with size {size}", RuntimeError)


@refuses("aten.index_reduce.default")
def _index_reduce(x: Values, dim: int, index: Values, *_rest: Any, **_options: Any) -> Conditions:
    return _outside(index, _size(x, dim)[1], "index out of range in self")


@refuses("aten.masked_scatter.default")
def _masked_scatter(x: Array, mask: Array, source: Array) -> Conditions:
    chosen = mask.broadcast(np.broadcast_shapes(x.shape, mask.shape)).to(torch.int64)
    few = total(chosen, range(chosen.rank)) > source.size
    yield Condition(mask, few, "Number of elements of source < number of ones in mask")


@refuses("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _embedding_bag(weight: Values, indices: Values, offsets: Values, *_rest: Any) -> Conditions:
    rows, count = weight.shape[0], indices.shape[0]
    text = f"embedding_bag: the input takes value {{}} which is not in the valid range [0, {rows})"
    yield from _outside(indices, rows, text, RuntimeError)
    if not offsets.shape[0]:
        return
    wide = offsets.to(torch.int64)
    first, last = wide[:1], wide[-1:]
    text = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, "
    yield Condition(offsets, first != 0, text + "got {}", value=first)
    text = f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of {{}}"
    yield Condition(offsets, last > count, text, value=last)
    yield Condition(offsets, wide[1:] < wide[:-1], "embedding_bag: offsets must not decrease")


@refuses("aten.max_unpool2d.default")
def _max_unpool(_x: Values, indices: Values, output_size: Sequence[int], *_rest: Any) -> Conditions:
    volume = "x".join(map(str, output_size))
    text = f"Found an invalid max index: {{}} (output volumes are of size {volume})"
    return _outside(indices, math.prod(output_size), text, RuntimeError)


refuses("aten.max_unpool3d.default")(_max_unpool)


@refuses("aten.lu_unpack.default")
def _lu_unpack(matrix: Values, pivots: Values, unpack_data: bool = True, unpack_pivots: bool = True) -> Conditions:
    del unpack_data
    if unpack_pivots:
        text = (
            "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
            "Did you properly pass the result of lu_factor?"
        )
        yield from _outside(pivots, matrix.shape[-2] + 1, text, RuntimeError, low=1)


@refuses("aten.linalg_lu_solve.default")
def _lu_solve(matrix: Values, pivots: Values, _right: Values, **_options: Any) -> Conditions:
    text = "Pivots given to lu_solve must all be {}. Did you properly pass the result of lu_factor?"
    wide = pivots.to(torch.int64)
    yield Condition(pivots, wide < 1, text.format("greater or equal to 1"))
    yield Condition(pivots, wide > matrix.shape[-2], text.format("smaller or equal to LU.size(-2)"))


# ------------------------------------------------------------------------------------------------------------- classes


@refuses("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def _nll_loss(x: Values, target: Values, _weight: Values | None, _reduction: int, ignore_index: int) -> Conditions:
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    return _outside(
        target, classes, "Target {} is out of bounds.", also=(target < ignore_index) | (target > ignore_index)
    )


@refuses("aten.multi_margin_loss.default")
def _multi_margin_loss(x: Values, target: Values, *_rest: Any) -> Conditions:
    return _outside(target, x.shape[-1] if len(x.shape) else 1, "target out of range", RuntimeError)


@refuses("aten.multilabel_margin_loss_forward.default")
def _multilabel_margin_loss(x: Values, target: Values, _reduction: int) -> Conditions:
    classes = x.shape[-1] if len(x.shape) else 1
    return _outside(target, classes, "argument #2 'target' is out of range", RuntimeError, low=-1)


@refuses("torch_nn._linear_cross_entropy_batch_chunked.default")
def _linear_cross_entropy(  # noqa: PLR0917  PyTorch's own signature
    x: Values,
    matrix: Values,
    target: Values,
    bias: Values | None,
    weight: Values | None,
    _reduction: str,
    ignore_index: int,
    *_rest: Any,
) -> Conditions:
    del x, bias, weight
    return _nll_loss(matrix.mT, target, None, 0, ignore_index)


@refuses("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def _linear_cross_entropy_of_each(  # noqa: PLR0917  PyTorch's own signature
    x: Values,
    matrix: Values,
    target: Values,
    bias: Values | None,
    weight: Values | None,
    ignore_index: int,
    *_rest: Any,
) -> Conditions:
    return _linear_cross_entropy(x, matrix, target, bias, weight, "", ignore_index)


# ------------------------------------------------------------------------------------------------------------- numbers


def _not_in(x: Values, low: float, high: float) -> Values:
    """Where a number is not in [low, high]: everywhere for NaN."""
    return ~((x >= low) & (x <= high))


def _not_finite(x: Values) -> Values:
    if x.dtype.is_complex:
        return _not_finite(x.real) | _not_finite(x.imag)
    return ~((x > -math.inf) & (x < math.inf))


def _is_integer(value: Array | complex) -> bool:
    return (
        not (value.is_float or value.is_complex)
        if isinstance(value, Array)
        else isinstance(value, (int, LiftedInteger))
    )


@refuses(
    *("aten.floor_divide.default", "aten.floor_divide.Scalar"),
    *("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"),
    *("aten.fmod.Tensor", "aten.fmod.Scalar"),
)
def _integer_division(left: Array | complex, right: Array | complex) -> Conditions:
    if not _is_integer(left) or not _is_integer(right):
        return
    if isinstance(right, Array):
        yield Condition(right, ~right.to(torch.bool), "ZeroDivisionError")
    elif right == 0:
        yield Condition(left, constant(1, torch.bool), "ZeroDivisionError")


@refuses("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _rounded_division(left: Array | complex, right: Array | complex, *, rounding_mode: str | None) -> Conditions:
    return iter(()) if rounding_mode is None else _integer_division(left, right)


@refuses("aten.binary_cross_entropy.default")
def _binary_cross_entropy(x: Values, target: Values, *_rest: Any) -> Conditions:
    for name, tensor in (("input", x), ("target", target)):
        yield Condition(tensor, _not_in(tensor, 0, 1), f"all elements of {name} should be between 0 and 1")


@refuses("aten.histc.default")
def _histc(x: Values, _bins: int = 100, low: float = 0, high: float = 0) -> Conditions:
    if low == high:
        yield Condition(x, _not_finite(x), "torch.histc: the range of the elements is not finite")


@refuses("aten.histogram.bin_ct")
def _histogram(x: Values, _bins: int = 100, *, range: Any = None, **_options: Any) -> Conditions:  # noqa: A002  PyTorch's own name
    if range is None:
        yield Condition(x, _not_finite(x), "torch.histogramdd: the range of the elements is not finite")


@refuses("aten.segment_reduce.default")
def _segment_reduce(
    data: Values, _reduce: str, *, lengths: Values | None = None, axis: int = 0, unsafe: bool = False, **_options: Any
) -> Conditions:
    if lengths is None or unsafe:
        return
    yield Condition(lengths, lengths < 0, "lengths contains negative value!")
    text = (
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
    )
    yield Condition(lengths, lengths.sum(-1) != data.shape[axis], text)


@refuses("aten._linalg_svd.default")
def _svd(x: Values, *_rest: Any, **_options: Any) -> Conditions:
    text = "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."
    yield Condition(x, _not_finite(x), text, LinAlgError)


@refuses("aten.cholesky_inverse.default")
def _cholesky_inverse(factor: Array, _upper: bool = False) -> Conditions:
    text = "The diagonal element {} is zero, the inversion could not be completed because the input matrix is singular."
    values = diagonal(factor)
    place = numbers(values.shape, -1).to(torch.int64) + 1
    yield Condition(factor, ~values.to(torch.bool), f"cholesky_inverse: {text}", LinAlgError, place)


# -------------------------------------------------------------------------------------------------------- distributions


@refuses("aten.multinomial.default", without_results=True)
def _multinomial(weights: Array, num_samples: int, replacement: bool = False, **_options: Any) -> Conditions:
    if num_samples <= 0:
        raise Invalid("it cannot draw so few samples")
    if not replacement or num_samples == 1:
        valid = (weights >= 0) & (weights < math.inf)
        yield Condition(weights, ~valid, "probability tensor contains either `inf`, `nan` or element < 0")
    else:
        text = "invalid multinomial distribution (encountering probability entry {})"
        yield Condition(weights, ~(weights >= 0), text.format("< 0"))
        yield Condition(weights, _not_finite(weights), text.format("= infinity or NaN"))
    # of weights that are not negative: they add up to nothing where none is more
    some = total((weights > 0), [weights.rank - 1])
    yield Condition(weights, ~some, "invalid multinomial distribution (sum of probabilities <= 0)")


_PROBABILITY: Final = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


@refuses("aten.bernoulli.default")
def _bernoulli(probability: Array, **_options: Any) -> Conditions:
    yield Condition(probability, _not_in(probability, 0, 1), _PROBABILITY)


@refuses("aten.bernoulli.Tensor")
def _bernoulli_like(_x: Array, probability: Array, **_options: Any) -> Conditions:
    return _bernoulli(probability)


@refuses("aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def _normal(_mean: Any, std: Array, *_rest: Any, **_options: Any) -> Conditions:
    yield Condition(std, ~(std >= 0), "normal expects all elements of std >= 0.0")
