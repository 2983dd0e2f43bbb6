"""The canonical bytes of a StableHLO module: fixed passes, then VHLO at the lowest version that can hold it.

These bytes are what is hashed into the key and what the compiler is started on. Needs jaxlib alone, not PyTorch.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo
from jaxlib.mlir.dialects import stablehlo as hlo

if TYPE_CHECKING:
    from collections.abc import Iterator

# CHLO has no place in a portable artifact; the rest takes away what differs between equal programs.
PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo),canonicalize,cse,symbol-dce,strip-debuginfo)"

# VHLO versions tried in order. The list is part of every key: adding one in the middle would give modules that
# already have a key another one.
LADDER = (
    "1.0.0",  # the first stable version: all of StableHLO that the table uses but for what follows
    "1.4.0",  # tan
)

# jaxlib registers passes in a table of the process, which must not happen twice.
_registration = threading.Lock()
_registered = threading.Event()


class CanonicalError(ValueError):
    """A module has no canonical bytes: MLIR finds it invalid, or no version of the ladder can hold it."""


@contextlib.contextmanager
def context() -> Iterator[list[str]]:
    """Enter a fresh MLIR context, with unknown locations, and yield the list that its diagnostics are added to.

    Every module has its own context: contexts never give back what they have interned, and one that is used by a
    single thread needs no lock.
    """
    with _registration:
        if not _registered.is_set():
            hlo.register_stablehlo_passes()
            _registered.set()
    fresh = ir.Context()
    fresh.enable_multithreading(enable=False)
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    fresh.append_dialect_registry(registry)
    hlo.register_dialect(fresh)
    chlo.register_dialect(fresh)
    fresh.dialects["func"]  # the look-up loads it
    messages: list[str] = []

    def keep(diagnostic: ir.Diagnostic) -> bool:
        messages.append(diagnostic.message)
        return True

    handler: Any = fresh.attach_diagnostic_handler(keep)
    try:
        with fresh, ir.Location.unknown(fresh):
            yield messages
    finally:
        handler.detach()


def simplify(module: ir.Module, messages: list[str]) -> None:
    """Run the fixed passes on ``module``, in place; ``messages`` is the list that `context` yielded.

    Raises `CanonicalError` if MLIR finds the module invalid.
    """
    try:
        module.operation.verify()  # MLIR does so after a pass only; the first one ends the process on an invalid module
        passmanager.PassManager.parse(PASSES).run(module.operation)
    except ir.MLIRError as error:
        raise CanonicalError(f"the module is invalid: {'; '.join(messages) or error}") from error


def serialise(module: ir.Module, messages: list[str]) -> tuple[bytes, str]:
    """Return the bytes of a simplified module and the VHLO version they are written at; uses the module up.

    Raises `CanonicalError` if no version of the ladder can hold it.
    """
    for version in LADDER:
        try:
            return bytes(hlo.serialize_portable_artifact(module, version)), version
        except ValueError:
            continue
    raise CanonicalError(f"no VHLO version of {', '.join(LADDER)} can express it: {'; '.join(messages[-1:])}")
