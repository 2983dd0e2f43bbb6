"""From a freshly built module to what the backends pass around: canonical bytes and signature."""

from __future__ import annotations

from jaxlib.mlir import ir

from neuron_backend.canonical import CanonicalError, context, serialise, simplify
from neuron_backend.lowering.dtypes import dtype_and_shape
from neuron_backend.lowering.errors import Broken
from neuron_backend.module import Module, Signature, TensorSpec

__all__ = ["context", "finish"]


def finish(module: ir.Module, messages: list[str]) -> Module:
    """Return a module whose only function is ``main`` in its final form; ``messages`` are its context's diagnostics.

    Raises `Broken` if MLIR finds it invalid or no version of the ladder can hold it.
    """
    try:
        simplify(module, messages)
        signature = _signature(module)
        code, version = serialise(module, messages)
    except CanonicalError as error:
        raise Broken(str(error)) from error
    return Module(code=code, version=version, signature=signature)


def _signature(module: ir.Module) -> Signature:
    (function,) = module.body.operations
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return Signature(
        inputs=tuple(TensorSpec(*dtype_and_shape(each)) for each in kind.inputs),
        outputs=tuple(TensorSpec(*dtype_and_shape(each)) for each in kind.results),
    )
