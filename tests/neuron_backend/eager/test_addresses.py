"""The storage of a tensor stays where it is: flat buffers, registered memory and collectives rely on the address."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def _index(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([2, 0], device=x.device)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "exp_": lambda x: x.exp_(),
    "add_": lambda x: x.add_(x + 1),
    "mul_ by a number": lambda x: x.mul_(1.5),
    "relu_": lambda x: functional.relu(x.sub_(1), inplace=True),
    "clamp_": lambda x: x.clamp_(0.2, 0.8),
    "addcmul_": lambda x: x.addcmul_(x + 1, x + 2, value=0.5),
    "lerp_": lambda x: x.lerp_(x + 1, 0.3),
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 0),
    "index_put_": lambda x: x.index_put_((_index(x),), torch.ones(4, device=x.device)),
    "index_add_": lambda x: x.index_add_(0, _index(x), torch.ones(2, 4, device=x.device)),
    "index_copy_": lambda x: x.index_copy_(0, _index(x), torch.ones(2, 4, device=x.device)),
    "scatter_": lambda x: x.scatter_(0, _index(x)[:, None].expand(2, 4), 1),
    "cumsum_": lambda x: x.cumsum_(0),
    "tril_": lambda x: x.tril_(),
    "fill_": lambda x: x.fill_(2),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(torch.ones(4, 4, device=x.device)),
    "copy_ from the host": lambda x: x.copy_(torch.ones(4, 4)),
    "out=": lambda x: torch.mul(x, 2, out=x),
    "out= of a product": lambda x: torch.mm(x + 1, x, out=x),
    "out= of cat": lambda x: torch.cat([x[:2] + 1, x[2:] + 1], out=x),
    "a list": lambda x: torch._foreach_add_([x], 1),
    "a list and a list": lambda x: torch._foreach_addcdiv_([x], [x + 1], [x + 2], 0.5),
    "baddbmm_": lambda x: x[None].baddbmm_(x[None] + 0, x[None] + 1),
    "set by index": lambda x: x.__setitem__(slice(1, 3), 7),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0.5, torch.ones(16, device=x.device)),
}
RANDOM: dict[str, Callable[[torch.Tensor], object]] = {
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "random_": lambda x: x.random_(0, 10),
    "exponential_": lambda x: x.exponential_(),
    "dropout_": lambda x: functional.dropout(x, inplace=True),
    "kaiming_uniform_": torch.nn.init.kaiming_uniform_,
}
PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all of its storage": lambda base: base[:16].view(4, 4),
    "transposed": lambda base: base[:16].view(4, 4).t(),
    "behind others": lambda base: base[8:24].view(4, 4),
    "with gaps": lambda base: base.view(8, 4, 1)[::2, :, 0],
}


def _address(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.untyped_storage().data_ptr(), tensor.untyped_storage()._cdata


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
@pytest.mark.share(16)
def test_an_operator_that_writes_leaves_memory_where_it_is(name: str, place: str) -> None:
    """Whoever looked before sees the new values: other tensors of the storage, and who has its address."""
    size = 16 if place in {"all of its storage", "transposed"} else 32
    expected, base = torch.linspace(0.1, 0.9, size), torch.linspace(0.1, 0.9, size).to("neuron")
    target, on_cpu = PLACES[place](base), PLACES[place](expected)
    before = _address(target)
    host = torch.ops.neuron_device.as_cpu(base)
    for _ in range(3):  # the first call is Python's, those that follow are the device library's
        CHANGES[name](target)
        CHANGES[name](on_cpu)
        assert _address(target) == before
        torch.testing.assert_close(base.cpu(), expected)
        torch.testing.assert_close(host, expected)
        target.fill_(0.5)
        on_cpu.fill_(0.5)


@pytest.mark.parametrize("name", [*CHANGES, *RANDOM])
@pytest.mark.filterwarnings("ignore:operator .* runs on the CPU")
@pytest.mark.share(8)
def test_a_tensor_that_nobody_else_looks_at_stays_too(name: str) -> None:
    """No view and no host tensor keeps its memory: only its address is known."""
    x = torch.full((4, 4), 0.4, device="neuron")
    before = _address(x)
    for _ in range(3):
        (CHANGES | RANDOM)[name](x)
        assert _address(x) == before


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda given: torch.optim.SGD(given, 0.1, momentum=0.9), id="SGD"),
        pytest.param(lambda given: torch.optim.AdamW(given, 0.1, foreach=True), id="AdamW"),
        pytest.param(lambda given: torch.optim.Adam(given, 0.1, fused=True), id="Adam, fused"),
        pytest.param(lambda given: torch.optim.Adam(given, 0.1, foreach=False), id="Adam, one by one"),
    ],
)
def test_training_leaves_parameters_gradients_and_state_where_they_are(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)).to("neuron")
    optimizer = make(list(model.parameters()))

    def step() -> list[tuple[int, int, int]]:
        optimizer.zero_grad(set_to_none=False)
        model(torch.rand(8, 4, device="neuron")).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state = [each for row in optimizer.state.values() for each in row.values() if isinstance(each, torch.Tensor)]
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        return [_address(each) for each in (*model.parameters(), *model.buffers(), *gradients, *state)]

    first = step()
    weight = model[0].weight.detach().cpu()
    assert step() == first
    assert step() == first
    assert not torch.equal(model[0].weight.detach().cpu(), weight)


def test_a_flat_buffer_sees_what_its_parameters_become() -> None:
    flat = torch.linspace(0, 1, 12).to("neuron")
    parameters = [torch.nn.Parameter(flat[:8].view(2, 4)), torch.nn.Parameter(flat[8:])]
    for each in parameters:
        each.grad = torch.ones_like(each)
    torch.optim.SGD(parameters, 0.5).step()
    torch.testing.assert_close(flat.cpu(), torch.linspace(0, 1, 12) - 0.5)


def test_a_saved_tensor_that_was_changed_is_still_noticed() -> None:
    x = torch.rand(4, device="neuron", requires_grad=True)
    for _ in range(3):
        y = x.exp()
        version = y._version
        y.mul_(2)
        assert y._version == version + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_threads_that_write_one_storage_do_not_move_it() -> None:
    base = torch.zeros(8, 64, device="neuron")
    before = _address(base)

    def count(row: torch.Tensor) -> None:
        for _ in range(50):
            row.add_(1)

    threads = [threading.Thread(target=count, args=(row,)) for row in base]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _address(base) == before
    assert torch.equal(base.cpu(), torch.full((8, 64), 50.0))


def test_resize_set_and_data_do_what_torch_does() -> None:
    for device in ("cpu", "neuron"):
        x, other = torch.zeros(4, device=device), torch.ones(2, 2, device=device)
        storage = x.untyped_storage()._cdata
        x.exp_()
        x.resize_(100)
        assert x.untyped_storage()._cdata == storage
        x.set_(other)
        assert _address(x) == _address(other)
        x = torch.zeros(4, device=device)
        x.data = other
        assert _address(x) == _address(other)
        x.mul_(3)
        assert torch.equal(other.cpu(), torch.full((2, 2), 3.0))


def test_the_result_of_an_operator_without_out_is_a_tensor_of_its_own() -> None:
    """What torch makes for a result may take over the program's memory: what the caller has never does."""
    x, y = torch.rand(4, 4, device="neuron"), torch.rand(4, 4, device="neuron")
    for _ in range(4):
        kept = x + y
        before, values = _address(kept), kept.cpu()
        again = x + y
        assert _address(again)[1] != before[1]
        torch.add(x, x, out=kept)
        assert _address(kept) == before
        assert torch.equal(again.cpu(), values)
