from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.names import Kind
from neuron_backend.compilers.cpu import CpuCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def compile_neff() -> Iterator[Callable[[bytes], bytes]]:
    """Compile a portable artifact with the stand-in."""
    compiler = CpuCompiler()
    configuration = compiler.configuration(Kind.EAGER)
    yield lambda code: compiler.compile(code, configuration).neff
    compiler.close()
