"""Results that share memory, as ``y, y.t()`` do in eager torch: a program gives each by itself, the caller sees one.

AOTAutograd takes care of results that are views of inputs, and of those that need gradients; the rest is left to the
backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Shared:
    """Results that lie in one memory: their ``positions``, and how each lies there.

    ``elements`` is the size of that memory; ``whole`` the position of a result that fills it as it stands, or None.
    ``device`` is the index of a neuron device, None for the host.
    """

    positions: tuple[int, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    elements: int
    whole: int | None
    device: int | None

    def put(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the program's contiguous host tensors for ``positions`` as views of one memory on the device."""
        if self.whole is None:
            memory = torch.empty(self.elements, dtype=results[0].dtype)
            for result, layout in zip(results, self.layouts, strict=True):
                _write(memory, layout, result)
        else:
            memory = results[self.positions.index(self.whole)].reshape(-1)
        if self.device is not None:
            memory = torch.ops.neuron_device.from_cpu(memory, self.device)
        return [memory.as_strided(*layout) for layout in self.layouts]


def _write(memory: torch.Tensor, layout: tuple[tuple[int, ...], tuple[int, ...], int], result: torch.Tensor) -> None:
    shape, strides, offset = layout
    for axis, stride in enumerate(strides):
        if stride == 0 and shape[axis] > 1:  # expanded: its elements lie there once
            result = result.narrow(axis, 0, 1)
    memory.as_strided(result.shape, strides, offset).copy_(result)


def shared(values: Sequence[torch.Tensor]) -> list[Shared]:
    """Return which of a graph's results, given as shape inference has them, lie in one memory.

    Results of different dtypes over the same bytes are not among them: each is given its own.
    """
    groups: dict[int, list[int]] = {}
    for position, value in enumerate(values):
        if value.numel():
            groups.setdefault(value.untyped_storage()._cdata, []).append(position)  # noqa: SLF001 - a storage's identity
    found = []
    for positions in groups.values():
        members = [values[position] for position in positions]
        if len(members) == 1 or len({(each.dtype, each.device, each.is_conj(), each.is_neg()) for each in members}) > 1:
            continue
        first = members[0]
        elements = first.untyped_storage().nbytes() // first.dtype.itemsize
        whole = next(
            (
                position
                for position, each in zip(positions, members, strict=True)
                if each.is_contiguous() and not each.storage_offset() and each.numel() == elements
            ),
            None,
        )
        layouts = tuple((tuple(each.shape), tuple(each.stride()), int(each.storage_offset())) for each in members)
        device = (first.device.index or 0) if first.device.type == "neuron" else None
        found.append(Shared(tuple(positions), layouts, int(elements), whole, device))
    return found
