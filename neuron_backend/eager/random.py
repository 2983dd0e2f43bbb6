"""What a call draws random numbers from: the device's generator, or the one that the caller names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.eager import signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_backend.eager.operators import Operator
    from neuron_backend.eager.signature import Call

_device = torch.ops.neuron_device


def names_host_generator(call: Call) -> bool:
    """Whether the caller named a generator of the CPU, whose numbers only the CPU can draw."""
    given = call.kwargs.get("generator")
    return given is not None and given.device.type == "cpu"


def seed_and_offset(call: Call, count: int) -> list[torch.Tensor]:
    """Take ``count`` steps of the call's generator; return its seed and the first one's offset as program inputs."""
    given = call.kwargs.get("generator") if call.operator.takes_generator else None
    generator = _device.default_generator(signature.device_of(call)) if given is None else given
    words: list[torch.Tensor] = _device.draw(generator, count)
    return words


@contextmanager
def on_host(operator: Operator, kwargs: dict[str, Any], device: int) -> Iterator[None]:
    """Let the CPU run of ``operator`` draw from a CPU generator that the call's own one seeds, in one step.

    Replaces ``kwargs["generator"]``. An operator without that parameter draws from the CPU's default generator, which
    then has that generator's state for the time of the call.
    """
    if not operator.random:
        yield
    elif operator.takes_generator:
        given = kwargs.get("generator")
        kwargs["generator"] = _device.host_generator(_device.default_generator(device) if given is None else given)
        yield
    else:
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(_device.host_generator(_device.default_generator(device)).get_state())
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
