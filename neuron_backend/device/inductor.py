"""What inductor, the compiler that ``torch.compile`` takes if none is named, is told where it looks for the device.

It asks the device's module for classes. Ours make no code: they say which backend does.
"""

from __future__ import annotations

from typing import Final, NoReturn

CLASSES: Final = frozenset({"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"})


class _Refusing(type):
    def __getattr__(cls, name: str) -> NoReturn:
        """Refuse, whatever inductor asks for first; raises RuntimeError."""
        raise RuntimeError(
            "torch.compile without a backend takes inductor, which makes no code for device neuron: write "
            'torch.compile(..., backend="neuron")'
        )


class NoInductor(metaclass=_Refusing):
    """Stands for a class of code generation of a device, and for the operations that such code would use."""


def looked_for() -> type[NoInductor]:
    """Return the class, once inductor has been told of the operations, without which it ends in a KeyError."""
    from torch._inductor.codegen import common  # noqa: PLC0415 - inductor is asking: it is imported

    common.device_op_overrides_dict.setdefault("neuron", NoInductor())  # type: ignore[arg-type]  # never used
    return NoInductor
