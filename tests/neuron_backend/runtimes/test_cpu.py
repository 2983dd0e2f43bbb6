from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from client import neff as container
from client.errors import NeffError
from neuron_backend.module import Signature, TensorSpec
from neuron_backend.runtimes import cpu_artifact, get_runtime
from neuron_backend.runtimes.cpu import CpuRuntime, _client
from neuron_backend.runtimes.cpu_artifact import Info
from neuron_backend.runtimes.xla_client import read_target_machine
from tests.fakes.modules import ADD, artifact, binary
from tests.fakes.waiting import HANG_SECONDS

# MLIR's name, PyTorch's dtype: all that StableHLO 1.0.0 and PyTorch share.
DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "ui8": torch.uint8,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
}
SHAPES = [(), (1,), (5,), (2, 3), (0, 3), (1, 1, 4)]


def spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(dtype, shape)


def signature(one: TensorSpec, outputs: int = 1) -> Signature:
    return Signature((one, one), (one,) * outputs)


@pytest.fixture(scope="module")
def add(compile_neff):
    """``a + b`` of two float32 tensors of shape (2, 3)."""
    return CpuRuntime().load(compile_neff(ADD), signature(spec(2, 3)))


@pytest.fixture(scope="module")
def three(compile_neff):
    """(a + b, a + b, a)."""
    kind = "tensor<2x3xf32>"
    code = artifact(
        f"func.func @main(%a: {kind}, %b: {kind}) -> ({kind}, {kind}, {kind}) "
        f"{{ %0 = stablehlo.add %a, %b : {kind} return %0, %0, %a : {kind}, {kind}, {kind} }}"
    )
    return CpuRuntime().load(compile_neff(code), signature(spec(2, 3), outputs=3))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_and_shape_comes_through_bit_for_bit(compile_neff, name: str) -> None:
    dtype = DTYPES[name]
    for shape in SHAPES:
        tensor_type = "tensor<" + "".join(f"{extent}x" for extent in shape) + name + ">"
        code = artifact(
            f"func.func @main(%a: {tensor_type}, %b: {tensor_type}) -> ({tensor_type}, {tensor_type}) "
            f"{{ return %b, %a : {tensor_type}, {tensor_type} }}",
            version="1.0.0",
        )
        run = CpuRuntime().load(compile_neff(code), signature(TensorSpec(dtype, shape), outputs=2))
        count = torch.Size(shape).numel()
        raw = [torch.arange(start, start + count * dtype.itemsize, dtype=torch.uint8) for start in (1, 101)]
        if dtype is torch.bool:
            raw = [one % 2 for one in raw]
        inputs = [one.view(dtype).reshape(shape) for one in raw]
        outputs = run(inputs)
        for output, expected in zip(outputs, reversed(raw), strict=True):
            assert output.dtype is dtype
            assert output.shape == shape
            assert output.is_contiguous()
            assert torch.equal(output.reshape(-1).view(torch.uint8), expected)


def test_storage_at_any_alignment_gives_the_same_numbers(add) -> None:
    storage = torch.arange(100, dtype=torch.float32)
    for offset in range(17):
        view = storage[offset : offset + 6].view(2, 3)
        [output] = add([view, view])
        assert torch.equal(output, view * 2)


