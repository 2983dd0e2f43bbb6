"""float64 with neuronx-cc and libnrt: tensors keep their type, programs have float32, and the user hears of it once.

The device adds the inputs of a program, whatever the program is; see tests/fakes/libnrt.c.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import neuron_backend
from neuron_backend import programs
from neuron_backend.compilers import neuronx_cc
from neuron_backend.eager import dispatch
from neuron_backend.runtimes import narrowing
from tests.fakes.programs import build_libnrt, install_neuronx_cc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SAID = "the Neuron device has no float64"
A, B = 1 / 3, 1 / 7


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Neuron host."""
    compiler = install_neuronx_cc(tmp_path_factory.mktemp("bin"))
    compiler.set_mode("uncompressed")
    return {
        "NEURON_BACKEND_COMPILER": "neuronx-cc",
        "NEURON_CACHE_COMPILER": str(compiler.program),
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_BACKEND_LIBNRT": str(build_libnrt(tmp_path_factory.mktemp("nrt"))),
    }


@pytest.fixture
def compiled(installed: dict[str, str], tmp_path: Path) -> Iterator[list[str]]:
    """A process on a Neuron host that has neither compiled nor warned yet; the texts that its compiler is given."""
    given: list[str] = []
    to_text = neuronx_cc.to_text

    def heard(code: bytes) -> str:
        given.append(to_text(code))
        return given[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in installed.items():
            patch.setenv(name, value)
        patch.setenv("NEURON_CACHE_NODE_DIR", str(tmp_path / "node"))
        patch.setattr(programs, "_programs", None)
        patch.setattr(narrowing, "_warned", threading.Event())
        patch.setattr(neuronx_cc, "to_text", heard)
        forget()
        yield given
        forget()
        if programs._programs is not None:
            programs._programs.close()


def forget() -> None:
    torch._dynamo.reset()
    dispatch.clear()


def pair(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([A, 1e300], dtype=dtype).to("neuron"), torch.tensor([B, 0.0], dtype=dtype).to("neuron")


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def check_sum(result: torch.Tensor) -> None:
    assert result.dtype == torch.float64
    assert result.device.type == "neuron"
    first, second = result.tolist()
    assert first == (torch.tensor(A) + torch.tensor(B)).item() != A + B  # each rounded to float32
    assert second == torch.inf


def test_operators_and_graphs_compute_float64_in_float32_and_it_is_said_once(compiled: list[str]) -> None:
    x, y = pair()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_sum(x + y)
        check_sum(torch.compile(add, backend="neuron")(x, y))
        check_sum(torch.add(x, y, alpha=1))
        assert (x * 3.5).dtype == torch.float64
        x.add_(y, alpha=0.5)
        assert x.dtype == torch.float64
    said = [each for each in caught if SAID in str(each.message)]
    assert len(said) == 1
    assert said[0].filename == __file__  # the user's own line
    assert len(compiled) >= 3
    assert not any("f64" in text for text in compiled)
    assert (A - x[:1].cpu()).abs().item() < 1  # and a copy to the host is exact: nothing of it is computed


def test_what_is_not_computed_stays_exact(compiled: list[str]) -> None:
    values = torch.tensor([A, 1e300, 2.0**53 - 1], dtype=torch.float64)
    moved = values.to("neuron")
    assert torch.equal(moved.clone().cpu(), values)
    assert moved.view(3, 1)[2].item() == 2.0**53 - 1
    assert compiled == []


def test_int64_beside_float64_goes_through_untouched(compiled: list[str]) -> None:
    large = [2**53 + 1, 2**62 + 1, -1]
    function = torch.compile(lambda x, y, n: (x + y, n + 1), backend="neuron")
    with pytest.warns(UserWarning, match=SAID):
        floats, integers = function(*pair(), torch.tensor(large).to("neuron"))
    check_sum(floats)
    assert integers.tolist() == large  # the only input of this size
    assert len(compiled) == 1


def test_a_job_in_float32_hears_nothing(compiled: list[str]) -> None:
    x, y = torch.tensor([A]).to("neuron"), torch.tensor([B]).to("neuron")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eager, graph = x + y, torch.compile(add, backend="neuron")(x, y)
    assert eager.dtype == graph.dtype == torch.float32
    assert eager.tolist() == graph.tolist()
    assert len(compiled) == 2


def test_a_default_device_does_not_move_the_memory_that_results_are_read_into(compiled: list[str]) -> None:
    with torch.device("neuron"), pytest.warns(UserWarning, match=SAID):
        result = add(*pair())
    check_sum(result)
    assert len(compiled) == 1


def training() -> Callable[[torch.Tensor], torch.Tensor]:
    """A model in float64 with an optimizer whose hyperparameters are inputs of its programs."""
    model = nn.Linear(3, 2, dtype=torch.float64).to("neuron")
    graph = torch.compile(model, backend="neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = graph(x).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.filterwarnings(f"ignore:{SAID}")
@pytest.mark.soak
def test_a_prewarm_without_the_chip_publishes_the_keys_that_a_job_in_float64_asks_for(
    compiled: list[str], installed: dict[str, str]
) -> None:
    environ = {**os.environ, **installed}
    for name in installed:
        os.environ.pop(name)  # the machine that prewarms has the stand-in; `compiled` puts all back
    x = torch.ones(4, 3, dtype=torch.float64)
    report = neuron_backend.compile_only(training(), [(x,)], as_is=True, environ=environ)
    assert report.complete
    assert report.count("compiled") == len(report.programs) == len(compiled)
    assert not any("f64" in text for text in compiled)
    os.environ.update(installed, NEURON_CACHE_ON_MISS="fail")
    forget()
    step = training()
    for _ in range(2):
        assert step(x.to("neuron")).dtype == torch.float64
    stats = neuron_backend.cache_stats()
    os.environ.pop("NEURON_CACHE_ON_MISS")
    assert stats["compiles"] == 0
    assert set(stats["keys"]) == {key for _, key in report.programs}


@pytest.mark.filterwarnings(f"ignore:{SAID}")
def test_what_was_prewarmed_for_the_chip_is_exact_again_on_the_stand_in(
    compiled: list[str], installed: dict[str, str]
) -> None:
    environ = {**os.environ, **installed}
    for name in installed:
        os.environ.pop(name)
    function = torch.compile(add, backend="neuron")
    x, y = pair()
    assert neuron_backend.compile_only(function, [(x, y)], environ=environ).complete
    with torch.no_grad():  # as it was captured
        assert function(x, y).tolist() == [A + B, 1e300]
    assert len(compiled) == 1
