"""Compilers behind one interface: the real ``neuronx-cc``, and XLA's CPU compiler as a stand-in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neuron_backend.compilers.base import Compiler

SETTING: Final = "NEURON_BACKEND_COMPILER"


def compiler_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return ``cpu`` or ``neuronx-cc``: what ``NEURON_BACKEND_COMPILER`` names.

    Unset: ``neuronx-cc`` on a Neuron instance where that program is found, else ``cpu``. Raises `ConfigurationError`
    for another name.
    """
    name = environ.get(SETTING, "").strip()
    if not name:
        from client.compiler_path import find_compiler  # noqa: PLC0415
        from client.environment import is_neuron_host  # noqa: PLC0415 - a process that says which needs none of it

        return "neuronx-cc" if is_neuron_host() and find_compiler(environ) else "cpu"
    if name not in ("cpu", "neuronx-cc"):
        raise ConfigurationError(f"{SETTING}={name!r} is no compiler: expected cpu or neuronx-cc")
    return name


def get_compiler(environ: Mapping[str, str] = os.environ) -> Compiler:
    """Return the compiler of `compiler_name`; its `configuration` says whether it works."""
    if compiler_name(environ) == "cpu":
        from neuron_backend.compilers.cpu import CpuCompiler  # noqa: PLC0415 - only what is used is imported

        return CpuCompiler(environ)
    from neuron_backend.compilers.neuronx_cc import NeuronxCc  # noqa: PLC0415

    return NeuronxCc(environ)
