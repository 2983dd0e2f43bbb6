"""For a target without float64 a graph is lowered as if it said float32: nothing of float64 comes into the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from neuron_backend.lowering import Lifted, lower, trace, trim, used_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.module import Module

LIMITS = torch.finfo(torch.float64)


def narrow(function: Callable[..., Any], *inputs: torch.Tensor, float64: bool = False) -> Module:
    graph = trace(function, inputs)
    trim(graph)
    used_inputs(graph)
    return lower(graph, float64=float64)


def single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to({torch.float64: torch.float32, torch.complex128: torch.complex64}.get(tensor.dtype, tensor.dtype))


def everything(x: torch.Tensor, z: torch.Tensor, whole: torch.Tensor) -> list[torch.Tensor]:
    """Inputs, constants, ramps, conversions within the graph, special functions, integers beside."""
    return [
        (x * 1.1 + torch.tensor([0.25, 1e300, -3.0], dtype=torch.float64)).clamp(max=3.0),
        z * z.conj(),
        torch.arange(0, 0.3, 0.1, dtype=torch.float64) + x.float().double().lgamma(),
        whole + 2**40,
        (x.sum() > 0).to(torch.int64),
        torch.arange(0.0, 0.5, 0.1),
        x.mean(0, keepdim=True).to(torch.bfloat16) + torch.ones(2, dtype=torch.float64, device="cpu"),
    ]


def test_a_program_for_the_chip_holds_no_float64_and_computes_what_float32_does(run_xla, text, same) -> None:
    inputs = [
        torch.tensor([0.3, 1.7, 2.2], dtype=torch.float64),
        torch.tensor([1 + 2j], dtype=torch.complex128),
        torch.tensor([2**50 + 1]),
    ]
    module = narrow(everything, *inputs)
    assert "f64" not in text(module)
    assert module.called_as is not None
    expected = everything(*inputs)
    assert [spec.dtype for spec in module.called_as.inputs] == [each.dtype for each in inputs]
    assert [(spec.dtype, spec.shape) for spec in module.called_as.outputs] == [
        (one.dtype, one.shape) for one in expected
    ]
    same(run_xla(module, [single(each) for each in inputs]), [single(each) for each in expected])


def test_a_mask_and_a_guard_against_zero_made_for_float64_do_their_work_in_float32(run_xla) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        hidden = x.masked_fill(x < 9, LIMITS.min)
        return [hidden.softmax(0), x * 0 / (x * 0 + LIMITS.tiny), x.clamp(max=torch.inf)]

    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    results = run_xla(narrow(function, x), [x.float()])
    assert [each.tolist() for each in results] == [each.tolist() for each in function(x)]


def test_the_module_of_float64_is_the_one_of_float32_so_that_both_share_a_key() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.gelu(x) * 0.3, x.sum(-1)]

    modules = [narrow(function, torch.ones(2, 3, dtype=dtype)) for dtype in (torch.float64, torch.float32)]
    assert modules[0].code == modules[1].code
    assert modules[0].signature == modules[1].signature
    assert modules[1].called_as is None


def test_a_graph_without_float64_has_one_module_for_all_targets() -> None:
    x = torch.ones(2, 3)
    assert len({narrow(lambda x: [x.tan() * 1e-40], x, float64=float64).code for float64 in (False, True)}) == 1


def test_the_stand_in_keeps_float64_exact(text) -> None:
    module = narrow(lambda x: [x * 0.1], torch.ones(2, dtype=torch.float64), float64=True)
    assert module.called_as is None
    assert "f64" in text(module)
    assert "f32" not in text(module)


def test_a_lifted_scalar_of_float64_is_read_in_float32(run_xla) -> None:
    sentinel = 1.0173
    graph = trace(lambda x: [x * sentinel], [torch.ones(2, dtype=torch.float64)])
    trim(graph)
    module = lower(graph, [Lifted(sentinel, torch.float64, 0.7)], float64=False)
    assert [spec.dtype for spec in module.called_as.inputs] == [torch.float64] * 2
    assert run_xla(module, [torch.tensor([2.0, 4.0]), torch.tensor(0.5)])[0].tolist() == [1, 2]


def test_the_callers_graph_is_left_as_it_is() -> None:
    graph = trace(lambda x: [x.float().to(torch.float64) + 1], [torch.ones(2, dtype=torch.float64)])
    trim(graph)
    before = graph.code
    lower(graph, float64=False)
    assert graph.code == before
    assert lower(graph).signature.inputs[0].dtype == torch.float64


def test_a_view_by_strides_reads_the_same_elements(run_xla) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[1:].as_strided((2, 2), (3, 1), 4) + 0]

    x = torch.arange(12, dtype=torch.float64).reshape(4, 3)
    assert run_xla(narrow(function, x), [x.float()])[0].tolist() == function(x)[0].tolist()


def test_random_numbers_of_float64_are_below_one_in_float32_too(run_xla) -> None:
    module = narrow(lambda: [torch.rand(4096, dtype=torch.float64, device="cpu")])
    (numbers,) = run_xla(module, [torch.tensor([3, 0], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)])
    assert numbers.dtype == torch.float32
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # what torch says of its own samples
def test_no_operator_of_the_database_needs_float64_on_the_chip(text) -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - seconds
    from torch.utils import _pytree  # noqa: PLC0415

    wrong, right = [], 0
    for entry in op_db:
        if torch.float64 not in entry.supported_dtypes("cpu"):
            continue
        sample = next(iter(entry.sample_inputs("cpu", torch.float64)))
        leaves, structure = _pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = dict(zip(places, tensors, strict=True))  # noqa: B023 - called at once
            args, kwargs = _pytree.tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)], structure)  # noqa: B023
            results = _pytree.tree_leaves(entry(*args, **kwargs))  # noqa: B023
            return [each for each in results if isinstance(each, torch.Tensor)]

        try:
            tensors = [leaves[place] for place in places]
            narrow(function, *tensors, float64=True)
        except Exception:  # noqa: BLE001, S112 - no graph, or no lowering for any target
            continue
        right += 1
        try:
            if "f64" in text(narrow(function, *tensors)):
                wrong.append(entry.name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be listed
            wrong.append(f"{entry.name}: {error}")
    assert not wrong
    assert right > 600
