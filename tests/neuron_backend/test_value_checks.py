"""Values that the CPU refuses are an error on the device, wherever the operator runs; valid ones are not."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch.nn import functional

import neuron_backend
from neuron_backend import value_checks
from neuron_backend.eager import dispatch
from neuron_backend.lowering import lower, trace, trim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _own_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No operator is known from another test: each is seen cold and then warm."""
    torch._dynamo.reset()
    dispatch.clear()
    neuron_backend.clear_fallback_ops()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Row(NamedTuple):
    """An operator, arguments that the CPU takes, others that it refuses, and a text if ours is not torch's."""

    function: Callable[..., Any]
    good: tuple[torch.Tensor, ...]
    bad: tuple[torch.Tensor, ...]
    text: str | None = None


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def _floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


_X = torch.arange(3.0)
_TABLE = torch.arange(6.0).reshape(3, 2)
_LOGITS = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
_ONE = _floats(1)
_NAN = math.nan
_SINGULAR = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 0.0, 1.0]))])
_LABELS = torch.tensor([[0, -1, -1]])
_VOLUME = torch.ones(1, 1, 1, 1)


def _at(
    function: Callable[..., Any], good: int = 2, bad: int = 5, *others: torch.Tensor, text: str | None = None
) -> Row:
    """Return a row of an operator on three elements and an index."""
    return Row(function, (_X, _ints(good), *others), (_X, _ints(bad), *others), text)


