"""The module given to the compiler, and what of it is hashed.

==================  ==============================================================================
``mlir-text``       without locations and debug paths (:mod:`client.launcher.mlir_text`)
``mlir-bytecode``   as it is
``hlo-protobuf``    without names, ids and metadata (:mod:`client.launcher.hlo_wire`)
``bytes``           as it is: anything else
==================  ==============================================================================

In all of them the path of an NKI kernel gives way to the content of its file (:mod:`client.launcher.kernels`). The
compiler gets the bytes themselves, untouched.
"""

from __future__ import annotations

import os
import stat

from client.launcher.digest import sha256
from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from client.launcher.kernels import Kernel, Kernels

MAX_BYTES = 2 << 30
"""Bytes of the largest module that is read: that of a protobuf message."""
RULES = "1"
"""Names the rules by which modules are cleared; another number when they change."""

_BYTECODE = b"ML\xefR"
_KERNEL_TARGET = b"AwsNeuronCustomNativeKernel"
_TEXT_BEGINS = (b"module", b"builtin.module", b'"builtin.module"', b"func.func", b"//", b"#", b"!")


class Module:
    """A module as it was read: its bytes, their encoding, the SHA-256 of what is hashed of them, its kernels."""

    __slots__ = ("content", "encoding", "kernels", "sha256")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.kernels: list[Kernel] = []
        kernels = None
        if _KERNEL_TARGET in content:
            from client.launcher.kernels import Kernels  # noqa: PLC0415 - few modules name any

            kernels = Kernels()
            self.kernels = kernels.found
        self.encoding, hashed = _cleared(content, kernels)
        self.sha256 = sha256(hashed)

    @property
    def dialect(self) -> str:
        """``hlo`` or ``mlir``; empty where it is not known."""
        return self.encoding.partition("-")[0] if self.encoding != "bytes" else ""


def read(path: str) -> Module:
    """Read a module; raises `NotShared` for what is no readable regular file of a reasonable size."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 3 ms
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise NotShared("a module that is no file of at most 2 GiB")
            return Module(file.read())
    except OSError as error:
        raise NotShared("a module that cannot be read") from error


def _cleared(content: bytes, kernels: Kernels | None) -> tuple[str, bytes]:
    if content.startswith(_BYTECODE):
        encoding, hashed = "mlir-bytecode", content
    elif content.lstrip()[:20].startswith(_TEXT_BEGINS) and b"\0" not in content:
        from client.launcher import mlir_text  # noqa: PLC0415 - one of the two

        encoding, hashed = "mlir-text", mlir_text.clear(content)
    else:
        from client.launcher import hlo_wire  # noqa: PLC0415

        cleared = hlo_wire.clear(content, bytes if kernels is None else kernels.replace)
        if cleared is not None:
            return "hlo-protobuf", cleared
        if kernels is not None:
            raise NotShared("NKI kernels in a module that is not understood")
        encoding, hashed = "bytes", content
    if kernels is not None:
        hashed = kernels.replace_all(hashed)
        named = 1 if encoding == "mlir-bytecode" else hashed.count(_KERNEL_TARGET)  # bytecode holds equal strings once
        if kernels.configurations < named:
            raise NotShared("an NKI kernel whose configuration was not found")
    return encoding, hashed
