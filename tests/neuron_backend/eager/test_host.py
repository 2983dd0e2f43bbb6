"""Operators that run on the CPU: counted, warned of once, and right."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch

import neuron_backend
from client.errors import CompileError, Failure
from neuron_backend import programs
from neuron_backend.eager import dispatch


@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
def test_results_whose_shape_depends_on_values() -> None:
    host = torch.arange(6.0)
    x = host.to("neuron")
    assert torch.equal(x[x > 2].cpu(), host[host > 2])
    assert torch.equal(x.nonzero().cpu(), host.nonzero())
    assert torch.equal((x // 2).unique().cpu(), (host // 2).unique())
    assert torch.equal(x, x.clone())
    assert x.nonzero().device.type == "neuron"


def test_an_operator_is_warned_of_once_and_counted_each_time() -> None:
    x = torch.arange(6.0).to("neuron")
    with pytest.warns(UserWarning, match=r"aten\.nonzero\.default runs on the CPU, not on neuron: the shape") as caught:
        x.nonzero()
    assert caught[0].filename == __file__, "the warning points at the user's line"
    x.nonzero()
    assert neuron_backend.get_fallback_ops() == {"aten.nonzero.default": 2}
    neuron_backend.clear_fallback_ops()
    assert neuron_backend.get_fallback_ops() == {}
    with pytest.warns(UserWarning, match="nonzero"):
        x.nonzero()


def test_a_draw_on_neuron_leaves_the_cpu_generator_alone() -> None:
    before = torch.get_rng_state()
    torch.native_dropout(torch.ones(8, device="neuron"), 0.5, train=True)
    torch.randn(3, device="neuron")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x @ x,
        lambda x: x + torch.ones(7, device=x.device),
        lambda x: torch.cat([x, x[0]]),
        lambda x: x.sum(5),
        lambda x: x.reshape(5),
        lambda x: torch.nn.functional.conv2d(x, x),
        lambda x: x.long() @ x.t(),
        lambda x: x.gather(1, x),
    ],
)
def test_wrong_arguments_give_torchs_own_error(wrong: object) -> None:
    assert callable(wrong)
    host = torch.ones(3, 4)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        wrong(host)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(expected.type):
            wrong(host.to("neuron"))
    assert neuron_backend.get_fallback_ops() == {}


def test_tensors_of_two_devices_are_refused() -> None:
    x = torch.ones(3, device="neuron")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.dot(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="device"):
        x + torch.ones(3)


def test_a_compiler_failure_is_raised_and_never_turned_into_a_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise CompileError(Failure("diagnosis", "NCC_E123: no", ""))

    monkeypatch.setattr(programs, "get", fail)
    x = torch.ones(3, 9, 1, device="neuron")
    with pytest.raises(CompileError, match="NCC_E123"):
        torch.sinh(x)
    monkeypatch.undo()
    assert torch.equal(torch.sinh(x).cpu(), torch.sinh(torch.ones(3, 9, 1)))
    assert neuron_backend.get_fallback_ops() == {}


def test_an_operator_that_a_user_wrote_for_the_cpu_runs_there() -> None:
    library = torch.library.Library("neff_cache_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    with pytest.warns(UserWarning, match="neff_cache_test"):
        result = torch.ops.neff_cache_test.twice(torch.ones(3, device="neuron"))
    assert torch.equal(result.cpu(), torch.full((3,), 2.0))


def test_printing_a_tensor_compiles_nothing(programs_made: object) -> None:
    assert callable(programs_made)
    text = repr(torch.arange(4.0).to("neuron") / 1)
    before = programs_made()
    assert repr(torch.tensor([0.5, 1.0]).to("neuron")) == "tensor([0.5000, 1.0000], device='neuron:0')"
    assert text.endswith("device='neuron:0')")
    assert programs_made() == before
    assert neuron_backend.get_fallback_ops() == {}


@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_scalars_compiled_in_can_still_end_on_the_cpu() -> None:
    x = torch.ones(2, dtype=torch.complex32).to("neuron")
    for value in (0.5, 0.25):
        assert torch.equal((x * value).cpu().to(torch.complex64), (x.cpu() * value).to(torch.complex64))
    assert set(neuron_backend.get_fallback_ops()) == {"aten.mul.out"}


def test_the_table_keeps_no_generator_alive() -> None:
    generator = torch.Generator("neuron")
    seen = weakref.ref(generator)
    torch.randn(3, device="neuron", generator=generator)
    del generator
    gc.collect()
    assert seen() is None


def test_forgetting_plans_changes_nothing_but_time() -> None:
    x = torch.ones(3, device="neuron")
    first = (x + 1).cpu()
    dispatch.clear()
    assert torch.equal((x + 1).cpu(), first)
