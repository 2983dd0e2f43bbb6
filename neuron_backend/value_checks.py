"""Programs whose operators check values: where the CPU raises an error, so does the device.

A program of such operators has one output more, its flag (see `neuron_backend.lowering.flag`). Both runtimes wait for
every program, so that the flag is there with the results, and is read before anything is made of them: a failure is
raised by the call itself, in the thread that made it, and nothing is written. A runtime that did not wait would read
the flag where it does.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from client.warnings import Notices
from neuron_backend.module import HOLDS, Signature
from neuron_backend.user_code import user_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from neuron_backend.module import Check, Module
    from neuron_backend.runtimes.base import Executable

SETTING: Final = "NEURON_BACKEND_CHECK"

_notices = Notices()


def asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether programs are to check values: ``NEURON_BACKEND_CHECK``. What means nothing is warned of once."""
    text = environ.get(SETTING, "1")
    if text not in {"0", "1"}:
        _notices.warn(SETTING, f"{SETTING}={text!r} means nothing: expected 0 or 1; values are checked")
    return text != "0"


def checked(executable: Executable, module: Module) -> Executable:
    """Return ``executable``, a loaded program of ``module``, without the flag among its results."""
    return _Checked(executable, module.checks) if module.checks else executable


class _Checked:
    """`neuron_backend.runtimes.base.Executable` that raises the error of a check that fails."""

    def __init__(self, executable: Executable, checks: Sequence[Check]) -> None:
        self._executable = executable
        self._checks = checks
        self._signature = Signature(executable.signature.inputs, executable.signature.outputs[:-1])

    @property
    def signature(self) -> Signature:
        """What it takes, and what it gives beside the flag."""
        return self._signature

    @property
    def direct(self) -> tuple[object, ...] | None:
        """What the device library needs to run it; the last output is the flag, and what is wrong is said from here."""
        return self._executable.direct

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run; see `Executable`. Raises the error that torch raises for the first operator that refuses its values."""
        *outputs, flag = self._executable(inputs)
        # not by an operator: the user's modes have no part in it
        found = (ctypes.c_int64 * len(self._checks)).from_address(flag.data_ptr())
        for check, value in zip(self._checks, found, strict=True):
            if value != HOLDS:
                raise check.failed(value, user_line())
        return outputs
