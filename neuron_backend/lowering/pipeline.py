"""From a freshly built module to its canonical bytes: passes, then VHLO at the lowest version that can hold it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.dtypes import dtype_and_shape
from neuron_backend.lowering.registry import Refused
from neuron_backend.module import Module, Signature, TensorSpec

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

# The table that passes are registered in belongs to the process and is not guarded.
_registration = threading.Lock()
_registered = threading.Event()


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


def finish(module: ir.Module, messages: list[str]) -> Module:
    """Run the passes on a module whose only function is ``main`` and serialise it.

    Raises `Refused` if MLIR finds it invalid or no version of the ladder can hold it.
    """
    try:
        passmanager.PassManager.parse(PASSES).run(module.operation)
    except ir.MLIRError as error:
        raise Refused(f"internal error: the module is invalid: {'; '.join(messages) or error}") from error
    signature = _signature(module)
    for version in LADDER:
        try:
            code = hlo.serialize_portable_artifact(module, version)
        except ValueError:
            continue
        return Module(code=code, version=version, signature=signature)
    raise Refused(f"no VHLO version of {', '.join(LADDER)} can express it: {'; '.join(messages[-1:])}")


def _signature(module: ir.Module) -> Signature:
    (function,) = module.body.operations
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return Signature(
        inputs=tuple(TensorSpec(*dtype_and_shape(each)) for each in kind.inputs),
        outputs=tuple(TensorSpec(*dtype_and_shape(each)) for each in kind.results),
    )