ROWS: dict[str, Row] = {
    "embedding": Row(functional.embedding, (_ints(0, 2), _TABLE), (_ints(0, 7), _TABLE)),
    "embedding of -1": Row(functional.embedding, (_ints(0, 2), _TABLE), (_ints(0, -1), _TABLE)),
    "embedding with a padding index": Row(
        lambda i, w: functional.embedding(i, w, padding_idx=0), (_ints(0, 2), _TABLE), (_ints(0, 3), _TABLE)
    ),
    "EmbeddingBag": Row(
        functional.embedding_bag,
        (_ints(0, 2), _TABLE, _ints(0, 2)),
        (_ints(0, 7), _TABLE, _ints(0, 2)),
        r"value 7 which is not in the valid range \[0, 3\)",
    ),
    "EmbeddingBag's first offset": Row(
        functional.embedding_bag, (_ints(0, 2), _TABLE, _ints(0)), (_ints(0, 2), _TABLE, _ints(1))
    ),
    "EmbeddingBag's last offset": Row(
        functional.embedding_bag, (_ints(0, 2), _TABLE, _ints(0, 2)), (_ints(0, 2), _TABLE, _ints(0, 5))
    ),
    "EmbeddingBag's order of offsets": Row(
        functional.embedding_bag,
        (_ints(0, 1, 2), _TABLE, _ints(0, 1, 2)),
        (_ints(0, 1, 2), _TABLE, _ints(0, 2, 1)),
        "offsets must not decrease",
    ),
    "nll_loss": Row(functional.nll_loss, (_LOGITS, _ints(0, -100)), (_LOGITS, _ints(0, 3))),
    "nll_loss of -1": Row(functional.nll_loss, (_LOGITS, _ints(0, 2)), (_LOGITS, _ints(0, -1))),
    "nll_loss of images": Row(
        functional.nll_loss,
        (torch.zeros(1, 3, 1, 2), torch.tensor([[[0, -100]]])),
        (torch.zeros(1, 3, 1, 2), torch.tensor([[[0, 3]]])),
    ),
    "cross_entropy": Row(functional.cross_entropy, (_LOGITS, _ints(0, 2)), (_LOGITS, _ints(0, 3))),
    "cross_entropy that ignores a class": Row(
        lambda x, t: functional.cross_entropy(x, t, ignore_index=7), (_LOGITS, _ints(0, 7)), (_LOGITS, _ints(0, 8))
    ),
    "cross_entropy with label smoothing": Row(
        lambda x, t: functional.cross_entropy(x, t, label_smoothing=0.1),
        (_LOGITS, _ints(0, 2)),
        (_LOGITS, _ints(0, 3)),
    ),
    "cross_entropy with weights": Row(
        lambda x, t, w: functional.cross_entropy(x, t, weight=w), (_LOGITS, _ints(0, 2), _X), (_LOGITS, _ints(0, 3), _X)
    ),
    "gather": _at(lambda x, i: x.gather(0, i), 2, 7),
    "gather of -1": _at(lambda x, i: x.gather(0, i), 0, -1),
    "take": _at(lambda x, i: x.take(i), -3, 7),
    "take of -4": _at(lambda x, i: x.take(i), -1, -4),
    "index_select": _at(lambda x, i: x.index_select(0, i), 2, 7),
    "index_select of -1": _at(lambda x, i: x.index_select(0, i), 0, -1),
    "index": _at(lambda x, i: x[i], -3, 5),
    "index of -4": _at(lambda x, i: x[i], -1, -4),
    "index of the largest number": _at(lambda x, i: x[i], -1, (1 << 63) - 1, text="is out of bounds for dimension 0"),
    "index of two dimensions": Row(
        lambda x, i, j: x[i, j], (_TABLE, _ints(0), _ints(-2)), (_TABLE, _ints(0), _ints(2))
    ),
    "index of int32": Row(lambda x, i: x[i], (_X, _ints(-3).to(torch.int32)), (_X, _ints(3).to(torch.int32))),
    "index_fill": _at(lambda x, i: x.index_fill(0, i, 1.0), -3, 5),
    "index_fill in place": _at(lambda x, i: x.clone().index_fill_(0, i, 1.0), -3, -4),
    "index_copy": _at(lambda x, i, s: x.index_copy(0, i, s), 2, 5, _ONE),
    "index_copy of -1": _at(lambda x, i, s: x.index_copy(0, i, s), 0, -1, _ONE),
    "index_add": _at(lambda x, i, s: x.index_add(0, i, s), 2, 5, _ONE),
    "index_add of -1": _at(lambda x, i, s: x.index_add(0, i, s), 0, -1, _ONE),
    "index_add of rows": Row(
        lambda x, i, s: x.index_add(0, i, s), (_TABLE, _ints(2), _TABLE[:1]), (_TABLE, _ints(5), _TABLE[:1])
    ),
    "index_reduce": _at(lambda x, i, s: x.index_reduce(0, i, s, "prod"), 2, 5, _ONE),
    "scatter": _at(lambda x, i, s: x.scatter(0, i, s), 2, 5, _ONE),
    "scatter of a number": _at(lambda x, i: x.scatter(0, i, 1.0), 0, -1),
    "scatter_add": _at(lambda x, i, s: x.scatter_add(0, i, s), 2, 5, _ONE),
    "scatter_reduce": _at(lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), 2, 5, _ONE),
    "scatter that adds": _at(lambda x, i, s: x.scatter(0, i, s, reduce="add"), 2, 5, _ONE),
    "scatter in place": _at(lambda x, i, s: x.clone().scatter_(0, i, s), 2, 5, _ONE),
    "index_put": _at(lambda x, i, s: x.index_put((i,), s), -3, 5, _ONE),
    "index_put that adds": _at(lambda x, i, s: x.index_put((i,), s, accumulate=True), 2, 5, _ONE),
    "put": _at(lambda x, i, s: x.put(i, s), -3, 5, _ONE),
    "masked_scatter": Row(
        lambda x, mask, s: x.masked_scatter(mask, s),
        (_X, torch.tensor([True, False, False]), _ONE),
        (_X, torch.tensor([True, True, False]), _ONE),
    ),
    "one_hot": Row(lambda i: functional.one_hot(i, 3), (_ints(2),), (_ints(3),), "out of bounds|must be smaller"),
    "one_hot of -1": Row(lambda i: functional.one_hot(i, 3), (_ints(2),), (_ints(-1),), "out of bounds|non-negative"),
    "//": Row(lambda a, b: a // b, (_ints(3), _ints(-2)), (_ints(3), _ints(0))),
    "// of a number": Row(lambda b: 3 // b, (_ints(2),), (_ints(0),)),
    "div that truncates": Row(
        lambda a, b: torch.div(a, b, rounding_mode="trunc"), (_ints(3), _ints(2)), (_ints(3), _ints(0))
    ),
    "div that floors": Row(
        lambda a, b: torch.div(a, b, rounding_mode="floor"), (_ints(3), _ints(2)), (_ints(3), _ints(0))
    ),
    "%": Row(lambda a, b: a % b, (_ints(3), _ints(2)), (_ints(3), _ints(0))),
    "% of a number": Row(lambda b: 3 % b, (_ints(2),), (_ints(0),)),
    "fmod": Row(torch.fmod, (_ints(3), _ints(2)), (_ints(3), _ints(0))),
    "multinomial of a negative weight": Row(
        lambda w: torch.multinomial(w, 1).clamp(max=0), (_floats(1, 0),), (_floats(1, -1),)
    ),
    "multinomial of NaN": Row(lambda w: torch.multinomial(w, 1).clamp(max=0), (_floats(1, 2),), (_floats(1, _NAN),)),
    "multinomial of infinity": Row(lambda w: torch.multinomial(w, 1) * 0, (_floats(1, 2),), (_floats(1, math.inf),)),
    "multinomial of nothing": Row(lambda w: torch.multinomial(w, 1) * 0, (_floats(1, 0),), (_floats(0, 0),)),
    "multinomial with replacement": Row(
        lambda w: torch.multinomial(w, 2, replacement=True) * 0, (_floats(1, 0),), (_floats(1, -1),)
    ),
    "multinomial with replacement of infinity": Row(
        lambda w: torch.multinomial(w, 2, replacement=True) * 0, (_floats(1, 0),), (_floats(1, math.inf),)
    ),
    "bernoulli": Row(torch.bernoulli, (_floats(0, 1),), (_floats(0, 1.5),), "Expected p_in >= 0 && p_in <= 1"),
    "bernoulli of NaN": Row(torch.bernoulli, (_floats(0, 1),), (_floats(_NAN),), "Expected p_in >= 0 && p_in <= 1"),
    "normal": Row(torch.normal, (_X, torch.zeros(3)), (_X, _floats(1, 1, -1))),
    "binary_cross_entropy": Row(functional.binary_cross_entropy, (_floats(0, 1), _floats(0, 1)), (_floats(1.5), _ONE)),
    "binary_cross_entropy of NaN": Row(functional.binary_cross_entropy, (_ONE, _ONE), (_floats(_NAN), _ONE)),
    "binary_cross_entropy's target": Row(functional.binary_cross_entropy, (_ONE, _ONE), (_ONE, _floats(2))),
    "multi_margin_loss": Row(functional.multi_margin_loss, (_LOGITS, _ints(0, 2)), (_LOGITS, _ints(0, 3)), "out of"),
    "multilabel_margin_loss": Row(
        lambda x, t: functional.multilabel_margin_loss(x, t) * 0,
        (_LOGITS[:1], _LABELS),
        (_LOGITS[:1], _LABELS + 4),
        "out of",
    ),
    "segment_reduce": Row(
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n), (_X, _ints(0, 3)), (_X, _ints(-1, 4))
    ),
    "segment_reduce of too few": Row(
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n), (_X, _ints(1, 2)), (_X, _ints(1, 1))
    ),
    "max_unpool2d": Row(
        lambda x, i: functional.max_unpool2d(x, i, 2),
        (_VOLUME, torch.tensor([[[[3]]]])),
        (_VOLUME, torch.tensor([[[[9]]]])),
    ),
    "max_unpool3d": Row(
        lambda x, i: functional.max_unpool3d(x, i, 2),
        (_VOLUME[None], torch.tensor([[[[[7]]]]])),
        (_VOLUME[None], torch.tensor([[[[[9]]]]])),
    ),
    "histc": Row(lambda x: torch.histc(x, 3), (_X,), (_floats(1, math.inf),), r"torch\.histc: .* not finite"),
    "lu_unpack": Row(
        lambda m, p: torch.lu_unpack(m, p)[0],
        (torch.eye(2), _ints(1, 2).to(torch.int32)),
        (torch.eye(2), _ints(1, 9).to(torch.int32)),
    ),
    "lu_solve": Row(
        lambda m, p: torch.linalg.lu_solve(m, p, m),
        (torch.eye(2), _ints(1, 2).to(torch.int32)),
        (torch.eye(2), _ints(1, 9).to(torch.int32)),
    ),
    "inv": Row(torch.linalg.inv, (torch.eye(2),), (torch.zeros(2, 2),)),
    "cholesky": Row(torch.linalg.cholesky, (torch.eye(2),), (-torch.eye(2),)),
    "the old cholesky": Row(torch.cholesky, (torch.eye(2),), (-torch.eye(2),)),
    "cholesky_inverse": Row(torch.cholesky_inverse, (torch.eye(2),), (torch.zeros(2, 2),)),
    **{
        f"{name}, {kind}": Row(partial(function, check_errors=True), (torch.eye(3).expand_as(batch),), (batch,))
        for kind, batch in (("one of a batch", _SINGULAR), ("one by itself", _SINGULAR[1]))
        for name, function in {
            "cholesky_ex": lambda x, **options: torch.linalg.cholesky_ex(x, **options)[0],
            "inv_ex": lambda x, **options: torch.linalg.inv_ex(x, **options)[0],
            "lu_factor_ex": lambda x, **options: torch.linalg.lu_factor_ex(x, **options)[0],
            "solve_ex": lambda x, **options: torch.linalg.solve_ex(x, torch.ones_like(x), **options)[0],
        }.items()
    },
    "svd": Row(torch.linalg.svdvals, (torch.eye(2),), (torch.full((2, 2), _NAN),)),
    "_assert_async": Row(lambda ok: (torch._assert_async(ok), ok + 1)[1], (torch.tensor(1),), (torch.tensor(0),)),
    "_assert_async that says something": Row(
        lambda ok: (torch._assert_async(ok, "said"), ok + 1)[1], (torch.tensor(1),), (torch.tensor(0),)
    ),
}

