"""Small StableHLO modules as portable artifacts, built without the lowering."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo  # noqa: F401 - func registers its dialect's Python side


def artifact(text: str, version: str = "1.0.0") -> bytes:
    """Return the module in ``text`` (custom or generic StableHLO) as a VHLO portable artifact."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # noqa: PLC0415

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context, ir.Location.unknown():
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        stablehlo.register_dialect(context)
        return bytes(stablehlo.serialize_portable_artifact(ir.Module.parse(text), version))


def binary(operation: str, tensor_type: str = "tensor<2x3xf32>") -> bytes:
    """Return ``main(a, b) = operation(a, b)``."""
    return artifact(
        f"func.func @main(%a: {tensor_type}, %b: {tensor_type}) -> {tensor_type} "
        f"{{ %0 = stablehlo.{operation} %a, %b : {tensor_type} return %0 : {tensor_type} }}"
    )


ADD = binary("add")
REFUSED = artifact(
    "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { "
    "%0 = stablehlo.custom_call @no_such_target(%a) : (tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32> }"
)
