"""Let a module move to the device and back with its parameters the same objects.

torch gives a parameter another tensor in place where it takes the two for the same kind of tensor, as those of CPU and
CUDA; for other devices it puts new parameters into the module. Then an optimizer that was made before holds parameters
that nobody trains, and a weight that two layers share becomes two weights.
"""

from __future__ import annotations

import torch

# A Library takes its kernels back when it is collected.
_libraries: list[torch.library.Library] = []

_KINDS = ("cpu", "neuron")


def register() -> None:
    """Answer torch's question whether a tensor may take another's place, where one of them is on the device."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("_has_compatible_shallow_copy_type", _interchangeable, "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.append(library)


def _interchangeable(one: torch.Tensor, other: torch.Tensor) -> bool:
    return all(each.layout is torch.strided and each.device.type in _KINDS for each in (one, other))
