"""What ``compile_only`` compiles is what the job asks for: all of it, and without weights, values or a run."""

from __future__ import annotations

import copy
import os
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import neuron_backend
from client.errors import ConfigurationError
from client.names import Kind
from neuron_backend import programs
from neuron_backend.eager import dispatch
from neuron_backend.prewarm.hollow import hollow, hollow_module
from tests.fakes.programs import install_neuronx_cc
from tests.support.unlowered import NAME, unlowered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _fresh(tmp_path) -> Iterator[None]:
    """A process that has neither compiled nor cached anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_CACHE_NODE_DIR", str(tmp_path / "node"))
        patch.setattr(programs, "_programs", None)
        forget()
        yield
        if programs._programs is not None:
            programs._programs.close()
    forget()


def forget() -> None:
    torch._dynamo.reset()
    dispatch.clear()
    neuron_backend.clear_fallback_ops()


class Block(nn.Module):
    """Tied weights, a buffer that changes, dropout, a convolution, a checkpoint and a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.convolution, self.norm, self.dropout = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        x = self.dropout(self.norm(checkpoint(lambda y: self.convolution(y).tanh(), x, use_reentrant=False)))
        torch._dynamo.graph_break()
        return self.head(x.transpose(1, 2))


def tokens(length: int, device: str = "neuron") -> torch.Tensor:
    return torch.zeros(2, length, dtype=torch.int64).to(device)


