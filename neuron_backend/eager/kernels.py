"""The kernels by which torch reaches the eager path; light, because they are registered inside ``import torch``.

torch calls the device library's fallback (device/warm.cpp), and that calls these, for a call that it has not seen
before. They are registered for a dispatch key that no tensor has.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from neuron_backend.eager.lifting import CONSTANT, FOREACH, SHORTCUTS, UNDECLARED_WRITES
from neuron_backend.torch_private import FrameAction, FrameExecStrategy, set_code_exec_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A Library takes its kernels back when it is collected.
_libraries: list[torch.library.Library] = []

_KEY = "PrivateUse3"

_Kernel = TypeVar("_Kernel", bound="Callable[..., Any]")

aten = torch.ops.aten


def register() -> None:
    """Register the boxed fallback, and by name the operators whose composite kernel would win over it."""
    fallback = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    fallback.fallback(_run, _KEY)  # type: ignore[no-untyped-call]
    named = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    operators = (
        aten.convolution_overrideable.default,
        aten.convolution_backward_overrideable.default,
        aten._grouped_mm.default,  # noqa: SLF001 - its name
        # torch's composites make several programs of one of these
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.logsumexp.default,
        aten.conj_physical_.default,  # it asks for a kernel that other devices have not
        aten._fused_rms_norm.default,  # noqa: SLF001 - its name
        aten._fused_rms_norm_backward.default,  # noqa: SLF001
        # what torch prepares for these on other devices forgets channels_last, which the kernels of the CPU keep
        aten.pixel_shuffle.default,
        aten.pixel_unshuffle.default,
        aten.reflection_pad3d.default,
        aten.reflection_pad3d_backward.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
        *_foreach_operators(),
    )
    for operator in operators:
        named.impl(operator, _named(operator), _KEY)  # type: ignore[no-untyped-call]
    torch.ops.neuron_device.take_over(
        [str(operator).removeprefix("aten.").removesuffix(".default") for operator in operators]
    )
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
        for overload in ("default", "tensor_lr"):
            named.impl(getattr(getattr(aten, name), overload), _fused(name), "PrivateUse1")  # type: ignore[no-untyped-call]
    named.impl(aten.equal.default, _equal, "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.extend((fallback, named))
    torch.ops.neuron_device.compile_in(SHORTCUTS, CONSTANT)
    torch.ops.neuron_device.write_in_silence(
        [f"{operator}.{parameter}" for operator, parameters in UNDECLARED_WRITES.items() for parameter in parameters]
    )


def _foreach_operators() -> Iterator[torch._ops.OpOverload]:
    """Yield the operators on lists that are one program; torch's composite kernels would make one of each tensor."""
    for name in FOREACH:
        for suffix in ("", "_") if name != "norm" else ("",):
            packet = getattr(aten, f"_foreach_{name}{suffix}")
            for overload in packet.overloads():
                # Its tensor of scalars is read on the host, which the composite kernel does.
                reads = name in {"addcdiv", "addcmul"} and overload == "Tensor"
                if not overload.endswith("out") and not reads:
                    yield getattr(packet, overload)


@cache
def _dispatch() -> Callable[..., Any]:
    from neuron_backend.eager.dispatch import dispatch  # noqa: PLC0415 - the first operator pays for it, not the import

    return dispatch


def _left_alone(function: _Kernel) -> _Kernel:
    """Have Dynamo compile neither ``function`` nor what it calls.

    What a compiled function calls at a graph break is called with Dynamo's hook in place, which would take our code for
    the user's. ``torch.compiler.disable`` would do so too, and import Dynamo within ``import torch``.
    """
    code = function.__code__
    set_code_exec_strategy(code, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
    return function


@_left_alone
def _run(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    return _dispatch()(operator, args, kwargs)


def _named(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    @_left_alone
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _dispatch()(operator, args, kwargs)

    return kernel


@_left_alone
def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare on the device, from which one bool comes: not on the host, to which both tensors would go."""
    return one.shape == other.shape and bool((one == other).all())


def _fused(name: str) -> Callable[..., None]:
    @_left_alone
    def kernel(*args: Any, **kwargs: Any) -> None:
        from neuron_backend.eager.fused import FUSED  # noqa: PLC0415 - as above

        FUSED[name](*args, **kwargs)

    return kernel
