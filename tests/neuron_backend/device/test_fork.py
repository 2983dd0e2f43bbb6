"""A child forked after first use gets an error in words, within a bounded time, and not a hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_FORK = """
import os, signal, sys, torch

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except RuntimeError as error:
            print(str(error).splitlines()[0], flush=True)
        else:
            print("no error", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""
_REFUSED = "device 'neuron' cannot be used in this process: it was forked after its parent used the device"


def test_a_child_forked_after_first_use_is_told_to_spawn(run_python: Callable[..., str]) -> None:
    script = f"""{_FORK}
x = torch.ones(2).to("neuron")
x + 1
assert not torch.neuron._is_in_bad_fork()
in_child(lambda: x + 1)
in_child(lambda: torch.empty(2, device="neuron"))
in_child(lambda: torch.arange(3, device="neuron"))
in_child(lambda: x.nonzero())
print((x + 1).tolist())
"""
    *refused, after = run_python(script).splitlines()
    assert len(refused) == 4
    for line in refused:
        assert line.startswith(_REFUSED)
        assert "set_start_method('spawn')" in line
    assert after == "[2.0, 2.0]", "the parent goes on"


@pytest.mark.soak
def test_a_child_forked_after_first_use_may_seed_and_work_on_the_cpu(run_python: Callable[..., str]) -> None:
    script = f"""{_FORK}
x = torch.ones(2).to("neuron")
def work():
    assert torch.neuron._is_in_bad_fork()
    torch.manual_seed(1)
    assert (torch.ones(2) + 1).tolist() == [2, 2]
in_child(work)
"""
    assert run_python(script) == "no error\n"


@pytest.mark.soak
def test_a_child_forked_before_first_use_may_use_the_device(run_python: Callable[..., str]) -> None:
    script = f"""{_FORK}
def work():
    assert (torch.ones(2).to("neuron") + 1).tolist() == [2, 2]
in_child(work)
"""
    assert run_python(script) == "no error\n"
