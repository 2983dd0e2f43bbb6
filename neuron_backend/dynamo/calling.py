"""Between torch's tensors and a program's: which arguments go in, and what the results are to the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

    from neuron_backend.lowering import Results
    from neuron_backend.runtimes.base import Executable

DEVICE = "neuron"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a result goes: the index of a neuron device, or None for the host, and its strides if not contiguous."""

    index: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    @classmethod
    def of(cls, value: torch.Tensor) -> _Place:
        index = (value.device.index or 0) if value.device.type == DEVICE else None
        shape, strides = tuple(value.shape), tuple(value.stride())
        # a tensor of one element or fewer in a dimension has no meaningful stride there; torch compares as we do
        return cls(index, shape, None if value.is_contiguous() else strides)

    def put(self, result: torch.Tensor) -> torch.Tensor:
        """Return a program's contiguous host tensor as the tensor that the graph promised."""
        if self.strides is not None:
            strided = torch.empty_strided(self.shape, self.strides, dtype=result.dtype)
            result = strided.copy_(result)
        return result if self.index is None else torch.ops.neuron_device.from_cpu(result, self.index)


def host_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a contiguous host tensor over the bytes of ``value``, without a copy where they lie so already."""
    if value.device.type == DEVICE:
        value = torch.ops.neuron_device.as_cpu(value)
    return value.detach().resolve_conj().resolve_neg().contiguous()


def bind(
    executable: Executable, graph: GraphModule, used: Sequence[int], results: Results
) -> Callable[..., list[torch.Tensor | None]]:
    """Return ``executable`` with the calling convention of ``graph``: all arguments in, all outputs back."""
    outputs: Any = graph.graph.output_node().args[0]
    places = [_Place.of(outputs[position].meta["val"]) for position in results.positions]

    def run(*arguments: Any) -> list[torch.Tensor | None]:
        answer: list[torch.Tensor | None] = [None] * results.count
        with torch.no_grad():
            computed = executable([host_tensor(arguments[index]) for index in used])
            for position, place, result in zip(results.positions, places, computed, strict=True):
                answer[position] = place.put(result)
        return answer

    return run