def test_odd_strides_of_extents_of_one_are_contiguous_too(compile_neff) -> None:
    run = CpuRuntime().load(compile_neff(binary("add", "tensor<4x1xf32>")), signature(spec(4, 1)))
    odd = torch.arange(4.0).as_strided((4, 1), (1, 7))
    [output] = run([odd, odd])
    assert output.flatten().tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([torch.ones(2, 3, dtype=torch.int32)] * 2, "torch.int32"),
        ([torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)], "input 1"),
        ([torch.ones(3, 2).t()] * 2, r"strides \(1, 2\) instead of \(3, 1\)"),
        ([torch.ones(3, 2)] * 2, r"shape \[3, 2\]"),
        ([torch.ones(6)] * 2, r"shape \[6\]"),
        ([torch.ones(2, 6)[:, ::2]] * 2, "strides"),
        ([torch.ones(1, 1).expand(2, 3)] * 2, "strides"),
        ([torch.ones(2, 3)], "takes 2 input"),
        ([torch.ones(2, 3)] * 3, "takes 2 input"),
        ([torch.ones(2, 3, device="meta")] * 2, "meta"),
        ([torch.ones(2, 3).to_sparse()] * 2, "sparse"),
        ([torch.ones(2, 3, 2).view(-1, 2)[:6, 0].view(2, 3)] * 2, "strides"),
    ],
)
def test_inputs_that_xla_would_misread_are_refused_before_it_runs(add, wrong, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        add(wrong)


def test_lazily_conjugated_and_negated_inputs_are_refused_because_their_memory_holds_other_numbers(
    compile_neff,
) -> None:
    one = TensorSpec(torch.complex64, (4,))
    run = CpuRuntime().load(compile_neff(binary("add", "tensor<4xcomplex<f32>>")), signature(one))
    value = torch.complex(torch.ones(4), torch.ones(4))
    with pytest.raises(ValueError, match="resolve_conj"):
        run([value, value.conj()])
    assert run([value, value.conj().resolve_conj()])[0].imag.tolist() == [0, 0, 0, 0]


def test_inputs_that_require_grad_run_and_outputs_do_not(add) -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    [output] = add([leaf, leaf])
    assert not output.requires_grad


def test_no_output_shares_memory_with_another_or_with_an_input(three) -> None:
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    first, second, third = three([a, b])
    first.fill_(-1)
    third.fill_(-2)
    assert second.tolist() == [[2, 2, 2]] * 2
    assert a.tolist() == [[1, 1, 1]] * 2


def test_an_output_outlives_its_executable_its_inputs_and_later_runs(compile_neff) -> None:
    run = CpuRuntime().load(compile_neff(ADD), signature(spec(2, 3)))
    [kept] = run([torch.full((2, 3), 20.0), torch.full((2, 3), 1.0)])
    for number in range(50):
        run([torch.full((2, 3), float(number))] * 2)
    del run
    gc.collect()
    assert kept.tolist() == [[21, 21, 21]] * 2


def test_constants_and_programs_without_inputs_or_outputs(compile_neff) -> None:
    constant = compile_neff(
        artifact(
            "func.func @main() -> tensor<3xf32> { %0 = stablehlo.constant dense<[1.,2.,3.]> : tensor<3xf32> "
            "return %0 : tensor<3xf32> }"
        )
    )
    run = CpuRuntime().load(constant, Signature((), (spec(3),)))
    run([])[0].add_(1)
    assert run([])[0].tolist() == [1, 2, 3]
    nothing = compile_neff(artifact("func.func @main(%a: tensor<3xf32>) { return }"))
    assert CpuRuntime().load(nothing, Signature((spec(3),), ()))([torch.ones(3)]) == []


def test_threads_share_one_program_without_mixing_their_numbers(add) -> None:
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait(HANG_SECONDS)
        for number in range(50):
            value = float(thread * 1000 + number)
            [output] = add([torch.full((2, 3), value), torch.full((2, 3), 0.5)])
            assert output.tolist() == [[value + 0.5] * 3] * 2

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_run_leaves_no_trace_of_jax_for_others_to_stumble_on(add) -> None:
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("jax is installed")
    add([torch.ones(2, 3)] * 2)
    assert "jax" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("jax")


def repack(neff: bytes, **changes) -> bytes:
    """The same machine code with another note of what it was made for."""
    info = json.loads(container.unpack(neff)["info.json"])
    known = Info(info["jaxlib"], info["target"], info["threads"])
    return cpu_artifact.pack(cpu_artifact.unpack(neff, known), replace(known, **changes), uuid=bytes(16))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"target": "cpu:haswell:" + "0" * 64}, "for target cpu:haswell"),
        ({"jaxlib": "0.9.0"}, "by jaxlib 0.9.0"),
        ({"threads": 7}, "thread count of 7"),
    ],
)
def test_code_for_another_host_is_refused_because_xla_would_run_it(compile_neff, changes, told: str) -> None:
    with pytest.raises(NeffError, match=told):
        CpuRuntime().load(repack(compile_neff(ADD), **changes), signature(spec(2, 3)))


def test_damage_anywhere_in_the_payload_is_found_before_xla_sees_it(compile_neff) -> None:
    made = compile_neff(ADD)
    runtime = CpuRuntime()
    for position in range(container.HEADER_SIZE, len(made), 97):
        damaged = bytearray(made)
        damaged[position] ^= 0x55
        try:
            runtime.load(bytes(damaged), signature(spec(2, 3)))
        except NeffError:
            continue
        # deflate has bits that say nothing: what comes out is the same then
        assert container.unpack(bytes(damaged)) == container.unpack(made)


