from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MEBIBYTE = 1 << 20


def test_memory_is_counted_and_given_back() -> None:
    gc.collect()
    before = torch.neuron.memory_stats()
    torch.neuron.reset_peak_memory_stats()
    tensor = torch.empty(MEBIBYTE, dtype=torch.uint8, device="neuron")
    assert torch.neuron.memory_allocated() == before["bytes"] + MEBIBYTE
    view, more = tensor[10:], torch.empty(MEBIBYTE, dtype=torch.uint8, device="neuron")
    del tensor, more
    assert torch.neuron.memory_allocated() == before["bytes"] + MEBIBYTE, "a view keeps its base's memory"
    del view
    assert torch.neuron.memory_allocated() == before["bytes"]
    assert torch.neuron.max_memory_allocated() == before["bytes"] + 2 * MEBIBYTE
    assert torch.neuron.memory_stats()["allocations"] == before["allocations"] + 2


def test_results_of_programs_are_counted_too() -> None:
    x = torch.ones(1024, device="neuron")
    x + 1  # compiled here: what tracing leaves behind is not to be freed while we count
    gc.collect()
    before = torch.neuron.memory_allocated()
    y = x + 1
    assert torch.neuron.memory_allocated() == before + y.nbytes


def test_torchs_own_accelerator_functions_see_the_same_memory() -> None:
    tensor = torch.ones(1000, device="neuron")
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated() >= tensor.nbytes
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.neuron.max_memory_allocated()
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total


def test_memory_is_aligned() -> None:
    for size in (1, 3, 100):
        assert torch.empty(size, dtype=torch.uint8, device="neuron").data_ptr() % 64 == 0


def test_a_limit_gives_a_clear_error_and_nothing_is_lost(run_python: Callable[..., str]) -> None:
    script = """
import torch
kept = torch.zeros(600, dtype=torch.uint8, device="neuron")
try:
    torch.empty(600, dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
del kept
torch.empty(1000, dtype=torch.uint8, device="neuron")
print(torch.neuron.memory_stats()["out_of_memory"])
"""
    said, refused = run_python(script, NEURON_BACKEND_MEMORY_LIMIT="1000").splitlines()
    assert said.startswith("neuron:0 is out of memory: 600 bytes were asked for and 600 of 1000 bytes (NEURON_BACKEND_")
    assert refused == "1"


def test_a_warm_call_that_does_not_fit_says_so_and_the_next_one_works(run_python: Callable[..., str]) -> None:
    script = """
import torch
x = torch.ones(100, device="neuron")
for _ in range(3):
    x.exp()
kept = torch.empty(100, device="neuron")
try:
    x.exp()
except torch.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
del kept
print(x.exp().sum().item() > 0, torch.neuron.mem_get_info(), torch.neuron.memory_reserved())
"""
    said, after = run_python(script, NEURON_BACKEND_MEMORY_LIMIT="1300").splitlines()
    assert said.startswith("neuron:0 is out of memory: 400 bytes were asked for and ")
    assert "of 1300 bytes (NEURON_BACKEND_MEMORY_LIMIT)" in said
    assert after == "True (900, 1300) 400"


@pytest.mark.soak
def test_warm_calls_stay_on_the_device_of_their_tensors(run_python: Callable[..., str]) -> None:
    script = """
import torch
for _ in range(3):
    for index in (0, 1):
        x = torch.ones(3, device=f"neuron:{index}")
        with torch.neuron.device(1 - index):
            assert (x * 2.5).device == x.device == torch.exp(x).device
            assert torch.arange(3, device="neuron").device.index == 1 - index
print(torch.neuron.memory_allocated(0), torch.neuron.memory_allocated(1))
"""
    assert run_python(script, NEURON_BACKEND_DEVICES="2").split() == ["0", "12"]


@pytest.mark.soak
def test_a_limit_that_means_nothing_is_refused(run_python: Callable[..., str]) -> None:
    script = """
import torch
for _ in range(2):
    try:
        torch.empty(1, device="neuron")
    except ValueError as error:
        print(str(error).splitlines()[0])
"""
    printed = run_python(script, NEURON_BACKEND_MEMORY_LIMIT="8GB").splitlines()
    assert len(printed) == 2
    assert "NEURON_BACKEND_MEMORY_LIMIT='8GB' is no number of bytes" in printed[0]


def test_more_than_the_host_has_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1 << 60, dtype=torch.uint8, device="neuron")
    with pytest.raises(RuntimeError, match="overflow"):
        torch.empty(1 << 40, 1 << 40, device="neuron")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="neuron")


def test_a_storage_can_be_made_resized_and_filled() -> None:
    storage = torch.UntypedStorage(16, device="neuron")
    storage.fill_(3)
    storage.resize_(40)
    tensor = torch.empty(0, dtype=torch.uint8, device="neuron").set_(storage)
    assert tensor.shape == (40,)
    assert tensor[:16].cpu().tolist() == [3] * 16


def test_a_host_view_outlives_the_storage_it_looked_at() -> None:
    tensor = torch.arange(4.0).to("neuron")
    view = torch.ops.neuron_device.as_cpu(tensor)
    tensor.resize_(1000)
    assert view.tolist() == [0, 1, 2, 3]
    del tensor
    assert view.tolist() == [0, 1, 2, 3]


def test_a_tensor_takes_over_host_memory_without_a_copy() -> None:
    host = torch.arange(4.0)
    address = host.data_ptr()
    tensor = torch.ops.neuron_device.from_cpu(host, 0)
    del host
    assert tensor.data_ptr() == address
    assert tensor.tolist() == [0, 1, 2, 3]


def test_new_memory_has_fixed_values_where_determinism_is_asked_for() -> None:
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert torch.empty(3, device="neuron").isnan().all().item()
        assert torch.empty_strided((2,), (2,), dtype=torch.int8, device="neuron").tolist() == [127, 127]
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_pinned_memory_says_that_it_is() -> None:
    host = torch.arange(4.0)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not host.is_pinned()
    assert pinned.to("neuron", non_blocking=True).tolist() == host.tolist()
