"""``torch.compile(backend="neuron")`` computes what eager torch computes on the CPU, or says why it cannot."""

from __future__ import annotations

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

import neuron_backend
from client.errors import CompileError, Failure
from client.names import Kind
from neuron_backend import programs
from neuron_backend.compilers.cpu import CpuCompiler
from neuron_backend.dynamo.calling import Loaded
from neuron_backend.eager import dispatch
from neuron_backend.lowering import lower, trace, trim
from neuron_backend.runtimes.cpu import CpuExecutable
from tests.fakes.waiting import HANG_SECONDS
from tests.support.unlowered import NAME, unlowered

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Compiled
    from neuron_backend.compilers.base import Configuration


def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    return torch.compile(function, backend="neuron", **options)


def graph_lookups() -> int:
    by_kind = neuron_backend.cache_stats()["by_kind"]
    return by_kind[Kind.GRAPH]["lookups"] if Kind.GRAPH in by_kind else 0


def same(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    assert ours.device.type == "neuron"
    assert ours.dtype == reference.dtype
    assert ours.shape == reference.shape
    assert ours.stride() == reference.stride()
    return torch.allclose(ours.detach().cpu(), reference.detach(), rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(16), nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.mix(self.norm(x)).split(16, -1)
        )
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), (8, 16)),
    "attention": (Attention, (2, 6, 16)),
    "convolution": (convolutional, (4, 3, 8, 8)),
}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.share(2)
def test_training_reaches_the_cpus_weights(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    reference = make()
    network = copy.deepcopy(reference).to("neuron")
    batches = [torch.randn(shape) for _ in range(3)]
    before = graph_lookups()
    for model, device in ((reference, "cpu"), (network, "neuron")):
        run = compiled(model) if device == "neuron" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in batches:
            optimizer.zero_grad()
            run(batch.to(device)).square().mean().backward()
            optimizer.step()
    assert graph_lookups() - before == 2  # one forward, one backward graph
    for ours, theirs in zip(network.state_dict().values(), reference.state_dict().values(), strict=True):
        assert torch.allclose(ours.cpu().float(), theirs.float(), rtol=1e-4, atol=1e-6)


def test_an_input_that_the_function_changes_is_changed():
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    ours, reference = torch.zeros(2, 3, device="neuron"), torch.zeros(2, 3)
    assert same(compiled(function)(ours), function(reference))
    assert same(ours, reference)


def test_a_returned_view_still_shares_its_bytes():
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t(), x * 2

    x = torch.arange(6.0).reshape(2, 3).to("neuron")
    view, double = compiled(function)(x)
    view.add_(10)
    assert same(x, torch.arange(6.0).reshape(2, 3) + 10)
    assert same(double, torch.arange(6.0).reshape(2, 3) * 2)


def test_results_keep_the_strides_that_eager_code_would_see():
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).permute(2, 0, 1)

    x = torch.randn(2, 3, 4)
    assert same(compiled(function)(x.to("neuron")), function(x))


@pytest.mark.parametrize("make", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x.expand(4, 6, 6)[1]])
def test_a_strided_input_is_read_as_it_lies(make):
    def function(a: torch.Tensor) -> torch.Tensor:
        return a.exp() - 1

    x = torch.randn(6, 6)
    assert same(compiled(function)(make(x.to("neuron"))), function(make(x)))


def test_a_graph_break_costs_a_graph_not_the_result():
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1

    assert same(compiled(function)(torch.ones(3, device="neuron")), torch.full((3,), 3.0))


def test_containers_none_and_numbers_come_back_as_they_are():
    def function(x: torch.Tensor) -> dict[str, object]:
        return {"sum": x.sum(), "none": None, "pair": [x + 1, 7]}

    result = compiled(function)(torch.ones(3, device="neuron"))
    assert result["none"] is None
    assert result["pair"][1] == 7
    assert same(result["sum"], torch.tensor(3.0))


def test_tensors_of_the_host_stay_on_the_host():
    x = torch.randn(3, 4)
    result = compiled(lambda a: a @ a.t())(x)
    assert result.device.type == "cpu"
    assert torch.allclose(result, x @ x.t(), rtol=1e-5)


def test_inference_compiles_no_backward_graph():
    network = nn.Linear(5, 6).to("neuron")
    before = graph_lookups()
    with torch.no_grad():
        compiled(network)(torch.ones(2, 5, device="neuron"))
    assert graph_lookups() - before == 1