def test_code_that_does_not_hash_to_its_note_is_refused(compile_neff) -> None:
    members = container.unpack(compile_neff(ADD))
    header = {"name": cpu_artifact.NAME, "build_version": "", "uuid": bytes(16)}
    executable = bytearray(members["executable.xla"])
    executable[len(executable) // 2] ^= 1
    for broken, told in (
        ({**members, "executable.xla": bytes(executable)}, "does not hash"),
        ({**members, "info.json": b"{}"}, "unreadable"),
        ({**members, "info.json": b"[]"}, "unreadable"),
        ({**members, "info.json": b"\xff"}, "unreadable"),
        ({"info.json": members["info.json"]}, "expected info.json and executable.xla"),
    ):
        with pytest.raises(NeffError, match=told):
            CpuRuntime().load(container.pack(broken, **header), signature(spec(2, 3)))


def test_a_neff_of_the_real_compiler_is_refused_by_the_stand_in(compile_neff) -> None:
    members = container.unpack(compile_neff(ADD))
    other = container.pack(members, name="/private/out.neff", build_version="2.27", uuid=bytes(16))
    with pytest.raises(NeffError, match="CPU stand-in"):
        CpuRuntime().load(other, signature(spec(2, 3)))


def test_an_artifact_of_another_module_is_found_out_by_what_it_gives(compile_neff) -> None:
    for wrong in (spec(6), spec(2, 3, dtype=torch.int32)):
        run = CpuRuntime().load(compile_neff(ADD), Signature((spec(2, 3),) * 2, (wrong,)))
        with pytest.raises(NeffError, match="belongs to another module"):
            run([torch.ones(2, 3)] * 2)
    run = CpuRuntime().load(compile_neff(ADD), signature(spec(2, 3), outputs=2))
    with pytest.raises(NeffError, match="belongs to another module"):
        run([torch.ones(2, 3)] * 2)


def test_the_target_of_a_worker_is_the_target_here(compile_neff) -> None:
    info = json.loads(container.unpack(compile_neff(ADD))["info.json"])
    assert info["target"] == _client(os.environ).target


def test_the_target_machine_is_read_from_machine_code_made_here(compile_neff) -> None:
    members = container.unpack(compile_neff(ADD))
    cpu, features = read_target_machine(members["executable.xla"])
    assert cpu
    assert all(feature[0] in "+-" for feature in features.split(","))


FORK = (
    "import os, sys, warnings\n"
    "import torch\n"
    "from neuron_backend.module import Signature, TensorSpec\n"
    "from neuron_backend.runtimes.cpu import CpuRuntime\n"
    "neff, runtime = open(sys.argv[1], 'rb').read(), CpuRuntime()\n"
    "one = TensorSpec(torch.float32, (2, 3))\n"
    "def load():\n"
    "    return runtime.load(neff, Signature((one, one), (one,)))\n"
    "def in_child(work):\n"
    "    child = os.fork()\n"
    "    if child == 0:\n"
    "        try:\n"
    "            work()\n"
    "        except RuntimeError as error:\n"
    "            os._exit(7 if \"'spawn'\" in str(error) else 8)\n"
    "        os._exit(0)\n"
    "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    "a = torch.ones(2, 3)\n"
    "before = in_child(lambda: load()([a, a]))\n"
    "run = load()\n"
    "run([a, a])\n"
    "after = in_child(load), in_child(lambda: run([a, a]))\n"
    "run([a, a])\n"
    "print(before, *after)\n"
)


def test_a_child_forked_after_first_use_is_told_so_and_does_not_hang(compile_neff, tmp_path) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(compile_neff(ADD))
    ended = subprocess.run(
        [sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert ended.stdout.split() == ["0", "7", "7"]


def test_the_runtime_follows_the_compiler_unless_one_is_named() -> None:
    assert isinstance(get_runtime({"NEURON_BACKEND_COMPILER": "cpu"}), CpuRuntime)
    assert isinstance(
        get_runtime({"NEURON_BACKEND_COMPILER": "neuronx-cc", "NEURON_BACKEND_RUNTIME": "cpu"}), CpuRuntime
    )
