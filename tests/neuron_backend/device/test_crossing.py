"""Tensors of the device that go to another process arrive there, as copies; what cannot be shared says so."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


def crossed(value: Any) -> Any:
    """Return ``value`` as a queue or pipe hands it to another process."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_a_tensor_arrives_on_its_device_with_its_values(dtype: torch.dtype) -> None:
    host = (torch.arange(12) % 3).reshape(3, 4).to(dtype)
    arrived = crossed(host.to("neuron").t()[1:])
    assert (str(arrived.device), arrived.dtype, arrived.stride()) == ("neuron:0", dtype, (1, 4))
    assert torch.equal(arrived.cpu().to(torch.complex64), host.t()[1:].to(torch.complex64))


def test_what_arrives_is_a_copy_and_views_sent_together_still_share() -> None:
    sent = torch.arange(4.0, device="neuron")
    whole, part = crossed((sent, sent[2:]))
    whole[2] = 9
    assert part.tolist() == [9, 3]
    assert sent.tolist() == [0, 1, 2, 3]


def test_nothing_at_all_arrives_too() -> None:
    assert crossed(torch.empty(0, 3, device="neuron")).shape == (0, 3)
    assert crossed(torch.arange(3, device="neuron")[3:]).shape == (0,)


def test_parameters_and_modules_arrive_as_what_they_are() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to("neuron")
    arrived = crossed(module)
    assert isinstance(arrived[0].weight, nn.Parameter)
    assert arrived[0].weight.requires_grad
    for name, value in module.state_dict().items():
        assert arrived.state_dict()[name].device.type == "neuron"
        assert torch.equal(arrived.state_dict()[name].cpu(), value.cpu())
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        crossed(module[0].weight * 2)


def test_tensors_of_the_cpu_are_shared_with_the_other_process_as_before() -> None:
    sent = torch.zeros(3)
    arrived = crossed(sent)
    arrived[1] = 7
    assert sent.tolist() == [0, 7, 0]
    assert torch.zeros(2).share_memory_().is_shared()


@pytest.mark.parametrize(
    "share", [lambda: torch.ones(2, device="neuron").share_memory_(), nn.Linear(2, 2).neuron().share_memory]
)
def test_memory_that_cannot_be_shared_says_so(share: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"memory of neuron:0 cannot be shared .* arrives there as a copy.*cpu\(\)"):
        share()


# Nothing is computed here but what a loader's batches are made of: a first operator takes seconds.
_WORKERS = """
import copy, torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    values = torch.arange(4.0).to("neuron")
    METHOD = {method!r}
    if {pool}:
        with torch.multiprocessing.get_context(METHOD).Pool(1) as pool:
            results = pool.map(copy.deepcopy, [values[:2], values[2:]])
    else:
        loader = DataLoader(TensorDataset(values), batch_size=2, num_workers=1, multiprocessing_context=METHOD)
        results = [batch for batch, in loader]
    print([str(result.device) for result in results], [result.tolist() for result in results])
"""


@pytest.mark.parametrize("pool", [False, True], ids=["loader", "pool"])
def test_spawned_workers_work_with_tensors_of_the_device_as_the_error_for_forked_ones_says(
    run_python: Callable[..., str], *, pool: bool
) -> None:
    printed = run_python(_WORKERS.format(method="spawn", pool=pool))
    assert printed == "['neuron:0', 'neuron:0'] [[0.0, 1.0], [2.0, 3.0]]\n"


def test_a_forked_worker_of_a_loader_is_told_to_spawn(run_python: Callable[..., str]) -> None:
    job = _WORKERS.format(method="fork", pool=False)
    printed = run_python(f"try:\n    exec({job!r})\nexcept RuntimeError as error:\n    print(error)")
    assert "forked after its parent used the device" in printed
    assert "set_start_method('spawn')" in printed


def test_a_tensor_for_a_device_that_this_process_has_not_is_refused() -> None:
    from neuron_backend.device.crossing import _arrived  # noqa: PLC0415 - what a message from a larger process names

    with pytest.raises(RuntimeError, match="there is no device neuron:5"):
        _arrived(b"1234", 5)