# Operators of which some are told by another overload's name, or run on the CPU: they say no operator of their own.
_SILENT = {"inv", "cholesky", "_assert_async", "_assert_async that says something"}


def _call(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that are deprecated, or run on the CPU
        result: torch.Tensor = function(*arguments)
    return result


def _there(arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(each.to("neuron") for each in arguments)


def _refused(row: Row, function: Callable[..., Any], *, named: bool) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whichever it is
        _call(row.function, row.bad)
    text = row.text or re.escape(str(expected.value).partition("\n")[0])
    with pytest.raises(type(expected.value), match=text) as raised:
        _call(function, _there(row.bad))
    if named:
        # the operator, and the line of the user's code: here, that of the row or of the call
        assert re.search(rf"\(operator \S+, at {re.escape(__file__)}:\d+: ", str(raised.value)), str(raised.value)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.share(12)
def test_what_the_cpu_refuses_is_refused_in_eager_code(name: str) -> None:
    row = ROWS[name]
    _refused(row, row.function, named=name not in _SILENT)  # the first call of the operator
    expected = _call(row.function, row.good)
    for _ in range(3):  # then by the device library
        torch.testing.assert_close(_call(row.function, _there(row.good)).cpu(), expected)
    _refused(row, row.function, named=name not in _SILENT)
    torch.testing.assert_close(_call(row.function, _there(row.good)).cpu(), expected)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.share(6)
def test_what_the_cpu_refuses_is_refused_in_compiled_code(name: str) -> None:
    row = ROWS[name]
    compiled = torch.compile(row.function, backend="neuron")
    expected = _call(row.function, row.good)
    torch.testing.assert_close(_call(compiled, _there(row.good)).cpu(), expected)
    _refused(row, compiled, named=name not in _SILENT)
    torch.testing.assert_close(_call(compiled, _there(row.good)).cpu(), expected)


def _zero(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device=x.device)


EMPTY: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int, ...]]] = {
    "max": (torch.max, (0,)),
    "min": (torch.min, (0,)),
    "max of rows": (lambda x: torch.max(x, 1), (3, 0)),
    "argmax": (torch.argmax, (0,)),
    "amax": (torch.amax, (0,)),
    "uniform_": (lambda x: x.uniform_(5, 3), (2,)),
    "random_": (lambda x: x.random_(5, 3), (2,)),
    "randint": (lambda x: torch.randint(5, 5, (2,), device=x.device), (2,)),
    "native_dropout": (lambda x: torch.native_dropout(x, 1.5, train=True), (2,)),
    "bernoulli": (lambda x: torch.bernoulli(x, 1.5), (2,)),
    "multinomial": (lambda x: torch.multinomial(x, 0), (2,)),
    "bucketize": (lambda x: torch.bucketize(x, x), (2, 2)),
    "// 0": (lambda x: x.to(torch.int64) // 0, (2,)),
    "index_put of another type": (lambda x: x.index_put((_zero(x),), _zero(x).to(torch.int32)), (2,)),
    "an assignment of another type": (lambda x: x.__setitem__(x > 0, _zero(x).expand(2)), (2,)),
    "put_ of another type": (lambda x: x.put_(_zero(x), _zero(x)), (2,)),
    "masked_scatter_ that would widen": (lambda x: x.masked_scatter_(x.expand(5) > 0, x.expand(5)), (1,)),
    "reflection of more than there is": (lambda x: functional.pad(x, (4, 1, 0, 0), mode="reflect"), (1, 1, 3, 4)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_needs_no_values_is_refused_at_once_with_torchs_words(name: str) -> None:
    function, shape = EMPTY[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whichever it is
        function(torch.ones(shape))
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value).partition("\n")[0])):
        function(torch.ones(shape, device="neuron"))
    assert neuron_backend.get_fallback_ops() == {}, "an error of the user's is no operator that we lack"


def test_a_reduction_of_nothing_is_refused_in_compiled_code() -> None:
    with pytest.raises(RuntimeError, match=r"max\(\): Expected reduction dim to be specified"):
        torch.compile(torch.max, backend="neuron")(torch.empty(0, device="neuron"))
    with pytest.raises(IndexError, match=r"max\(\): Expected reduction dim 1 to have non-zero size"):
        torch.compile(lambda x: torch.max(x, 1), backend="neuron")(torch.empty(3, 0, device="neuron"))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_backward_that_reads_out_of_range_is_refused(compiled: bool) -> None:
    class Picked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            ctx.save_for_backward(index)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            return gradient.index_select(0, ctx.saved_tensors[0]), None

    def loss(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Picked.apply(x, index).sum()  # type: ignore[no-untyped-call]
        return result

    function = torch.compile(loss, backend="neuron") if compiled else loss
    x = torch.ones(3, device="neuron", requires_grad=True)
    function(x, _ints(2, 1, 0).to("neuron")).backward()
    with pytest.raises(IndexError, match=r"index out of range in self \(operator aten\.index_select\.default"):
        function(x, _ints(2, 1, 9).to("neuron")).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1], "the gradient of the good call stands, and nothing was added to it"


def test_nothing_is_written_by_an_operator_that_refuses() -> None:
    x = torch.zeros(3, device="neuron")
    for _ in range(3):  # cold, then warm
        with pytest.raises(RuntimeError, match="index 5 is out of bounds"):
            x.scatter_(0, _ints(1, 5).to("neuron"), 1.0)
        assert x.tolist() == [0, 0, 0]
        x.scatter_(0, _ints(0).to("neuron"), 0.0)


def test_the_first_operator_at_fault_is_named_with_its_own_line() -> None:
    def model(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        kept = x.gather(0, index)
        return kept + x.index_select(0, index + 4)

    compiled = torch.compile(model, backend="neuron", fullgraph=True)
    with pytest.raises(IndexError, match=r"aten\.index_select\.default, at .*: return kept \+ x\.index_select"):
        compiled(_X.to("neuron"), _ints(0, 1, 2).to("neuron"))
    with pytest.raises(
        RuntimeError, match=r"index 8 is out of bounds .*aten\.gather\.default, at .*: kept = x\.gather"
    ):
        compiled(_X.to("neuron"), _ints(0, 1, 8).to("neuron"))


def test_each_thread_hears_of_its_own_failure() -> None:
    x, heard = _X.to("neuron"), {}
    indices = [_ints(number).to("neuron") for number in range(6)]
    x.index_select(0, indices[0])

    def pick(number: int) -> None:
        for _ in range(20):
            try:
                heard[number] = x.index_select(0, indices[number]).item()
            except IndexError as error:
                heard[number] = type(error)

    threads = [threading.Thread(target=pick, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {0: 0, 1: 1, 2: 2, 3: IndexError, 4: IndexError, 5: IndexError}


def test_indices_of_nothing_and_empty_tensors_are_no_fault() -> None:
    x, none = torch.zeros(3, 0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
    assert x[_ints(5).to("neuron")].shape == (1, 0), "as on the CPU, which reads nothing here"
    assert torch.zeros(0, 2, device="neuron").index_select(0, none).shape == (0, 2)
    assert (none // 0).shape == (0,)
    assert functional.embedding(none, torch.zeros(0, 2, device="neuron")).shape == (0, 2)


_OFF = """
import torch, neuron_backend
from torch.nn.functional import embedding
i, w = torch.tensor([0, 7], device="neuron"), torch.arange(6.0, device="neuron").reshape(3, 2)
for function in (embedding, torch.compile(embedding, backend="neuron")):
    for _ in range(2):
        try:
            print(function(i, w).tolist())
        except IndexError as error:
            print(type(error).__name__)
"""


@pytest.mark.parametrize(("setting", "said"), [("0", "[[0.0, 1.0], [4.0, 5.0]]"), ("1", "IndexError")])
def test_the_setting_turns_checks_off_and_on(setting: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(value_checks.SETTING, setting)
    done = subprocess.run([sys.executable, "-c", _OFF], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [said] * 4


def test_a_setting_that_means_nothing_is_said_once_and_values_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    assert [value_checks.asked_for({value_checks.SETTING: "maybe"}) for _ in range(2)] == [True, True]
    assert caplog.text.count("NEURON_BACKEND_CHECK='maybe' means nothing: expected 0 or 1") == 1


def test_a_program_without_such_operators_has_no_flag_and_its_bytes_stay() -> None:
    graph = trace(lambda x, y: [x + y, x / y], [_X, _X])
    trim(graph)
    assert lower(graph, checks=True) == lower(graph)


def test_the_key_does_not_depend_on_the_line_that_an_error_would_name() -> None:
    def one(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [x.gather(0, i)]

    def other(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [x.gather(0, i)]

    modules = []
    for function in (one, other):
        graph = trace(function, [_X, _ints(0)])
        trim(graph)
        modules.append(lower(graph, checks=True))
    assert modules[0].sha256 == modules[1].sha256
    assert len(modules[0].signature.outputs) == 2
    assert [check.operator for check in modules[0].checks] == ["aten.gather.default"]
