"""Every operator of torch's database that writes to a tensor, in forward and backward graphs, lowered and not.

After each run all inputs are compared with ``aot_eager``'s, not only results: values, strides, whether the version
counter moved, whether the storage is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.support import unlowered
from tests.sweep.comparing import difference
from tests.sweep.entries import DEVICE, ENTRIES, UNINITIALISED, Sample, dtype_of, on_neuron, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[..., object]

_RANDOM = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand", "uniform")


def in_place(sample: Sample) -> tuple[Change, list[torch.Tensor]]:
    """The in-place variant, on the sample's first tensor."""

    def change(*tensors: torch.Tensor) -> object:
        value, args, kwargs = _arguments(sample, tensors)
        return sample.entry.inplace_variant(value, *args, **kwargs)

    return change, sample.placed(gradient=False)


def into_out(sample: Sample) -> tuple[Change, list[torch.Tensor]]:
    """The variant with ``out=``, on a tensor like the result that comes before the sample's own."""
    result = sample.run(sample.tensors)
    if not isinstance(result, torch.Tensor):
        return lambda *_: None, []

    def change(out: torch.Tensor, *tensors: torch.Tensor) -> object:
        value, args, kwargs = _arguments(sample, tensors)
        return sample.entry(value, *args, **{**kwargs, "out": out})

    return change, [torch.zeros_like(result).to(DEVICE), *sample.placed(gradient=False)]


VARIANTS = {"in place": in_place, "out": into_out}


def _arguments(sample: Sample, tensors: tuple[torch.Tensor, ...]) -> Any:
    flat, spec = tree_flatten(sample.arguments)
    given = iter(tensors)
    return tree_unflatten([next(given) if isinstance(each, torch.Tensor) else on_neuron(each) for each in flat], spec)


def cases() -> Iterator[tuple[str, str]]:
    for name, entry in ENTRIES.items():
        if dtype_of(entry, torch.float32, gradient=False) is None or name in UNINITIALISED or "out" in name.split("."):
            continue
        if name.startswith("sparse."):  # its samples cannot be on the device
            continue
        if entry.inplace_variant is not None:
            yield name, "in place"
        if entry.supports_out:
            yield name, "out"


class Backward(torch.autograd.Function):
    """Passes its input on; changes what was saved in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Change, *held: torch.Tensor) -> torch.Tensor:
        ctx.change = change
        ctx.save_for_backward(*held)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        held = ctx.saved_tensors
        ctx.change(*held)
        return (gradient * 2, None, *(None for _ in held))


def outcome(
    function: Callable[..., Any], tensors: list[torch.Tensor], *, backward: bool
) -> tuple[list[Any], list[Any]]:
    """Run ``function`` with ``tensors``: all values there are afterwards, and what became of the tensors themselves."""
    before = [(each._version, each.untyped_storage()._cdata) for each in tensors]
    x = torch.ones(3, device=DEVICE, requires_grad=backward)
    torch.manual_seed(3)
    results = function(x, *tensors)
    if backward:
        results.sum().backward()
    facts = [
        (each._version > version, each.untyped_storage()._cdata == storage, each.stride(), each.dtype, each.shape)
        for each, (version, storage) in zip(tensors, before, strict=True)
    ]
    values = [each for each in tree_flatten(results)[0] if isinstance(each, torch.Tensor)]
    return [*values, x, x.grad, *tensors], facts


def _programs(change: Change, *, backward: bool, lowered: bool) -> Callable[..., Any]:
    def run(x: torch.Tensor, *tensors: torch.Tensor) -> Any:
        x = x * 1 if lowered else unlowered.unlowered(x)
        if backward:
            return Backward.apply(x, change, *tensors)
        change(*tensors)
        return x + 1, tensors[0] * 1

    return run


def check(name: str, variant: str, *, backward: bool, lowered: bool) -> tuple[int, str]:
    """Return how many samples were compared, and in one line how they differ from ``aot_eager``, or nothing."""
    compared = 0
    for sample in samples(name, torch.float32, gradient=False, count=2):
        change, tensors = VARIANTS[variant](sample)
        if not tensors:
            continue
        function = _programs(change, backward=backward, lowered=lowered)
        outcomes = []
        for backend in ("aot_eager", "neuron"):
            torch._dynamo.reset()
            try:
                compiled = torch.compile(function, backend=backend)
                outcomes.append(outcome(compiled, [each.clone() for each in tensors], backward=backward))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what there is to say
                if backend == "neuron":
                    return compared, f"{type(error).__name__}: {' '.join(str(error).split())}"
                break  # the sample has no such variant, or AOTAutograd none of its own
        if len(outcomes) == len(("aot_eager", "neuron")):
            (expected, facts), (got, got_facts) = outcomes
            random = any(part in name for part in _RANDOM) or sample.shapes_only
            text = difference(got, expected, shapes_only=random)
            if not text and got_facts != facts:
                text = f"{got_facts} where aot_eager has {facts}"
            if text:
                return compared, text
            compared += 1
    return compared, ""
