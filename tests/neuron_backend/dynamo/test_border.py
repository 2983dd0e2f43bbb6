"""What crosses a compiled graph's border: results that are arguments, writes to arguments, arguments that overlap.

The judge is ``aot_eager`` or, where that is wrong itself, the function as it stands, on the same device.
"""

from __future__ import annotations

import gc
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import neuron_backend
from neuron_backend.lowering import capture, registry
from tests.support import unlowered

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "neuron"

pytestmark = [
    pytest.mark.filterwarnings("ignore:operator .* runs on the CPU:UserWarning"),
    # torch's own remarks, as Dynamo looks at a function
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def numbers(count: int = 12, start: float = 1.0) -> torch.Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).to(DEVICE)


# ------------------------------------------------------------------------------------------ writes in backward


class Writes(torch.autograd.Function):
    """Passes its input on, twofold; its backward changes the other arguments with ``change``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Callable[..., object], *held: torch.Tensor) -> torch.Tensor:
        ctx.change = change
        ctx.save_for_backward(*held)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        held = ctx.saved_tensors
        ctx.change(gradient, *held)
        return (gradient * 2, None, *(None for _ in held))


def amax(gradient: torch.Tensor, history: torch.Tensor) -> None:
    history.copy_(history.roll(1, 0))
    history[0] = gradient.abs().max()


def main_grad(gradient: torch.Tensor, total: torch.Tensor, weight: torch.Tensor) -> None:
    total.addcmul_(gradient.to(total.dtype), weight.to(total.dtype))


def scattered(gradient: torch.Tensor, held: torch.Tensor) -> None:
    index = torch.tensor([0, 2, 2], device=gradient.device)
    held.index_put_((index,), gradient[:3], accumulate=True)
    held.scatter_(0, index[:1], gradient[3:4])


CHANGES: dict[str, tuple[Callable[..., object], Callable[[], list[torch.Tensor]]]] = {
    "add_": (lambda _, b: b.add_(1), lambda: [numbers(4)]),
    "by the gradient": (lambda g, b: b.add_(g), lambda: [numbers(4)]),
    "a row of it": (lambda g, b: b[1].mul_(g), lambda: [numbers(8).view(2, 4)]),
    "a column of it": (lambda g, b: b[:, 1].sub_(g), lambda: [numbers(8).view(4, 2)]),
    "transposed": (lambda _, b: b.t().mul_(2), lambda: [numbers(8).view(4, 2).t()]),
    "a view of more": (lambda _, b: b.add_(1), lambda: [numbers(8)[2:6]]),
    "every other element": (lambda _, b: b.exp_(), lambda: [numbers(8)[::2]]),
    "another type": (lambda g, b: b.copy_(g), lambda: [torch.zeros(4, dtype=torch.float64).to(DEVICE)]),
    "broadcast": (lambda g, b: b.copy_(g), lambda: [numbers(8).view(2, 4)]),
    "two, one after the other": (lambda g, a, b: (a.add_(g), b.mul_(a)), lambda: [numbers(4), numbers(4, 5)]),
    "a list": (lambda g, a, b: torch._foreach_add_([a, b], [g, g]), lambda: [numbers(4), numbers(4, 5)]),
    "twice": (lambda g, b: (b.zero_(), b.add_(g), b.add_(g)), lambda: [numbers(4)]),
    "delayed scaling": (amax, lambda: [numbers(3)]),
    "a fused main gradient": (main_grad, lambda: [torch.zeros(4, device=DEVICE), numbers(4).bfloat16()]),
    "scattered": (scattered, lambda: [numbers(4)]),
    "a counter": (lambda _, b: b.add_(1), lambda: [torch.zeros((), dtype=torch.int64, device=DEVICE)]),
}


def state(tensors: list[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(each.tolist(), each.stride(), each.dtype, each.storage_offset()) for each in tensors]


@pytest.mark.parametrize("fallback", [False, True], ids=["program", "operator by operator"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.share(5)
def test_what_a_backward_writes_is_seen_by_who_holds_the_tensor(change: str, *, fallback: bool) -> None:
    function, make = CHANGES[change]

    def outer(x: torch.Tensor, *held: torch.Tensor) -> torch.Tensor:
        x = unlowered.unlowered(x) if fallback else x
        return Writes.apply(x, function, *held)

    outcomes = []
    for backend in ("aot_eager", "neuron"):
        torch._dynamo.reset()
        held, x = make(), numbers(4).requires_grad_()
        before = [(each._version, each.untyped_storage()._cdata) for each in held]
        torch.compile(outer, backend=backend, fullgraph=True)(x, *held).sum().backward()
        changed = [
            (each._version > old, each.untyped_storage()._cdata == place)
            for each, (old, place) in zip(held, before, strict=True)
        ]
        outcomes.append((state([*held, x, x.grad]), changed))
    assert outcomes[0] == outcomes[1]
    assert (unlowered.NAME in neuron_backend.get_fallback_ops()) is fallback


# ------------------------------------------------------------------------------------------- writes in forward


@torch.library.custom_op("neff_cache_tests::bump", mutates_args={"held"})
def bump(held: torch.Tensor, by: float) -> None:
    """Write to an argument, as a user's own operator may."""
    held.add_(by)


