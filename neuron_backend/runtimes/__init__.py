"""Runtimes behind one interface: ``nrt`` for a Trainium host, ``cpu`` for the stand-in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neuron_backend.runtimes.base import Runtime

SETTING: Final = "NEURON_BACKEND_RUNTIME"


def get_runtime(environ: Mapping[str, str] = os.environ) -> Runtime:
    """Return the runtime that ``NEURON_BACKEND_RUNTIME`` names: ``cpu`` or ``nrt``.

    Unset: the one that runs what `neuron_backend.compilers.get_compiler` makes in the same environment. Raises
    `ConfigurationError` for another name, and where libnrt is asked for but is not there.
    """
    name = environ.get(SETTING, "").strip()
    if not name:
        from neuron_backend.compilers import compiler_name  # noqa: PLC0415

        name = "nrt" if compiler_name(environ) == "neuronx-cc" else "cpu"
    if name == "cpu":
        from neuron_backend.runtimes.cpu import CpuRuntime  # noqa: PLC0415

        return CpuRuntime(environ)
    if name == "nrt":
        from neuron_backend.runtimes.nrt import NrtRuntime  # noqa: PLC0415

        return NrtRuntime(environ)
    raise ConfigurationError(f"{SETTING}={name!r} is no runtime: expected cpu or nrt")
