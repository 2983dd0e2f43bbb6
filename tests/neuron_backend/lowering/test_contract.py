"""What the package promises to its callers: canonical bytes, a signature off the module, one kind of failure."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._C._functorch import _vmap_decrement_nesting, _vmap_increment_nesting
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils.flop_counter import FlopCounterMode

from neuron_backend.lowering import LoweringBug, UnsupportedOperator, decompositions, lower, trace, trim, used_inputs
from neuron_backend.lowering.families import supported
from neuron_backend.module import TensorSpec
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

# Written to a file of its own, so that its path and line numbers can differ.
PROGRAM = """
import hashlib, os, sys
import torch, torch.nn.functional as F
from neuron_backend.lowering import lower, trace, trim

torch.manual_seed(int(sys.argv[1]))
weight, bias, x = torch.randn(16, 8), torch.randn(16), torch.randn(4, 8)
def perceptron(weight, bias, x):
    return [F.cross_entropy(torch.relu(F.linear(x, weight, bias)), torch.tensor([1, 2, 3, 0]))]
def attention(x):
    q, k, v = F.layer_norm(x, (6,)).view(2, 4, 6).split(2, -1)
    return [F.gelu(torch._scaled_dot_product_attention_math(q, k, v, is_causal=True)[0]), x.tan()]
for function, inputs in ((perceptron, [weight, bias, x]), (attention, [torch.randn(8, 6)])):
    graph = trace(function, inputs)
    trim(graph)
    module = lower(graph)
    print(module.version, module.sha256, len(module.code))
