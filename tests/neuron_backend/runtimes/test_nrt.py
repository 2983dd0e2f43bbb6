from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from client import neff as container
from client.errors import ConfigurationError, NeffError
from client.names import Kind
from neuron_backend.compilers.neuronx_cc import NeuronxCc
from neuron_backend.module import Signature, TensorSpec
from neuron_backend.runtimes import get_runtime
from neuron_backend.runtimes.nrt import NrtRuntime
from neuron_backend.runtimes.nrt_library import NrtError
from tests.fakes.modules import ADD, artifact
from tests.fakes.programs import build_libnrt, install_neuronx_cc
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = TensorSpec(torch.float32, (2, 3))
BINARY = Signature((ONE, ONE), (ONE,))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libnrt(tmp_path_factory.mktemp("nrt"))


@pytest.fixture(scope="module")
def compile_for_device(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bytes]:
    fake = install_neuronx_cc(tmp_path_factory.mktemp("bin"))
    fake.set_mode("uncompressed")
    compiler = NeuronxCc({"PATH": f"{fake.directory}:/usr/bin", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"})
    return lambda code: compiler.compile(code, compiler.configuration(Kind.GRAPH)).neff


@pytest.fixture
def runtime(library: Path) -> NrtRuntime:
    return NrtRuntime({"NEURON_BACKEND_LIBNRT": str(library)})


@pytest.fixture(autouse=True)
def device(library: Path, runtime: NrtRuntime):
    """The fake device's own account of what it holds; nothing may be left."""
    device = ctypes.CDLL(str(library))
    yield device
    gc.collect()
    assert device.fake_live() == 0


def test_a_compiled_module_runs_on_the_device(runtime, compile_for_device) -> None:
    run = runtime.load(compile_for_device(ADD), BINARY)
    assert run.signature == BINARY
    for number in range(3):
        [output] = run([torch.full((2, 3), float(number)), torch.full((2, 3), 0.5)])
        assert output.tolist() == [[number + 0.5] * 3] * 2


def test_tensors_go_to_their_places_by_number_and_not_in_the_order_of_a_listing(runtime, compile_for_device) -> None:
    # Eleven inputs, so that input10 sorts before input2; each of its own size, and one output for each.
    types = [f"tensor<{size}xf32>" for size in range(1, 12)]
    arguments = ", ".join(f"%a{index}: {kind}" for index, kind in enumerate(types))
    values = ", ".join(f"%a{index}" for index in range(11))
    code = artifact(f"func.func @main({arguments}) -> ({', '.join(types)}) {{ return {values} : {', '.join(types)} }}")
    specs = tuple(TensorSpec(torch.float32, (size,)) for size in range(1, 12))
    run = runtime.load(compile_for_device(code), Signature(specs, specs))
    inputs = [torch.arange(float(size)) for size in range(1, 12)]
    assert [output.tolist() for output in run(inputs)] == [one.tolist() for one in inputs]


@pytest.mark.parametrize(
    "wrong",
    [
        [torch.ones(2, 3, dtype=torch.int32)] * 2,
        [torch.ones(3, 2).t()] * 2,
        [torch.ones(3, 2)] * 2,
        [torch.ones(2, 3)],
    ],
)
@pytest.mark.share(1)
def test_inputs_that_the_device_would_misread_are_refused(runtime, compile_for_device, wrong) -> None:
    with pytest.raises(ValueError, match="this program"):
        runtime.load(compile_for_device(ADD), BINARY)(wrong)


@pytest.mark.parametrize(
    "signature",
    [
        Signature((ONE, ONE), (TensorSpec(torch.float32, (7,)),)),
        Signature((ONE, ONE), (TensorSpec(torch.float64, (2, 3)),)),
        Signature((ONE,), (ONE,)),
        Signature((ONE, ONE), (ONE, ONE)),
        Signature((ONE, ONE), ()),
    ],
)
@pytest.mark.share(1)
def test_a_neff_of_another_module_is_refused_when_it_is_loaded(runtime, compile_for_device, signature) -> None:
    with pytest.raises(NeffError, match="belongs to another module"):
        runtime.load(compile_for_device(ADD), signature)


def test_what_is_no_neff_for_the_device_is_refused(runtime, compile_for_device, compile_neff) -> None:
    made = compile_for_device(ADD)
    with pytest.raises(NeffError):
        runtime.load(made[:-1], BINARY)
    with pytest.raises(NeffError, match="CPU stand-in"):
        runtime.load(compile_neff(ADD), BINARY)
    with pytest.raises(NeffError, match="NRT_INVALID"):
        runtime.load(container.pack({}, name="x", build_version="", uuid=bytes(16)), BINARY)


FUNCTIONS = [
    "nrt_load",
    "nrt_get_model_tensor_info",
    "nrt_tensor_allocate",
    "nrt_tensor_write",
    "nrt_allocate_tensor_set",
    "nrt_add_tensor_to_tensor_set",
    "nrt_execute",
    "nrt_tensor_read",
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.share(2)
def test_an_error_of_the_device_says_what_failed_and_leaves_nothing_allocated(
    runtime, compile_for_device, device, function: str
) -> None:
    made = compile_for_device(ADD)
    device.fake_fail(function.encode(), 4)
    with pytest.raises(NrtError, match=rf"{function} returned NRT_RESOURCE \(4\)"):
        runtime.load(made, BINARY)([torch.ones(2, 3)] * 2)
    [output] = runtime.load(made, BINARY)([torch.ones(2, 3)] * 2)
    assert output.tolist() == [[2, 2, 2]] * 2


def test_threads_share_one_program_without_mixing_their_numbers(runtime, compile_for_device) -> None:
    run = runtime.load(compile_for_device(ADD), BINARY)

    def work(thread: int) -> None:
        for number in range(50):
            value = float(thread * 1000 + number)
            assert run([torch.full((2, 3), value), torch.full((2, 3), 0.5)])[0].tolist() == [[value + 0.5] * 3] * 2

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_host_without_the_library_is_told_what_to_install_or_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="NEURON_BACKEND_LIBNRT"):
        get_runtime({"NEURON_BACKEND_RUNTIME": "nrt", "NEURON_BACKEND_LIBNRT": str(tmp_path / "libnrt.so.1")})


def test_another_library_of_that_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it has no nrt_init"):
        get_runtime({"NEURON_BACKEND_RUNTIME": "nrt", "NEURON_BACKEND_LIBNRT": "libc.so.6"})


def test_a_runtime_that_means_nothing_is_named() -> None:
    with pytest.raises(ConfigurationError, match="NEURON_BACKEND_RUNTIME='gpu'"):
        get_runtime({"NEURON_BACKEND_RUNTIME": "gpu"})


FORK = (
    "import os, sys, torch\n"
    "from neuron_backend.module import Signature, TensorSpec\n"
    "from neuron_backend.runtimes import get_runtime\n"
    "one = TensorSpec(torch.float32, (2, 3))\n"
    "run = get_runtime().load(open(sys.argv[1], 'rb').read(), Signature((one, one), (one,)))\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    try:\n"
    "        run([torch.ones(2, 3)] * 2)\n"
    "    except RuntimeError:\n"
    "        sys.exit(7)\n"  # an orderly end: it must not give the parent's device back
    "    sys.exit(0)\n"
    "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    "print(status, run([torch.ones(2, 3)] * 2)[0].sum().item())\n"
)


@pytest.mark.soak
def test_a_forked_child_is_refused_the_parents_device_and_does_not_close_it(
    library: Path, compile_for_device, tmp_path: Path
) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(compile_for_device(ADD))
    environ = {**os.environ, "NEURON_BACKEND_RUNTIME": "nrt", "NEURON_BACKEND_LIBNRT": str(library)}
    command = [sys.executable, "-c", FORK, str(path)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    assert ended.stdout.split() == ["7", "12.0"]