def test_a_batch_of_another_size_is_compiled_for_that_size():
    network = nn.Linear(5, 6)
    on_device = copy.deepcopy(network).to("neuron")
    run = compiled(on_device)
    for size in (2, 3, 4, 7, 3):
        batch = torch.randn(size, 5)
        result = run(batch.to("neuron"))
        assert same(result, network(batch))
        result.sum().backward()
        network(batch).sum().backward()
    assert torch.allclose(on_device.weight.grad.cpu(), network.weight.grad, rtol=1e-4)


def test_dynamic_shapes_are_refused_with_the_reason():
    with pytest.raises(Exception, match="dynamic=True is not supported on neuron"):
        compiled(lambda x: x + 1, dynamic=True)(torch.ones(3, device="neuron"))


def test_an_unknown_option_is_refused():
    with pytest.raises(Exception, match=r"knows no options.*'speed'"):
        compiled(lambda x: x + 1, options={"speed": 11})(torch.ones(3, device="neuron"))


def test_a_mode_changes_nothing_and_says_so():
    with pytest.warns(UserWarning, match="mode='max-autotune' changes nothing"):
        result = compiled(lambda x: x + 1, mode="max-autotune")(torch.ones(3, device="neuron"))
    assert same(result, torch.full((3,), 2.0))


def test_an_operator_without_lowering_runs_on_the_host_and_is_listed():
    def function(x: torch.Tensor) -> torch.Tensor:
        return unlowered(x * 2) + 1

    x = torch.randn(4, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            ours = compiled(function)(x.to("neuron"))
            assert torch.allclose(ours.cpu(), function(x), rtol=1e-4)
    assert len([warning for warning in caught if "its graph runs operator by operator" in str(warning.message)]) == 1
    assert NAME in neuron_backend.get_fallback_ops()


def test_without_fallback_the_operator_is_named(monkeypatch):
    monkeypatch.setenv("NEURON_BACKEND_GRAPH_FALLBACK", "0")
    with pytest.raises(Exception, match=NAME):
        compiled(unlowered)(torch.randn(4, 4).to("neuron"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, place: (x + place) * 2,
        lambda x, place: torch.where(torch.arange(4, device=x.device) < place, x, 0),
        lambda x, place: (place * x) / (place + 3 + x * 2),
    ],
)
def test_a_place_in_a_cache_that_moves_on_is_no_reason_to_compile(function, dtype):
    x = torch.tensor([[1, 0, 3, 1], [5, 6, 0, 8]]).to(dtype)
    run = compiled(function)
    before = graph_lookups()
    for place in range(20):
        torch.testing.assert_close(run(x.to("neuron"), place).cpu(), function(x, place))
    assert graph_lookups() - before <= 3  # Dynamo takes 0 and 1 for constants


def test_an_integer_that_is_a_size_too_is_compiled_for():
    x = torch.randn(3, 9)
    run = compiled(lambda a, size: (a[:, :size] + size).sum(1))
    for size in range(2, 6):
        torch.testing.assert_close(run(x.to("neuron"), size).cpu(), (x[:, :size] + size).sum(1))


def test_a_second_compile_of_one_graph_is_a_hit():
    x = torch.ones(11, device="neuron")
    compiled(lambda a: a.sin() * 3)(x)
    torch._dynamo.reset()
    before = programs.cache_stats()["compiles"]
    compiled(lambda a: a.sin() * 3)(x)
    assert programs.cache_stats()["compiles"] == before


def test_threads_make_the_first_call_of_one_model_beside_first_operators_of_others():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.LayerNorm(7), nn.Linear(7, 2))
    batch = torch.randn(3, 5)
    expected = model(batch)
    run = compiled(model.to("neuron"))
    gate = threading.Barrier(10)

    def work(number: int) -> torch.Tensor:
        gate.wait()
        if number < 8:
            return run(batch.to("neuron"))
        return (batch[0].to("neuron").repeat(number) * number).relu()

    with ThreadPoolExecutor(10) as pool, dispatch.without_plans():
        *answers, eight, nine = pool.map(work, range(10))
    assert all(same(answer, expected) for answer in answers)
    for number, answer in ((8, eight), (9, nine)):
        assert same(answer, (batch[0].repeat(number) * number).relu())