def job(run: Callable[[], object]) -> None:
    """Run a job as in a fresh process that must not compile."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_CACHE_ON_MISS", "fail")
        run()


def stats() -> dict:
    return neuron_backend.cache_stats()


def train(network: nn.Module, lengths: tuple[int, ...], *, backward: bool) -> None:
    compiled = torch.compile(network.to("neuron"), backend="neuron")
    for length in lengths:
        if backward:
            network.zero_grad()
            logits = compiled(tokens(length))
            torch.autograd.backward([logits], [torch.zeros(logits.shape).to("neuron")])
        else:
            with torch.no_grad():
                compiled(tokens(length))


# Torch's own remark about what it meets inside of a function: warnings are errors in tests.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("backward", "order"), [(True, (6, 5)), pytest.param(False, (6, 5), marks=pytest.mark.soak)])
def test_a_job_finds_forward_and_backward_whatever_length_comes_first(backward, order):
    with torch.device("meta"):
        network = Block()
    buckets = [(tokens(length, "meta"),) for length in (5, 6)]
    report = neuron_backend.compile_only(network, buckets, backward=backward)
    assert [bucket.error for bucket in report.buckets] == [None] * 2
    # two graphs each way, and the sum of the two gradients of the tied weight
    assert [len(bucket.programs) for bucket in report.buckets] == [5 if backward else 2] * 2
    job(lambda: train(Block(), order, backward=backward))
    assert stats()["compiles"] == 0
    assert stats()["by_kind"]["graph"]["hits"]["disk"] == (4 if backward else 2) * len(order)


def test_for_another_chip_keys_are_its_own_and_no_runtime_is_opened(tmp_path, monkeypatch):
    def opened(*_: object) -> None:
        raise AssertionError("a prewarm has no use for a runtime")

    monkeypatch.setattr(programs, "get_runtime", opened)
    compiler = {
        "NEURON_BACKEND_COMPILER": "neuronx-cc",
        "NEURON_CACHE_COMPILER": str(install_neuronx_cc(tmp_path / "bin").program),
    }
    found = []
    for target in ("trn1", "trn2", "trn2"):
        forget()
        environ = {**os.environ, **compiler, "NEURON_PLATFORM_TARGET_OVERRIDE": target}
        report = neuron_backend.compile_only(lambda x: x.tan() * 2, [(torch.ones(3, device="meta"),)], environ=environ)
        assert report.complete
        found.append((report.count("compiled"), report.count("disk"), *report.programs))
    first, second, third = found
    assert first[:2] == second[:2] == (1, 0)
    assert third[:2] == (0, 1)
    assert first[2] != second[2] == third[2]


def test_weights_that_are_there_on_meta_or_fake_give_the_same_keys():
    def keys(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[tuple[Kind, str]]:
        forget()
        return list(neuron_backend.compile_only(network, [inputs], compile=False).programs)

    real = Block()
    with torch.device("meta"):
        meta = Block()
    with FakeTensorMode():
        fake = Block()
        example = tokens(4, "cpu")
    found = [keys(real, (tokens(4),)), keys(meta, (tokens(4, "meta"),)), keys(fake, (example,))]
    assert len(found[0]) == 2
    assert found[0] == found[1] == found[2]
    assert all(parameter.device.type == "cpu" for parameter in real.parameters())  # nobody moved the user's module


OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.share(1)
def test_a_training_step_finds_loss_gradients_and_optimizer_too(name):
    def make() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        network = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).to("neuron")
        compiled, optimizer = torch.compile(network, backend="neuron"), OPTIMIZERS[name](network.parameters())

        def step(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(compiled(given).flatten(0, 1), wanted.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return step

    report = neuron_backend.compile_only(make(), [(tokens(4, "meta"), tokens(4, "meta"))], as_is=True)
    assert report.complete
    assert {kind for kind, _ in report.programs} == {Kind.GRAPH, Kind.EAGER}

    def steps() -> None:
        step = make()
        for _ in range(3):
            assert step(tokens(4), tokens(4)).item() > 0

    job(steps)
    assert stats()["compiles"] == 0
    assert stats()["hits"]["disk"] <= len(report.programs)


def test_a_function_that_was_prewarmed_runs_in_the_same_process():
    double = torch.compile(lambda x: x * 2, backend="neuron")
    assert neuron_backend.compile_only(double, [(torch.ones(3),)]).complete
    assert double(torch.ones(3, device="neuron")).tolist() == [2, 2, 2]
    assert stats()["compiles"] == 0


def test_what_was_compiled_before_is_asked_for_again():
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = torch.zeros(3, device="neuron")
    compiled = torch.compile(function, backend="neuron")
    compiled(x)
    function(x)
    assert len(neuron_backend.compile_only(compiled, [(x,)], compile=False).programs) == 1
    assert len(neuron_backend.compile_only(function, [(x,)], as_is=True, compile=False).programs) == 2
    assert function(x).tolist() == [2, 2, 2]


def test_a_value_that_is_asked_for_is_refused_and_other_buckets_go_on():
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == 2 else x * x.sum().item()

    report = neuron_backend.compile_only(function, [(torch.ones(3),), (torch.ones(2),)], as_is=True)
    assert not report.complete
    assert "ValueNeeded: aten::_local_scalar_dense asks for a value" in report.buckets[0].error
    assert report.buckets[1].error is None
    assert torch.ones(2, device="neuron").sum().item() == 2  # values can be read again


@pytest.mark.parametrize("operator", [torch.nonzero, lambda x: x[x > 0], lambda x: torch.equal(x, x)])
def test_a_shape_or_answer_that_depends_on_values_is_refused(operator):
    report = neuron_backend.compile_only(operator, [(torch.ones(3),)], as_is=True)
    assert "ValueNeeded" in report.buckets[0].error


def test_a_graph_without_a_program_is_listed_and_what_the_job_runs_instead_is_compiled():
    def function(x: torch.Tensor) -> torch.Tensor:
        return unlowered(x.exp() * 3).sum()

    with pytest.warns(UserWarning, match="operator by operator"):
        report = neuron_backend.compile_only(function, [(torch.ones(3, 3),)])
    assert not report.complete
    assert report.complete_but_for_fallback
    (error,) = report.unsupported
    assert error.operator == NAME
    assert "test_compile_only.py" in error.line
    compiled = torch.compile(function, backend="neuron")
    with pytest.warns(UserWarning, match="operator by operator"):
        job(lambda: compiled(torch.ones(3, 3, device="neuron")))
    assert stats()["compiles"] == 0


def test_what_the_users_code_raises_stands_in_the_report():
    report = neuron_backend.compile_only(nn.Linear(3, 2), [(torch.ones(2, 5),)])
    assert not report.complete
    assert "must have same reduction dim, but got [2, 5] X [3, 2]" in report.buckets[0].error
    assert "\n" not in report.buckets[0].error


@pytest.mark.parametrize(
    ("how", "environ", "reason"),
    [
        ({"backward": True, "as_is": True}, {}, "exclude each other"),
        ({}, {"NEURON_CACHE_MODE": "ro"}, "publishes nothing"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(how, environ, reason):
    with pytest.raises(ConfigurationError, match=reason):
        neuron_backend.compile_only(nn.Linear(2, 2), [(torch.ones(1, 2),)], environ={**os.environ, **environ}, **how)


def test_a_backward_that_nothing_leads_to_is_an_error_of_the_bucket():
    report = neuron_backend.compile_only(lambda x: x + 1, [(torch.ones(2),)], backward=True)
    assert "no result of the function depends on a tensor that requires a gradient" in report.buckets[0].error


def test_more_buckets_than_dynamo_compiles_are_all_compiled_and_the_job_is_told_what_to_set():
    with torch._dynamo.config.patch(recompile_limit=2):
        report = neuron_backend.compile_only(lambda x: x * 2, [(torch.ones(n),) for n in range(2, 6)], compile=False)
    assert report.complete
    assert len(report.programs) == 4
    assert "set it to 4 or more" in report.notes[0]


def test_what_a_node_has_and_the_shared_cache_lacks_is_published(tmp_path):
    def prewarm(**environ: str) -> object:
        forget()
        return neuron_backend.compile_only(lambda x: x * 5, [(torch.ones(3),)], environ={**os.environ, **environ})

    alone = prewarm()
    assert alone.count("compiled") == 1
    shared = prewarm(NEURON_CACHE_URL=str(tmp_path / "shared"))
    assert shared.complete
    assert [path.name for path in (tmp_path / "shared").glob("*/graph/??/*")] == [key for _, key in alone.programs]
    assert prewarm(NEURON_CACHE_URL=str(tmp_path / "shared")).count("compiled") == 0


def test_a_second_recording_at_the_same_time_is_refused_and_the_first_is_untouched():
    refused = []

    def function(x: torch.Tensor) -> torch.Tensor:
        def again() -> None:
            try:
                neuron_backend.compile_only(lambda y: y, [(torch.ones(1),)], compile=False)
            except RuntimeError as error:
                refused.append(str(error))

        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        return x * 7

    report = neuron_backend.compile_only(function, [(torch.ones(3),)], as_is=True, compile=False)
    assert report.complete
    assert "one compile_only() at a time" in refused[0]


def test_hollow_weights_take_addresses_and_no_memory():
    def resident() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - a kernel file
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with torch.device("meta"):
        network = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(8)))  # 2 GiB of weights
    before = resident()
    made = hollow_module(network)
    assert resident() - before < 64 << 20
    assert sum(parameter.numel() for parameter in made.parameters()) == 8 * 8192 * 8192
    assert all(parameter.device.type == "neuron" and parameter.requires_grad for parameter in made.parameters())


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[0].expand(3, 6), lambda x: x[:0]]
)
def test_a_hollow_tensor_lies_as_the_real_one_does(make):
    real = make(torch.arange(24.0).reshape(4, 6))
    ours = hollow(real)
    assert (ours.shape, ours.stride(), ours.dtype, ours.device.type) == (
        real.shape,
        real.stride(),
        real.dtype,
        "neuron",
    )


def test_tied_weights_stay_tied_and_the_original_is_left_alone():
    network = Block()
    kept = copy.deepcopy(network.state_dict())
    made = hollow_module(network)
    assert made.head.weight is made.embedding.weight
    assert made.head.weight is not network.head.weight
    assert all(torch.equal(kept[name], value) for name, value in network.state_dict().items())
