"""Random operators on the device: from the device's generator, compiled, the same in every run."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import neuron_backend

Draw = Callable[[], torch.Tensor]
NEURON = torch.device("neuron")


def _empty(**options: torch.dtype) -> torch.Tensor:
    return torch.empty(3, 7, device=NEURON, **options)


DRAWS: dict[str, Draw] = {
    "rand": lambda: torch.rand(4, device=NEURON),
    "rand, out": lambda: torch.rand(4, out=torch.empty(4, device=NEURON)),
    "randn": lambda: torch.randn(5, device=NEURON, dtype=torch.bfloat16),
    "randn, complex": lambda: torch.randn(5, device=NEURON, dtype=torch.complex64),
    "rand_like": lambda: torch.rand_like(_empty()),
    "randn_like": lambda: torch.randn_like(_empty()),
    "randint": lambda: torch.randint(3, 9, (12,), device=NEURON),
    "randint_like": lambda: torch.randint_like(_empty(), 50),
    "randperm": lambda: torch.randperm(20, device=NEURON),
    "uniform_": lambda: _empty().uniform_(1, 2),
    "uniform_ of a view": lambda: torch.zeros(6, 6, device=NEURON)[::2, 1:].uniform_(0, 2),
    "normal_": lambda: _empty().normal_(1, 2),
    "normal": lambda: torch.normal(torch.ones(6, device=NEURON), 2.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((30,), 0.5, device=NEURON)),
    "bernoulli_": lambda: torch.empty(30, device=NEURON, dtype=torch.bool).bernoulli_(0.5),
    "exponential_": lambda: _empty().exponential_(),
    "geometric_": lambda: _empty().geometric_(0.2),
    "cauchy_": lambda: _empty().cauchy_(),
    "log_normal_": lambda: _empty().log_normal_(),
    "random_": lambda: _empty(dtype=torch.int64).random_(),
    "random_ of a range": lambda: _empty(dtype=torch.int64).random_(2, 80),
    "multinomial": lambda: torch.multinomial(torch.ones(30, device=NEURON), 9),
    "dropout": lambda: functional.dropout(torch.ones(40, device=NEURON)),
    "dropout2d": lambda: functional.dropout2d(torch.ones(1, 40, 1, 1, device=NEURON)),
    "alpha_dropout": lambda: functional.alpha_dropout(torch.ones(40, device=NEURON), training=True),
    "rrelu": lambda: functional.rrelu(-torch.ones(9, device=NEURON), training=True),
    "gumbel_softmax": lambda: functional.gumbel_softmax(torch.ones(9, device=NEURON)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.share(5)
def test_a_seed_gives_the_same_numbers_without_the_cpu(name: str) -> None:
    generator = torch.neuron.default_generators()[0]
    torch.manual_seed(5)
    first = DRAWS[name]().cpu()
    assert generator.get_offset() == 1
    second = DRAWS[name]().cpu()
    assert generator.get_offset() == 2
    torch.manual_seed(5)
    assert torch.equal(DRAWS[name]().cpu(), first)
    assert not torch.equal(first, second)
    assert neuron_backend.get_fallback_ops() == {}


def test_another_seed_needs_no_other_program(programs_made: Callable[[], int]) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        torch.rand(123, device=NEURON)
    assert programs_made() == 1


def test_the_state_of_the_generator_is_seed_and_offset() -> None:
    generator = torch.Generator("neuron").manual_seed(11)
    before = generator.get_state()
    assert before.numel() == 16
    first = torch.rand(6, device=NEURON, generator=generator)
    assert (generator.initial_seed(), generator.get_offset()) == (11, 1)
    generator.set_state(before)
    assert torch.equal(torch.rand(6, device=NEURON, generator=generator).cpu(), first.cpu())
    generator.set_offset(0)
    twin = generator.clone_state()
    assert torch.equal(torch.rand(6, device=NEURON, generator=twin).cpu(), first.cpu())
    assert generator.get_offset() == 0
    assert generator.seed() == generator.initial_seed() != 11


def test_the_state_of_another_generator_is_refused() -> None:
    generator = torch.Generator("neuron")
    with pytest.raises(RuntimeError, match="state of a neuron generator: a contiguous CPU tensor of 16 bytes"):
        generator.set_state(torch.Generator().get_state())


def test_a_generator_of_its_own_leaves_the_default_one_alone() -> None:
    default = torch.neuron.get_rng_state()
    generator = torch.Generator("neuron").manual_seed(3)
    torch.randn(4, device=NEURON, generator=generator)
    assert torch.equal(torch.neuron.get_rng_state(), default)
    torch.manual_seed(3)
    expected = torch.randn(4, device=NEURON)
    generator.manual_seed(3)
    assert torch.equal(torch.randn(4, device=NEURON, generator=generator).cpu(), expected.cpu())


def test_a_generator_of_the_cpu_gives_the_numbers_of_the_cpu() -> None:
    expected = torch.empty(5).uniform_(generator=torch.Generator().manual_seed(3))
    got = torch.empty(5, device=NEURON).uniform_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(got.cpu(), expected)
    assert set(neuron_backend.get_fallback_ops()) == {"aten.uniform_.default"}


def test_what_runs_on_the_cpu_is_seeded_by_the_device() -> None:
    rates = torch.full((20,), 30.0, device=NEURON)
    before = torch.get_rng_state()
    with pytest.warns(UserWarning, match="poisson"):
        torch.poisson(rates)
    assert torch.equal(torch.get_rng_state(), before)
    torch.neuron.manual_seed(4)
    first, second = torch.poisson(rates).cpu(), torch.poisson(rates).cpu()
    torch.neuron.manual_seed(4)
    assert torch.equal(torch.poisson(rates).cpu(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_dropout_again(reentrant: bool) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 8)).to(NEURON)
    twin = copy.deepcopy(model)
    x = torch.randn(4, 8, device=NEURON)

    def gradients(run: torch.nn.Module, *, recompute: bool) -> list[torch.Tensor]:
        torch.manual_seed(9)
        start = x.clone().requires_grad_()
        result = checkpoint(run, start, use_reentrant=reentrant) if recompute else run(start)
        result.square().sum().backward()
        assert start.grad is not None
        return [start.grad.cpu(), *(each.grad.cpu() for each in run.parameters() if each.grad is not None)]

    for plain, again in zip(gradients(model, recompute=False), gradients(twin, recompute=True), strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize(
    "draw",
    [
        lambda device: torch.empty(3, dtype=torch.int8, device=device).random_(-200, 5),
        lambda device: torch.empty(3, dtype=torch.uint8, device=device).random_(0, 257),
        lambda device: torch.empty(3, dtype=torch.int8, device=device).random_(129),
        lambda device: torch.randint(0, 500, (3,), dtype=torch.int8, device=device),
        lambda device: torch.empty(3, dtype=torch.bool, device=device).random_(0, 3),
        lambda device: torch.empty(3, dtype=torch.float16, device=device).random_(0, 1 << 20),
    ],
)
def test_a_range_that_a_type_does_not_hold_is_refused_and_not_wrapped(draw: Callable[[str], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError) as expected:
        draw("cpu")
    with pytest.raises(RuntimeError) as found:
        draw("neuron")
    assert str(found.value) == str(expected.value)


def test_the_largest_range_of_a_type_is_drawn_from() -> None:
    for dtype in (torch.int8, torch.uint8):
        limits = torch.iinfo(dtype)
        values = torch.empty(4000, dtype=dtype, device=NEURON).random_(limits.min, limits.max + 1)
        assert (values.min().item(), values.max().item()) == (limits.min, limits.max)