def before_compiling(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Have ``call`` called in the place where the compiler is asked, in the thread that asks it."""
    compile_ = CpuCompiler.compile

    def later(self: CpuCompiler, code: bytes, configuration: Configuration) -> Compiled:
        call()
        return compile_(self, code, configuration)

    monkeypatch.setattr(CpuCompiler, "compile", later)


def test_a_graph_that_compiles_for_an_hour_holds_up_no_other_thread_and_changes_nothing_for_it(monkeypatch):
    began, go = threading.Event(), threading.Event()

    def wait() -> None:
        if threading.current_thread() is slow:
            began.set()
            assert go.wait(HANG_SECONDS)

    def first_call() -> None:
        answers.append(compiled(lambda a: a.cos() * 29)(torch.ones(29, device="neuron")))

    answers: list[torch.Tensor] = []
    slow = threading.Thread(target=first_call)
    before_compiling(monkeypatch, wait)
    switches = torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled
    before = [switch() for switch in switches]
    with dispatch.without_plans():
        slow.start()
        try:
            assert began.wait(HANG_SECONDS)
            assert [switch() for switch in switches] == before
            assert same(torch.ones(31, device="neuron").exp(), torch.ones(31).exp())
            assert same(compiled(lambda a: a.sin() * 31)(torch.ones(31, device="neuron")), torch.ones(31).sin() * 31)
            assert not answers
        finally:
            go.set()
            slow.join()
    assert same(answers[0], torch.ones(29).cos() * 29)


def test_two_threads_compile_their_graphs_at_the_same_time(monkeypatch):
    both = threading.Barrier(2)
    before_compiling(monkeypatch, lambda: both.wait(HANG_SECONDS))
    with ThreadPoolExecutor(2) as pool:
        sines = pool.submit(lambda: compiled(lambda a: a.sin() * 37)(torch.ones(37, device="neuron")))
        tangents = pool.submit(lambda: compiled(lambda a: a.tan() * 37)(torch.ones(37, device="neuron")))
    assert same(sines.result(), torch.ones(37).sin() * 37)
    assert same(tangents.result(), torch.ones(37).tan() * 37)


def test_a_compile_that_failed_is_an_error_of_the_call_and_the_next_call_tries_again(monkeypatch):
    failures = iter([CompileError(Failure("transient", "the disk is full"))] * 2)  # the client tries once more

    def fail_at_first() -> None:
        for failure in failures:
            raise failure

    before_compiling(monkeypatch, fail_at_first)
    x = torch.ones(41, device="neuron", requires_grad=True)
    run = compiled(lambda a: (a.sin() * 41).sum())
    with pytest.raises(CompileError, match="the disk is full"):
        run(x)
    run(x).backward()
    assert torch.allclose(x.grad.cpu(), torch.ones(41).cos() * 41)


def test_where_dynamo_is_told_to_go_on_without_a_compiler_a_failure_is_no_error(monkeypatch):
    def fail() -> None:
        raise CompileError(Failure("transient", "no room on the chip"))

    x = torch.ones(43, device="neuron")
    assert same(x.sin() * 43, torch.ones(43).sin() * 43)  # so that the operators themselves are compiled
    before_compiling(monkeypatch, fail)
    with torch._dynamo.config.patch(suppress_errors=True):
        assert same(compiled(lambda a: a.sin() * 43)(x), torch.ones(43).sin() * 43)


def test_a_graphs_program_runs_on_the_tensors_themselves_whatever_lies_where(monkeypatch):
    """No copy on the host, and no Python code of ours, between a call and the program."""
    monkeypatch.setattr(CpuExecutable, "__call__", lambda *_: pytest.fail("the program was called from Python"))
    x, y = torch.randn(6, 4), torch.randn(4, 6)

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, (a.t() + b).t(), c.sum(0), (a * 47).cpu()

    run = compiled(function)
    for views in (
        lambda a, b: (a, b, a),
        lambda a, b: (b.t(), a.t(), a[::2]),
        lambda a, b: (a[:, :1].expand(6, 4), b[:, 1:2].expand(4, 6), b),
        lambda a, b: (a.reshape(4, 6)[1:, :].reshape(3, 6)[:, :4].repeat(2, 1), b, a[:0]),
    ):
        for _ in range(2):
            given = views(x.to("neuron"), y.to("neuron"))
            for ours, expected in zip(run(*given), function(*views(x, y)), strict=True):
                torch.testing.assert_close(ours.cpu(), expected)
                assert ours.stride() == expected.stride()


def test_a_program_that_nobody_holds_is_let_go():
    graph = trace(lambda a: [a * 53], [torch.ones(53)])
    trim(graph)
    before = torch.ops.neuron_device.held()
    loaded = Loaded(programs.get(Kind.GRAPH, lower(graph)), 0)
    (result,), there = loaded([torch.ones(53, device="neuron")], 0)
    assert (there, torch.ops.neuron_device.held()) == (True, before + 1)
    assert same(result, torch.full((53,), 53.0))
    del loaded
    assert torch.ops.neuron_device.held() == before
