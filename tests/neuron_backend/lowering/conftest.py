"""Lower a function of tensors and evaluate the module three ways: PyTorch on the CPU, XLA, StableHLO's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import torch
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuron_backend.lowering import lower, trace, trim
from neuron_backend.lowering.pipeline import context

if TYPE_CHECKING:
    from neuron_backend.module import Module

Tensors = Sequence[torch.Tensor]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(scope="session")
def xla_client_() -> Any:
    return xla_client.make_cpu_client(asynchronous=False)


@pytest.fixture(scope="session")
def text() -> Callable[[Module], str]:
    """StableHLO text of a lowered module."""

    def render(module: Module) -> str:
        with context():
            return str(stablehlo.deserialize_portable_artifact(ir.Context.current, module.code))

    return render


@pytest.fixture(scope="session")
def run_xla(xla_client_: Any, text: Callable[[Module], str]) -> Callable[[Module, Tensors], list[torch.Tensor]]:
    device = xla_client_.local_devices()[0]
    devices = _jax.DeviceList((device,))
    options = xla_client.CompileOptions()
    # what the module means is tested, not LLVM: without its optimizations a compile takes half the time
    options.env_option_overrides = [("xla_backend_optimization_level", 0), ("xla_llvm_disable_expensive_passes", True)]

    def run(module: Module, inputs: Tensors) -> list[torch.Tensor]:
        executable = xla_client_.compile_and_load(text(module), devices, options)
        buffers = [
            _jax.dlpack_managed_tensor_to_buffer(torch.utils.dlpack.to_dlpack(each.contiguous()), device, None)
            for each in inputs
        ]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [
            torch.utils.dlpack.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(result[0])).clone()
            for result in results
        ]

    return run


@pytest.fixture(scope="session")
def interpret() -> Callable[[Module, Tensors], list[torch.Tensor]]:
    """Evaluate with StableHLO's reference interpreter: slow, and independent of XLA."""

    def run(module: Module, inputs: Tensors) -> list[torch.Tensor]:
        with context():
            parsed = stablehlo.deserialize_portable_artifact(ir.Context.current, module.code)
            arguments = [ir.DenseElementsAttr.get(np.ascontiguousarray(each.numpy())) for each in inputs]
            return [torch.from_numpy(np.array(result)) for result in stablehlo.eval_module(parsed, arguments)]

    return run


@pytest.fixture(scope="session")
def lowered() -> Callable[[Callable[..., Any], Tensors], Module]:
    def make(function: Callable[..., Any], inputs: Tensors) -> Module:
        graph = trace(function, inputs)
        trim(graph)
        return lower(graph)

    return make


@pytest.fixture(scope="session")
def same() -> Callable[..., None]:
    """Compare results with PyTorch's: dtypes and shapes exactly, numbers within a few roundings, NaN equal to NaN."""

    def compare(results: Tensors, expected: Tensors, names: Sequence[str] = (), tolerance: float | None = None) -> None:
        assert len(results) == len(expected)
        problems = []
        for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            allowed = TOLERANCE.get(wanted.dtype, 0) if tolerance is None else tolerance
            try:
                torch.testing.assert_close(result, wanted.contiguous(), rtol=allowed, atol=allowed, equal_nan=True)
            except AssertionError as error:
                problems.append(f"{names[position] if names else position}: {error}")
        assert not problems, "\n".join(problems)

    return compare


@pytest.fixture(scope="session")
def check(lowered: Any, run_xla: Any, same: Any) -> Callable[..., Module]:
    """Lower ``function(*inputs)`` (a flat list of tensors), run it with XLA and compare with PyTorch on the CPU."""

    def checked(function: Callable[..., Any], *inputs: torch.Tensor, tolerance: float | None = None) -> Module:
        module: Module = lowered(function, inputs)
        same(run_xla(module, inputs), function(*(each.clone() for each in inputs)), tolerance=tolerance)
        return module

    return checked


@pytest.fixture(scope="session")
def check_table(lowered: Any, run_xla: Any, same: Any) -> Callable[..., Module]:
    """Check a table {name: function of the inputs with one result} as one program; a failure names the entries."""

    def checked(
        table: dict[str, Callable[..., torch.Tensor]], *inputs: torch.Tensor, tolerance: float | None = None
    ) -> Module:
        def all_of_them(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return [function(*tensors) for function in table.values()]

        module: Module = lowered(all_of_them, inputs)
        same(run_xla(module, inputs), all_of_them(*inputs), list(table), tolerance)
        return module

    return checked
