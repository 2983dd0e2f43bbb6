"""Random operators: the bits are Threefry's, the numbers have their distributions, seed and offset choose them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from scipy import stats

from neuron_backend.lowering import UnsupportedOperator, draws_of, lower, trace, trim
from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.dtypes import tensor_type
from neuron_backend.lowering.pipeline import context, finish
from neuron_backend.lowering.threefry import threefry

Function = Callable[..., Any]
Draw = Callable[..., list[torch.Tensor]]
COUNT = 40_001  # odd, so that no transform in pairs comes out even


@pytest.fixture(scope="session")
def draw(run_xla: Any) -> Draw:
    """Lower a function that draws, and run it with a seed and an offset."""

    def drawn(function: Function, *inputs: torch.Tensor, seed: int = 7, offset: int = 0) -> list[torch.Tensor]:
        graph = trace(function, inputs)
        trim(graph)
        module = lower(graph)
        words = [_words(number) for number in (seed, offset)]
        result: list[torch.Tensor] = run_xla(module, [*inputs, *words])
        return result

    return drawn


def _words(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.uint64).view(torch.int32)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        # The known answers of Random123 for threefry2x32 with 20 rounds.
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_bits_are_those_of_threefry(
    run_xla: Any, key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    with context() as messages:
        module = ir.Module.create()
        kind = tensor_type((2,), torch.int32)
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ir.FunctionType.get([kind, kind], [tensor_type((), torch.int32)] * 2))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            pairs = [
                tuple(Array(value, torch.int32, (2,)).slice(0, at, at + 1).reshape(()) for at in (0, 1))
                for value in block.arguments
            ]
            words = threefry((pairs[0][0], pairs[0][1]), (pairs[1][0], pairs[1][1]))
            assert constant(0, torch.int32).shape == words[0].shape
            func.ReturnOp([word.value for word in words])
        finished = finish(module, messages)
    inputs = [torch.tensor(words, dtype=torch.uint32).view(torch.int32) for words in (key, counter)]
    results = run_xla(finished, inputs)
    assert tuple(int(result) & 0xFFFFFFFF for result in results) == expected


CONTINUOUS: dict[str, tuple[Function, Any]] = {
    "rand": (lambda x: [torch.rand_like(x)], stats.uniform()),
    "randn": (lambda x: [torch.randn_like(x)], stats.norm()),
    "uniform_": (lambda x: [x.uniform_(-2, 3)], stats.uniform(-2, 5)),
    "normal_": (lambda x: [x.normal_(1, 3)], stats.norm(1, 3)),
    "normal of tensors": (lambda x: [torch.normal(x + 1, x + 3)], stats.norm(1, 3)),
    "exponential_": (lambda x: [x.exponential_(2.0)], stats.expon(scale=0.5)),
    "cauchy_": (lambda x: [x.cauchy_(1, 2)], stats.cauchy(1, 2)),
    "log_normal_": (lambda x: [x.log_normal_(0.5, 0.25)], stats.lognorm(0.25, scale=math.exp(0.5))),
}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.soak)])
def test_numbers_have_their_distribution(draw: Draw, dtype: torch.dtype) -> None:
    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x.clone())[0] for function, _ in CONTINUOUS.values()]

    results = draw(everything, torch.zeros(COUNT, dtype=dtype))
    for (name, (_, expected)), numbers in zip(CONTINUOUS.items(), results, strict=True):
        assert numbers.dtype == dtype
        assert numbers.unique().numel() > 0.99 * COUNT, name
        assert stats.kstest(numbers.double().numpy(), expected.cdf).pvalue > 1e-3, name
        if name != "cauchy_":
            error = 6 * expected.std() / COUNT**0.5
            assert numbers.double().mean().item() == pytest.approx(expected.mean(), abs=error), name
            assert numbers.double().var().item() == pytest.approx(expected.var(), rel=0.1), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_stay_in_their_range(draw: Draw, dtype: torch.dtype) -> None:
    x = torch.zeros(COUNT, dtype=dtype)
    uniform, shifted, normal = draw(lambda x: [torch.rand_like(x), x.uniform_(1, 2), torch.randn_like(x)], x)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert shifted.min() >= 1
    assert shifted.max() < 2
    assert normal.float().var().item() == pytest.approx(1, rel=0.05)


DISCRETE: dict[str, tuple[Function, dict[float, float]]] = {
    "bernoulli_": (lambda x: [x.bernoulli_(0.3)], {0: 0.7, 1: 0.3}),
    "bernoulli": (lambda x: [torch.bernoulli(x + 0.3)], {0: 0.7, 1: 0.3}),
    "bernoulli of a tensor": (lambda x: [x.bernoulli_(x + 0.3)], {0: 0.7, 1: 0.3}),
    "dropout": (lambda x: [torch.native_dropout(x + 1, 0.2, train=True)[0]], {0: 0.2, 1.25: 0.8}),
    "randint": (lambda x: [torch.randint_like(x, 3, 6)], {3: 1 / 3, 4: 1 / 3, 5: 1 / 3}),
    "random_": (lambda x: [x.random_(4)], dict.fromkeys(range(4), 0.25)),
    "random_ of a range": (lambda x: [x.random_(-1, 1)], {-1: 0.5, 0: 0.5}),
    "geometric_": (lambda x: [x.geometric_(0.5).clamp(max=4)], {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.125}),
    "multinomial": (
        lambda x: [torch.multinomial(x[:3] + torch.arange(3.0), COUNT, replacement=True).to(x.dtype)],
        {1: 1 / 3, 2: 2 / 3},
    ),
    "multinomial, one of each row": (
        lambda x: [torch.multinomial(x[:, None] + torch.arange(3.0), 1).to(x.dtype).flatten()],
        {1: 1 / 3, 2: 2 / 3},
    ),
}


@pytest.mark.soak
def test_counts_have_their_distribution(draw: Draw) -> None:
    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x.clone())[0] for function, _ in DISCRETE.values()]

    for (name, (_, expected)), numbers in zip(DISCRETE.items(), draw(everything, torch.zeros(COUNT)), strict=True):
        values, counts = numbers.unique(return_counts=True)
        assert values.tolist() == pytest.approx(sorted(expected)), name
        wanted = [expected[key] * COUNT for key in sorted(expected)]
        assert stats.chisquare(counts.double().numpy(), wanted).pvalue > 1e-3, name


def test_a_permutation_has_every_number_once(draw: Draw) -> None:
    first, second = draw(lambda: [torch.randperm(1000), torch.randperm(1000)])
    assert first.sort().values.tolist() == list(range(1000))
    assert not torch.equal(first, second)
    assert abs(stats.spearmanr(first.numpy(), range(1000)).statistic) < 0.15


def test_integers_of_a_wide_range_and_of_every_type(draw: Draw) -> None:
    wide, small, full = draw(
        lambda: [
            torch.randint(-(2**62), 2**62, (COUNT,)),
            torch.randint(0, 200, (COUNT,), dtype=torch.uint8),
            torch.empty(COUNT, dtype=torch.int8).random_(),
        ]
    )
    assert wide.min() < -(2**61)
    assert wide.max() > 2**61
    assert small.dtype == torch.uint8
    assert small.max() == 199
    assert (full.min(), full.max()) == (0, 127)


def test_complex_numbers_have_the_variance_of_one(draw: Draw) -> None:
    (numbers,) = draw(lambda: [torch.randn(COUNT, dtype=torch.complex64)])
    assert numbers.abs().square().mean().item() == pytest.approx(1, rel=0.05)
    assert abs(numbers.mean().item()) < 0.03


def test_without_replacement_nothing_comes_twice(draw: Draw) -> None:
    (chosen,) = draw(lambda: [torch.multinomial(torch.tensor([[0.1, 0.5, 0.0, 0.4]] * 300), 3)])
    assert all(sorted(row) == [0, 1, 3] for row in chosen.tolist())
    assert {row[0] for row in chosen.tolist()} == {0, 1, 3}


def test_seed_and_offset_choose_the_numbers(draw: Draw) -> None:
    def one(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand_like(x)]

    x = torch.zeros(64)
    (first,) = draw(one, x, seed=3, offset=5)
    assert torch.equal(draw(one, x, seed=3, offset=5)[0], first)
    others = [(4, 5), (3, 6), (3 + (1 << 32), 5), (3, 5 + (1 << 32))]
    results = [first, *(draw(one, x, seed=seed, offset=offset)[0] for seed, offset in others)]
    assert len({tuple(result.tolist()) for result in results}) == len(results)


@pytest.mark.parametrize("offset", [0, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1])
def test_each_node_takes_one_step_whatever_it_draws(draw: Draw, offset: int) -> None:
    def three(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand_like(x), torch.randperm(9).to(x.dtype), torch.randn_like(x)]

    def last(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.randn_like(x)]

    x = torch.zeros(9)
    assert torch.equal(draw(three, x, offset=offset)[2], draw(last, x, offset=offset + 2)[0])


def test_a_result_without_elements_takes_its_step_too() -> None:
    graph = trace(lambda: [torch.rand(0), torch.rand(2)], [])
    trim(graph)
    assert draws_of(graph) == 2
    assert [spec.shape for spec in lower(graph).signature.inputs] == [(2,), (2,)]


def test_the_bytes_do_not_depend_on_the_generator() -> None:
    def module(seed: int) -> bytes:
        torch.manual_seed(seed)
        graph = trace(lambda x: [torch.nn.functional.dropout(x, 0.3)], [torch.zeros(5)])
        trim(graph)
        return lower(graph).code

    assert module(0) == module(1)


def test_a_generator_inside_a_graph_is_refused() -> None:
    graph = trace(lambda: [torch.rand(3)], [])
    trim(graph)
    (node,) = (node for node in graph.graph.nodes if node.op == "call_function")
    node.kwargs = {**node.kwargs, "generator": torch.Generator()}
    with pytest.raises(UnsupportedOperator, match="generator of its own"):
        lower(graph)