@bump.register_fake
def _(held: torch.Tensor, by: float) -> None:
    del held, by


def set_(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a.set_(b)
    return x + 1


FORWARD: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "running statistics": lambda x, a, b: nn.functional.batch_norm(x.view(2, 2), a, b, training=True),
    "running statistics, undeclared": lambda x, a, b: torch.native_batch_norm(
        x.view(2, 2), None, None, a, b, training=True, momentum=0.1, eps=1e-5
    )[0],
    "an operator of the user's": lambda x, a, _: (bump(a, 2.0), x + a.sum())[1],
    "an operator of the user's, on a view": lambda x, a, _: (bump(a[1:], 2.0), x + a.sum())[1],
    "another storage": set_,
    "another size": lambda x, a, _: (a.resize_(1), x + 1)[1],
    "two that change places": lambda x, a, b: (a.copy_(b.clone() + 0 * b.copy_(a)), x + 1)[1],
    "hidden from autograd": lambda x, a, _: (a.data.mul_(2), x * a.sum())[1],
    "random numbers": lambda x, a, _: (a.normal_().zero_(), x + 1)[1],
    "a list": lambda x, a, b: (torch._foreach_mul_([a, b], 2.0), x + a.sum())[1],
    "a mask": lambda x, a, b: (a.masked_fill_(b > 5, 7), x + 1)[1],
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.share(4)
def test_what_a_forward_writes_is_what_aot_eager_writes(name: str) -> None:
    outcomes = []
    for backend in ("aot_eager", "neuron"):
        torch._dynamo.reset()
        inputs = [numbers(4).requires_grad_(), numbers(2), numbers(2, 5)]
        versions = [each._version for each in inputs]
        result = torch.compile(FORWARD[name], backend=backend)(*inputs)
        result.sum().backward()
        changed = [each._version > before for each, before in zip(inputs, versions, strict=True)]
        outcomes.append((state([result, *inputs, inputs[0].grad]), changed))
    assert outcomes[0] == outcomes[1]


# --------------------------------------------------------------------------------- what a training forward holds


def test_a_training_forward_holds_no_copy_of_its_weights() -> None:
    network = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(DEVICE)
    weights = sum(each.numel() * 4 for each in network.parameters())
    compiled = torch.compile(network, backend="neuron")
    x = torch.ones(1, 512, device=DEVICE)
    compiled(x).sum().backward()
    gc.collect()
    before = torch.neuron.memory_allocated()
    result = compiled(x)
    assert torch.neuron.memory_allocated() - before < weights / 10
    result.sum().backward()


def test_a_saved_weight_that_is_changed_before_backward_raises_as_it_does_in_eager() -> None:
    network = nn.Linear(3, 3).to(DEVICE)
    x = torch.ones(1, 3, device=DEVICE, requires_grad=True)
    loss = torch.compile(network, backend="neuron")(x).sum()
    with torch.no_grad():
        network.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


RESULTS: dict[str, Callable[..., object]] = {
    "itself": lambda x: (x, x + 1),
    "itself twice": lambda x: (x, x, x * 2),
    "only itself": lambda x: x,
    "transposed": lambda x: (x.t(), x.sum()),
    "a part": lambda x: (x[1:], x.unbind()[0], x + 1),
    "expanded": lambda x: x[0].expand(3, 4),
    "None and a number": lambda x: (None, 3, x, x.sum()),
    "written, then shown": lambda x: (x.add_(1), x.t(), x.sum()),
    "bits": lambda x: (x.view(torch.int32), x + 1),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.share(5)
def test_a_result_that_shows_an_argument_is_that_argument(name: str, *, training: bool) -> None:
    function = RESULTS[name]
    outcomes = []
    for backend in ("eager", "neuron"):
        torch._dynamo.reset()
        base = numbers(12).requires_grad_(training)
        x = (base * 1).view(3, 4)
        results = torch.compile(function, backend=backend)(x)
        leaves = list(results) if isinstance(results, tuple) else [results]
        shared = [
            (each.untyped_storage()._cdata == x.untyped_storage()._cdata, each.tolist(), each.stride())
            if isinstance(each, torch.Tensor)
            else each
            for each in leaves
        ]
        outcomes.append((shared, x.tolist()))
    assert outcomes[0] == outcomes[1]


# ------------------------------------------------------------------------------------------------- overlap


def apart() -> list[torch.Tensor]:
    return [numbers(4), numbers(4, 5)]


def overlapping(by: int) -> Callable[[], list[torch.Tensor]]:
    def make() -> list[torch.Tensor]:
        base = numbers(10)
        return [base[:4], base[by : by + 4], base]

    return make


def twice() -> list[torch.Tensor]:
    base = numbers(4)
    return [base, base]


def two_views() -> list[torch.Tensor]:
    base = numbers(4)
    return [base.view(-1), base.view(-1), base]


def as_integers() -> list[torch.Tensor]:
    base = numbers(8)
    return [base[:4], base.view(torch.int32)[2:6], base]


def float_and_integers() -> list[torch.Tensor]:
    return [numbers(4), torch.arange(4, dtype=torch.int32).to(DEVICE)]


def columns() -> list[torch.Tensor]:
    base = numbers(8).view(4, 2)
    return [base[:, 0], base[:, 1], base]


def columns_apart() -> list[torch.Tensor]:
    return [numbers(8).view(4, 2)[:, 0], numbers(8, 5).view(4, 2)[:, 0]]


def detached() -> list[torch.Tensor]:
    base = numbers(8)
    return [base.detach()[:4], base.detach()[2:6], base]


ORDERS: dict[str, list[Callable[[], list[torch.Tensor]]]] = {
    "apart, then overlapping": [apart, overlapping(2)],
    "overlapping, then apart": [overlapping(2), apart],
    "overlapping, then otherwise": [overlapping(2), overlapping(1), overlapping(2)],
    "apart, then the same memory": [apart, two_views],
    "the same memory, then apart": [two_views, apart],
    "apart, then one tensor twice": [apart, twice],
    "one tensor twice, then overlapping": [twice, apart, overlapping(1)],
    "bytes of another type": [float_and_integers, as_integers],
    "bytes of another type first": [as_integers, float_and_integers],
    "views that autograd does not know": [detached, apart, detached],
}

# They overlap in extent or lie in one storage, but have no bytes in common: nothing to slow down for.
HARMLESS: dict[str, list[Callable[[], list[torch.Tensor]]]] = {
    "next to each other": [apart, overlapping(4)],
    "columns of a matrix": [columns_apart, columns],
}


def writes_first(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mul_(2) * w, (x + y) * w


def writes_second(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y.add_(1)
    return ((x * y * w).sum(),)


def writes_in_backward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (Writes.apply(w, lambda _, a, b: (a.add_(1), b.mul_(2)), x, y),)


def writes_without_program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (unlowered.unlowered(x.mul_(2) * w), x + y)


WRITERS = [writes_first, writes_second, writes_in_backward, writes_without_program]


def in_order(
    function: Callable[..., Any], order: list[Callable[[], list[torch.Tensor]]], *, training: bool
) -> list[object]:
    outcome: list[object] = []
    for make in order:
        x, y, *rest = make()
        w = torch.full((4,), 3.0, device=DEVICE, requires_grad=training)
        results = function(x, y, w)
        if training:
            sum(each.sum() for each in results if each.requires_grad).backward()
            outcome.append(w.grad.tolist())
        outcome.append([each.tolist() for each in (*results, x, y, *rest)])
    return outcome


@pytest.mark.filterwarnings("ignore:graph .* overlap in memory:UserWarning")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.share(6)
def test_arguments_that_overlap_give_what_eager_gives(
    order: str, writer: Callable[..., Any], *, training: bool
) -> None:
    expected = in_order(writer, ORDERS[order], training=training)
    assert in_order(torch.compile(writer, backend="neuron"), ORDERS[order], training=training) == expected


@pytest.mark.filterwarnings("error:graph .* overlap in memory:UserWarning")
@pytest.mark.parametrize("order", HARMLESS)
def test_arguments_that_share_no_bytes_stay_a_program(order: str) -> None:
    expected = in_order(writes_first, HARMLESS[order], training=True)
    assert in_order(torch.compile(writes_first, backend="neuron"), HARMLESS[order], training=True) == expected


@pytest.mark.filterwarnings("ignore:graph .* overlap in memory:UserWarning")
def test_overlap_is_seen_where_sizes_change_between_calls() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mul_(2), x + y

    def calls(function: Callable[..., Any]) -> list[object]:
        outcome = []
        for size, by in [(4, 9), (5, 9), (6, 2), (6, 9), (6, 1), (7, 3), (7, 9)]:
            base = numbers(20)
            x, y = base[:size], base[by : by + size]
            outcome.append([each.tolist() for each in (*function(x, y), base)])
        return outcome

    assert calls(torch.compile(function, backend="neuron")) == calls(function)


def test_an_overlap_is_told_once_and_refused_where_fallback_is_off() -> None:
    calm = torch.compile(writes_first, backend="neuron")
    strict = torch.compile(writes_first, backend="neuron", options={"fallback": False})
    w = numbers(4)
    calm(*apart(), w)
    with pytest.warns(UserWarning, match=r"inputs \d and \d\), one of which it writes to.* clone one of them") as told:
        calm(*overlapping(2)()[:2], w)
    calm(*overlapping(2)()[:2], w)  # a second warning would be an error
    assert len(told) == 1
    torch._dynamo.reset()
    strict(*apart(), w)
    with pytest.raises(RuntimeError, match="overlap in memory.*clone one of them, or allow fallback"):
        strict(*overlapping(2)()[:2], w)


# ------------------------------------------------------------------------------------------- storage_offset

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "begins later": lambda base: base[3:9],
    "begins elsewhere": lambda base: base[5:11],
    "transposed, later": lambda base: base[2:8].view(2, 3).t(),
    "with gaps": lambda base: base[::2],
    "whole": lambda base: base,
}

STRIDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "below its own offset": lambda x: x.as_strided((2,), (1,), 0) + 1,
    "above it": lambda x: x.as_strided((2,), (1,), 9) + 1,
    "at it": lambda x: x.as_strided((2,), (1,)) + 1,
    "overlapping": lambda x: x.as_strided((3, 2), (1, 1), 1) * 2,
    "a view": lambda x: x.as_strided((2,), (1,), 1),
    "a copy": lambda x: torch.as_strided_copy(x, (2,), (1,), 4),
    "of a view of a result": lambda x: (x * 2)[2:].as_strided((2,), (1,), 0) + 1,
    "of gaps in a result": lambda x: (x * 2)[::2].as_strided((2,), (1,), 1) + 1,
    "scattered": lambda x: torch.as_strided_scatter(x, torch.full((2,), 9.0, device=x.device), (2,), (1,), 4),
    "written around": lambda x: (x.as_strided((2,), (1,), 1).add_(1), x.sum()),
    "unfolded": lambda x: x.reshape(-1).unfold(0, 3, 1) + 1,
}


def strided(function: Callable[..., Any], layouts: list[str], *, training: bool) -> list[object]:
    outcome: list[object] = []
    for layout in layouts:
        base = numbers(12).requires_grad_(training)
        shown = base * 1
        results = function(LAYOUTS[layout](shown))
        leaves = list(results) if isinstance(results, tuple) else [results]
        if training:
            sum(each.sum() for each in leaves).backward()
            outcome.append(base.grad.tolist())
        outcome.append(([each.tolist() for each in leaves], shown.tolist()))
    return outcome


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.share(6)
def test_what_is_read_by_strides_is_where_the_storage_has_it(name: str, first: str, *, training: bool) -> None:
    if name in {"scattered", "written around"} and training:
        pytest.skip("torch has no gradient of that for every layout")
    layouts = [first, "begins later", "begins elsewhere"]
    expected = strided(STRIDED[name], layouts, training=training)
    assert strided(torch.compile(STRIDED[name], backend="neuron"), layouts, training=training) == expected


@pytest.mark.parametrize("name", ["below its own offset", "above it", "overlapping", "of a view of a result"])
def test_reading_by_strides_is_part_of_a_program(name: str) -> None:
    function = torch.compile(STRIDED[name], backend="neuron", options={"fallback": False})
    assert function(numbers(12)[3:9]).tolist() == STRIDED[name](numbers(12)[3:9]).tolist()


@torch._dynamo.config.patch(recompile_limit=2)
def test_places_beyond_the_limit_run_operator_by_operator() -> None:
    function = torch.compile(STRIDED["unfolded"], backend="neuron")
    for begin in range(2):
        function(numbers(12)[begin : begin + 6])
    with pytest.warns(UserWarning, match="compiled for 2 places .* clone what is a view, or raise the limit"):
        result = function(numbers(12)[4:10])
    assert result.tolist() == STRIDED["unfolded"](numbers(12)[4:10]).tolist()


# ----------------------------------------------------------------------------------------- errors of our own


def broken(*_arguments: object) -> Any:
    raise ValueError("nobody thought of this")


@pytest.fixture
def _broken_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._HANDLERS, "aten.sin.default", broken)


BUG = r"a bug of neff-cache: .*aten\.sin\.default.*nobody thought of this.*please report this sentence"


@pytest.mark.usefixtures("_broken_sine")
@pytest.mark.filterwarnings("default:operator .* runs on the CPU:UserWarning")
def test_a_lowering_that_fails_is_called_our_bug_and_the_job_goes_on() -> None:
    x = numbers(3)
    with pytest.warns(UserWarning, match=BUG):
        result = torch.compile(lambda x: x.sin() * 2, backend="neuron")(x)
    torch.testing.assert_close(result.cpu(), x.cpu().sin() * 2)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=BUG):
        torch.compile(lambda x: x.sin() * 3, backend="neuron", options={"fallback": False})(x)


@pytest.mark.usefixtures("_broken_sine")
@pytest.mark.filterwarnings("default:operator .* runs on the CPU:UserWarning")
def test_an_eager_lowering_that_fails_is_called_our_bug() -> None:
    x = numbers(3, 0.5)[None, None, None]  # a shape that no other test has a plan for
    with pytest.warns(UserWarning, match=BUG):
        result = x.sin()
    torch.testing.assert_close(result.cpu(), x.cpu().sin())


# As if it stood in the package, with a mistake in it.
misspelt = types.FunctionType((lambda x: x.no_such_thing()).__code__, {"__name__": "neuron_backend.lowering.made_up"})


@pytest.mark.filterwarnings("default:operator .* runs on the CPU:UserWarning")
def test_a_decomposition_of_ours_that_cannot_be_traced_is_called_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "decompositions", lambda: {torch.ops.aten.cos.default: misspelt})
    x = numbers(3, 0.5)[None, None, None]
    with pytest.warns(UserWarning, match=r"a bug of neff-cache: tracing it failed: AttributeError.*please report"):
        result = x.cos()
    torch.testing.assert_close(result.cpu(), x.cpu().cos())
