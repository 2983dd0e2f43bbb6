"""Programs of a target without float64, for callers who have it: converted before and after, and said once."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

from neuron_backend.runtimes.signature import check_inputs
from neuron_backend.user_code import user_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neuron_backend.module import Module, Signature
    from neuron_backend.runtimes.base import Executable

_lock = threading.Lock()
_warned = threading.Event()


def as_called(executable: Executable, module: Module) -> Executable:
    """Return ``executable``, a loaded program of ``module``, with the types that its callers have."""
    return executable if module.called_as is None else _Converting(executable, module.called_as)


class _Converting:
    """`neuron_backend.runtimes.base.Executable` that has float64 around a program that has float32.

    What is too large for float32 becomes infinite on the way in.
    """

    def __init__(self, executable: Executable, signature: Signature) -> None:
        self._executable = executable
        self._signature = signature

    @property
    def signature(self) -> Signature:
        """What callers give and get."""
        return self._signature

    @property
    def direct(self) -> None:
        """Nothing: the device library converts no types."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Convert ``inputs``, run, and convert the outputs; see `Executable`."""
        check_inputs(self._signature, inputs)
        specs = zip(inputs, self._executable.signature.inputs, strict=True)
        outputs = self._executable([tensor.to(spec.dtype) for tensor, spec in specs])
        return [tensor.to(spec.dtype) for tensor, spec in zip(outputs, self._signature.outputs, strict=True)]


def warn_of_narrowing() -> None:
    """Say that float64 is computed in float32, the first time that a process has such a program."""
    with _lock:
        new = not _warned.is_set()
        _warned.set()
    if new:
        warnings.warn(
            "the Neuron device has no float64: programs compute in float32 (complex64 for complex128); tensors keep "
            "their type; keep on the CPU what needs the precision, or use float32 for half the memory",
            UserWarning,
            stacklevel=user_level(),
        )
