"""What the device library does itself: copies, views, storage; and what torch builds on these."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn


def matrix() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.int32, torch.uint8, torch.complex64])
def test_copies_convert_types_as_the_cpu_does(source: torch.dtype, target: torch.dtype) -> None:
    host = (matrix() % 3).to(source)
    assert torch.equal(host.to("neuron").to(target).cpu(), host.to(target))
    assert torch.equal(host.to("neuron", target).cpu(), host.to(target))
    assert torch.equal(torch.empty(3, 4, dtype=target).copy_(host.to("neuron")), host.to(target))


def test_copies_between_any_strides() -> None:
    host = matrix()
    device = host.to("neuron")
    assert torch.equal(host.t().to("neuron").cpu(), host.t())
    assert torch.equal(device.t().cpu(), host.t())
    assert torch.equal(device[1:, ::2].cpu(), host[1:, ::2])
    assert torch.equal(device[0].expand(2, 4).cpu(), host[0].expand(2, 4))
    target = torch.zeros(4, 3).t()
    target.copy_(device)
    assert torch.equal(target, host)
    assert torch.equal(torch.zeros(4, 3, device="neuron").t().copy_(host).cpu(), host)


def test_lazily_conjugated_and_negated_tensors_are_copied() -> None:
    host = torch.complex(matrix(), -matrix())
    device = host.to("neuron")
    assert torch.equal(device.conj().cpu(), host.conj())
    assert torch.equal(device.conj().imag.cpu(), host.conj().imag)
    assert torch.equal(device.mT.conj().clone().cpu(), host.mT.conj())
    assert torch.equal(host.conj().to("neuron").resolve_conj().cpu(), host.conj())
    assert device.conj().imag[1, 2].item() == host.conj().imag[1, 2].item()


@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
def test_eigenvalues_and_transforms_of_lazy_tensors_do_not_end_the_process() -> None:
    lazy = matrix().to(torch.complex64).conj()
    torch.testing.assert_close(torch.fft.fft(lazy.to("neuron")).cpu(), torch.fft.fft(lazy))
    torch.testing.assert_close(torch.fft.fft(lazy.neuron().conj()).cpu(), torch.fft.fft(lazy.conj()))
    assert torch.linalg.eigvals(lazy[:3, :3].neuron().mH).shape == (3,)


def test_save_and_load() -> None:
    buffer = io.BytesIO()
    torch.save({"x": matrix().to("neuron")}, buffer)
    buffer.seek(0)
    assert str(torch.load(buffer, weights_only=True)["x"].device) == "neuron:0"
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, map_location="cpu", weights_only=True)["x"], matrix())


def test_deepcopy_and_state_dict() -> None:
    module = nn.Linear(3, 4).to("neuron")
    twin, other = copy.deepcopy(module), nn.Linear(3, 4).to("neuron")
    other.load_state_dict(module.state_dict())
    for each in (twin, other):
        assert isinstance(each.weight, nn.Parameter)
        assert each.weight.data_ptr() != module.weight.data_ptr()
        assert torch.equal(each.weight.cpu(), module.weight.cpu())


def test_methods_of_tensors_modules_and_storages() -> None:
    assert matrix().neuron().is_neuron
    assert nn.Linear(2, 2).neuron().weight.is_neuron
    assert matrix().neuron().untyped_storage().is_neuron


def test_item_and_truth() -> None:
    x = matrix().to("neuron")
    assert x.sum().item() == 66
    assert bool((x >= 0).all())
    assert x.tolist() == matrix().tolist()
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        x.item()


def test_resize_and_set() -> None:
    x = torch.empty(2, device="neuron")
    assert x.resize_(100).shape == (100,)
    y = torch.arange(6.0, device="neuron")
    assert x.set_(y).data_ptr() == y.data_ptr()
    assert torch.empty(0, device="neuron").set_(y.untyped_storage(), 2, (2, 2), (2, 1)).tolist() == [[2, 3], [4, 5]]
    assert x.set_().numel() == 0
    y.data = matrix().to("neuron")
    assert torch.equal(y.cpu(), matrix())
    with pytest.raises(RuntimeError):
        x.set_(matrix())


def test_what_a_device_tensor_cannot_be() -> None:
    x = matrix().to("neuron")
    with pytest.raises(TypeError, match="can't convert neuron"):
        x.numpy()
    with pytest.raises(RuntimeError, match="can be pinned"):
        torch.empty(2, pin_memory=True, device="neuron")


def test_a_data_loader_feeds_the_device() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(matrix()), batch_size=2, pin_memory=True)
    assert torch.equal(torch.cat([batch.to("neuron", non_blocking=True) for (batch,) in loader]).cpu(), matrix())
