"""Renders a VHLO portable artifact as StableHLO text, for compilers that take nothing else."""

from __future__ import annotations

from typing import cast


def to_text(code: bytes) -> str:
    """Return the module in ``code`` as StableHLO text, every constant written out.

    Deterministic for one jaxlib. Raises ValueError if ``code`` is no portable artifact that this jaxlib can read.
    """
    from jaxlib.mlir import ir  # noqa: PLC0415 - only needed by a compile, never by a hit
    from jaxlib.mlir.dialects import stablehlo  # noqa: PLC0415

    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, code)
        return cast("str", module.operation.get_asm(enable_debug_info=False))
