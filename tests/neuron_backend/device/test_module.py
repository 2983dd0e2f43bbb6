"""``torch.neuron`` and what torch makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def test_torch_knows_the_device() -> None:
    assert torch.neuron.is_available()
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.device("neuron:0").type == "neuron"


def test_a_device_that_is_not_there_is_an_error() -> None:
    for wrong in (lambda: torch.empty(1, device="neuron:63"), lambda: torch.ones(1).to("neuron:63")):
        with pytest.raises(RuntimeError, match="there is no device neuron:63"):
            wrong()
    with pytest.raises(RuntimeError, match="there is no device neuron:63"):
        torch.neuron.set_device(63)
    with pytest.raises(RuntimeError, match="there is no device neuron:63"):
        torch.neuron.memory_allocated(63)
    with pytest.raises(ValueError, match="expected a neuron device"):
        torch.neuron.set_device("cpu")


def test_streams_and_events_of_a_device_that_finishes_at_once() -> None:
    torch.neuron.synchronize()
    torch.accelerator.synchronize()
    assert torch.neuron.current_stream() == torch.accelerator.current_stream()
    first, second = torch.Event("neuron", enable_timing=True), torch.Event("neuron", enable_timing=True)
    first.record()
    second.record()
    assert second.query()
    assert first.elapsed_time(second) >= 0


def test_a_seed_is_a_seed() -> None:
    torch.manual_seed(3)
    state = torch.neuron.get_rng_state()
    first = torch.randn(4, device="neuron")
    assert torch.neuron.initial_seed() == 3
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="neuron").cpu(), first.cpu())
    torch.neuron.manual_seed(3)
    assert torch.equal(torch.randn(4, device="neuron").cpu(), first.cpu())
    states = torch.neuron.get_rng_state_all()
    torch.neuron.seed_all()
    torch.neuron.set_rng_state_all(states)
    assert torch.equal(torch.neuron.get_rng_state(), states[0])


def test_fork_rng_restores_the_device() -> None:
    before = torch.neuron.get_rng_state()
    with torch.random.fork_rng(device_type="neuron"):
        torch.randn(4, device="neuron")
    assert torch.equal(torch.neuron.get_rng_state(), before)


def test_a_generator_can_be_copied() -> None:
    generator = torch.Generator("neuron").manual_seed(7)
    twin = generator.clone_state()
    one = torch.randn(3, device="neuron", generator=generator)
    assert torch.equal(one.cpu(), torch.randn(3, device="neuron", generator=twin).cpu())
    assert generator.device == torch.device("neuron:0")


def test_several_devices(run_python: Callable[..., str]) -> None:
    script = """
import threading, torch
x = torch.arange(4.0)
a, b = x.to("neuron:0"), x.to("neuron:1")
assert torch.accelerator.device_count() == torch.neuron.device_count() == 3
assert str((b + 1).device) == "neuron:1" and torch.equal((b + 1).cpu(), x + 1)
assert torch.equal(b.to("neuron:0").cpu(), x) and torch.equal(a.clone().copy_(b).cpu(), x)
try:
    torch.dot(a, b)
except RuntimeError as error:
    assert "at least two devices, neuron:0 and neuron:1" in str(error), error
else:
    raise AssertionError("mixed devices")
with torch.neuron.device(2):
    assert torch.empty(1, device="neuron").device.index == torch.neuron.current_device() == 2
    assert torch.arange(3, device="neuron").device.index == 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
    thread.start(); thread.join()
    assert seen == [0], "the current device belongs to the thread"
assert torch.neuron.current_device() == 0
with torch.neuron.device(None), torch.device("neuron:1"):
    assert torch.ones(2).device.index == 1
assert torch.neuron.memory_allocated(1) > 0 and torch.neuron.memory_allocated(2) == 0
torch.neuron.manual_seed_all(1)
states = torch.neuron.get_rng_state_all()
torch.randn(2, device="neuron:1")
assert [torch.equal(one, other) for one, other in zip(states, torch.neuron.get_rng_state_all())] == [True, False, True]
p = b.clone().requires_grad_()
(p * p).sum().backward()
assert p.grad.device.index == 1
print("done")
"""
    assert run_python(script, NEURON_BACKEND_DEVICES="3") == "done\n"
