"""The stand-in runtime: runs the CPU compiler's artifacts in this process, through XLA.

Tensors pass in and out through DLPack without a copy, except inputs whose memory is not aligned to 64 bytes (XLA
copies those).
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from torch.utils import dlpack

from client.errors import NeffError
from neuron_backend.runtimes.cpu_artifact import Info, unpack
from neuron_backend.runtimes.signature import check_inputs
from neuron_backend.runtimes.xla_client import FORKED, Program, XlaClient, XlaError, thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from neuron_backend.module import Signature
    from neuron_backend.runtimes.xla_client import Direct


_to_dlpack: Callable[[torch.Tensor], Any] = dlpack.to_dlpack  # type: ignore[attr-defined]  # not exported
_from_dlpack: Callable[[Any], torch.Tensor] = dlpack.from_dlpack


class CpuRuntime:
    """`neuron_backend.runtimes.base.Runtime` on the host's CPU.

    XLA starts at the first `load`, once in a process and with the thread count of that moment's ``environ``.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def load(self, neff: bytes, signature: Signature) -> CpuExecutable:
        """Load an artifact of the CPU compiler.

        Raises `NeffError` if it is damaged, made by another compiler or jaxlib, or for another CPU or thread count; and
        RuntimeError in a child that was forked after the first `load`.
        """
        client = _client(self._environ)
        expected = Info(jaxlib=client.version, target=client.target, threads=client.threads)
        try:
            program = client.load(unpack(neff, expected))
        except XlaError as error:
            raise NeffError(f"XLA cannot load this artifact: {error}") from error
        return CpuExecutable(program, signature)


class CpuExecutable:
    """`neuron_backend.runtimes.base.Executable` on the host's CPU."""

    def __init__(self, program: Program, signature: Signature) -> None:
        self._program = program
        self._signature = signature

    @property
    def signature(self) -> Signature:
        """What it takes and gives, as the module says."""
        return self._signature

    @property
    def direct(self) -> Direct | None:
        """What the device library needs to run it; see `Executable`."""
        return self._program.direct

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on contiguous host tensors and return fresh contiguous ones, whose memory PyTorch owns from then on.

        Raises ValueError before anything runs if ``inputs`` are not the signature's, `NeffError` if the artifact gives
        something else than the module says (it is not that module's), `XlaError` if XLA fails, and RuntimeError in a
        child that was forked after the first load.
        """
        check_inputs(self._signature, inputs)
        capsules = self._program.run([_to_dlpack(tensor) for tensor in inputs])
        outputs = [_from_dlpack(capsule) for capsule in capsules]
        specs = self._signature.outputs
        if len(outputs) != len(specs) or any(
            output.dtype is not spec.dtype or output.shape != spec.shape or not output.is_contiguous()
            for output, spec in zip(outputs, specs, strict=True)
        ):
            found = ", ".join(f"{output.dtype} {list(output.shape)}" for output in outputs)
            expected = ", ".join(f"{spec.dtype} {list(spec.shape)}" for spec in specs)
            raise NeffError(f"this artifact belongs to another module: it gives {found}, expected {expected}")
        return outputs


class _Process:
    """This process's one XLA client, and the process that made it or began to."""

    lock = threading.Lock()
    pid: int | None = None
    client: Any = None


def _client(environ: Mapping[str, str]) -> XlaClient:
    """Return this process's XLA client, made at the first call."""
    if _Process.pid not in (None, os.getpid()):  # before the lock: a fork may have copied it locked
        raise RuntimeError(FORKED)
    with _Process.lock:
        _Process.pid = os.getpid()
        if _Process.client is None:
            _Process.client = XlaClient(thread_count(environ))
        client: XlaClient = _Process.client
        return client
