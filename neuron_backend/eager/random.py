"""Random operators run on the CPU with the device's own generator, so that seeding the device is what counts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_backend.eager.operators import Operator

_device = torch.ops.neuron_device


@contextmanager
def generator(operator: Operator, kwargs: dict[str, Any], device: int) -> Iterator[None]:
    """Let the CPU run of ``operator`` draw from the generator that the caller named, or from device ``device``'s own.

    Replaces ``kwargs["generator"]``. An operator without that parameter draws from the CPU's default generator, which
    then takes on the device's state for the time of the call.
    """
    if not operator.random:
        yield
    elif operator.takes_generator:
        given = kwargs.get("generator")
        kwargs["generator"] = _device.host_generator(_device.default_generator(device) if given is None else given)
        yield
    else:
        own = _device.default_generator(device)
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)