"""


def _in_a_fresh_process(folder: Path, hash_seed: str, weights: int, shift: int) -> str:
    folder.mkdir()
    script = folder / f"model_{shift}.py"
    script.write_text("\n" * shift + PROGRAM)
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root), "NEURON_RANK_ID": hash_seed}
    done = subprocess.run(
        [sys.executable, str(script), str(weights)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


@pytest.mark.soak  # tests/e2e/test_key_stability.py holds the keys to the same, in fewer processes
def test_bytes_do_not_depend_on_process_hash_seed_folder_line_numbers_or_weights(tmp_path: Path) -> None:
    first = _in_a_fresh_process(tmp_path / "one", "0", 1, 0)
    second = _in_a_fresh_process(tmp_path / "another place", "12345", 2, 38)
    assert first == second
    assert [line.split()[0] for line in first.splitlines()] == ["1.0.0", "1.4.0"]


def test_a_module_names_nobody(lowered: Any) -> None:
    code = lowered(lambda secret_name: [torch.tanh(secret_name) + 1], [torch.ones(2)]).code
    assert b"secret_name" not in code
    assert str(Path(__file__).parent).encode() not in code
    assert b".py" not in code


def test_programs_that_differ_have_different_bytes(lowered: Any) -> None:
    def code(function: Callable[..., Any], *inputs: torch.Tensor) -> bytes:
        return lowered(function, inputs).code

    x = torch.ones(2, 3)
    variants = {
        code(lambda x: [x + 1.0], x),
        code(lambda x: [x + 2.0], x),
        code(lambda x: [x - 1.0], x),
        code(lambda x: [x + 1.0], x.double()),
        code(lambda x: [x + 1.0], x.t().contiguous()),
        code(lambda x: [x + 1.0, x], x),
        code(lambda x, _y: [x + 1.0], x, x),
        code(lambda x: [x + 0.0], x),
        code(lambda x: [x + -0.0], x),
    }
    assert len(variants) == 9


def test_the_signature_is_that_of_the_module_in_order(lowered: Any) -> None:
    module = lowered(
        lambda a, b, c: [a.sum(0), b.bfloat16(), c > 1, a],
        [torch.ones(2, 3), torch.tensor(1), torch.ones(0, 4, dtype=torch.float64)],
    )
    assert module.signature.inputs == (
        TensorSpec(torch.float32, (2, 3)),
        TensorSpec(torch.int64, ()),
        TensorSpec(torch.float64, (0, 4)),
    )
    assert module.signature.outputs == (
        TensorSpec(torch.float32, (3,)),
        TensorSpec(torch.bfloat16, ()),
        TensorSpec(torch.bool, (0, 4)),
        TensorSpec(torch.float32, (2, 3)),
    )


def test_the_layout_of_examples_does_not_matter() -> None:
    x = torch.ones(3, 2)
    graphs = [
        trace(lambda x: [x.reshape(6) * 2], [example]) for example in (x, torch.ones(2, 3).t(), x[:1].expand(3, 2))
    ]
    for graph in graphs:
        trim(graph)
    assert len({lower(graph).code for graph in graphs}) == 1


def test_autocast_and_the_default_device_of_the_caller_have_no_part_in_a_trace(lowered: Any) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x @ x + torch.arange(3)]

    plain = lowered(function, [torch.ones(3, 3)]).code
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        assert lowered(function, [torch.ones(3, 3, device="cpu")]).code == plain


def test_an_operator_without_lowering_is_named(lowered: Any) -> None:
    with pytest.raises(UnsupportedOperator, match=r"operator aten\.poisson\.default .*no lowering") as failure:
        lowered(lambda x: [x + torch.poisson(x)], [torch.ones(2)])
    assert failure.value.operator == "aten.poisson.default"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [torch.nn.functional.dropout(x, 0.5)],
        lambda x: [torch.randn_like(x)],
        lambda x: [torch.bernoulli(x)],
        lambda x: [torch.normal(x, x)],
    ],
)
def test_random_operators_read_a_seed_and_are_not_made_constant(lowered: Any, function: Callable[..., Any]) -> None:
    inputs = lowered(function, [torch.ones(4)]).signature.inputs
    assert [(spec.dtype, spec.shape) for spec in inputs[1:]] == [(torch.int32, (2,))] * 2


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn])
def test_an_element_type_that_is_not_supported_is_said(dtype: torch.dtype, lowered: Any) -> None:
    with pytest.raises(UnsupportedOperator, match=f"element type {dtype} is not supported"):
        lowered(lambda x: [x.clone()], [torch.ones(2).to(dtype)])


def test_a_large_constant_is_refused_with_its_size(lowered: Any) -> None:
    held = torch.ones(5000)
    with pytest.raises(UnsupportedOperator, match=r"get_attr .* 5000 elements, more than 4096; pass it as an input"):
        lowered(lambda x: [x + held], [torch.ones(1)])


def test_a_symbolic_input_is_refused_with_what_to_do() -> None:
    graph = torch.fx.Graph()
    graph.placeholder("batch").meta["val"] = 3
    graph.output(())
    with pytest.raises(UnsupportedOperator, match="no tensor but int; compile with dynamic=False"):
        lower(torch.fx.GraphModule({}, graph))


def test_a_result_that_is_not_what_pytorch_says_is_never_passed_on() -> None:
    graph = trace(lambda x: [x + 1], [torch.ones(2)])
    trim(graph)
    (node,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    node.target, node.args = torch.ops.aten.sum.default, node.args[:1]
    with pytest.raises(LoweringBug, match=r"bug of neff-cache.*aten\.sum\.default .*please report"):
        lower(graph)


def test_arguments_that_a_lowering_was_not_written_for_name_the_operator() -> None:
    graph = trace(lambda x: [x + 1], [torch.ones(2)])
    trim(graph)
    (node,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    node.kwargs = {"gamma": 1}
    with pytest.raises(LoweringBug, match=r"bug of neff-cache.*aten\.add\.Tensor .*TypeError.*please report"):
        lower(graph)


def test_outputs_that_are_none_dead_code_and_devices_are_trimmed() -> None:
    graph = trace(lambda x: [None, x + torch.zeros(2, device="cpu"), None, x * 2], [torch.ones(2)])
    kept = trim(graph)
    assert (kept.positions, kept.count) == ((1, 3), 4)
    assert not any("device" in node.kwargs for node in graph.graph.nodes)
    assert len(lower(graph).signature.outputs) == 2


def test_inputs_that_nothing_reads_can_be_dropped() -> None:
    graph = trace(lambda a, _b, c: [a + c], [torch.ones(1), torch.ones(2), torch.ones(1)])
    trim(graph)
    assert len(lower(graph).signature.inputs) == 3
    assert used_inputs(graph) == (0, 2)
    assert [spec.shape for spec in lower(graph).signature.inputs] == [(1,), (1,)]


def test_every_name_in_the_table_is_an_operator_of_this_pytorch() -> None:
    unknown = []
    for name in sorted(supported()):
        space, packet, overload = name.split(".")
        try:
            getattr(getattr(getattr(torch.ops, space), packet), overload)
        except AttributeError:
            unknown.append(name)
    assert unknown == []


def test_what_the_table_lowers_is_not_taken_apart_first() -> None:
    assert decompositions() is decompositions()
    assert not {str(operator) for operator in decompositions()} & supported()


def test_threads_that_trace_and_lower_at_once_get_their_own_graphs() -> None:
    codes: dict[int, set[bytes]] = {number: set() for number in range(4)}
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                graph = trace(lambda x: [torch.softmax(x * (number + 0.5), -1).sum(0)], [torch.ones(3, number + 2)])
                trim(graph)
                codes[number].add(lower(graph).code)
        except Exception as failure:  # noqa: BLE001  shown by the assertion below, whatever it is
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert failures == []
    assert [len(each) for each in codes.values()] == [1] * 4
    assert len(set.union(*codes.values())) == 4


@contextmanager
def _in_a_trace_of_torchs_own() -> Iterator[None]:
    with enable_python_dispatcher(), FakeTensorMode(), no_dispatch():
        yield


@contextmanager
def _in_a_layer() -> Iterator[None]:
    level = _vmap_increment_nesting(3, "error")
    try:
        yield
    finally:
        assert _vmap_decrement_nesting() == level


@pytest.mark.parametrize(
    "surroundings",
    [
        *(_in_a_trace_of_torchs_own, _in_a_layer, torch._C._DisableTorchDispatch, enable_python_dispatcher),
        *(torch._C._AutoDispatchBelowAutograd, torch.inference_mode, partial(FlopCounterMode, display=False)),
        *(partial(torch.autocast, "cpu"), partial(torch.device, "neuron")),
    ],
)
def test_an_operator_is_traced_alike_wherever_it_is_called(
    surroundings: Callable[[], AbstractContextManager[object]],
) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x @ x.t() + torch.rand_like(x[:, :1]), -1).mT.sum(0), x.add_(1)]

    examples = [torch.ones(3, 2)]
    expected = trace(function, examples).code
    with surroundings():
        assert trace(function, examples).code == expected
        before = torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set()
    assert "torch.ops.aten._softmax" in expected or "exp" in expected
    with surroundings():
        after = torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set()
    assert [str(each) for each in before] == [str(each) for each in after], "and leaves them as they were"


def test_other_threads_call_compiled_functions_while_an_operator_is_traced() -> None:
    compiled = torch.compile(torch.nn.Linear(2, 2).requires_grad_(requires_grad=False), backend="eager")
    batch, call = torch.ones(1, 2), torch.nn.Module.__call__
    expected = compiled(batch)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(compiled, batch).result(300), expected)
        assert torch.nn.Module.__call__ is call
        return [x * 2]

    assert "aten.mul" in trace(function, [torch.ones(3)]).code
