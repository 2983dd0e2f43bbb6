"""``torch.neuron``: the functions that PyTorch expects of a device's module, and those that users know from others.

Device indices count from 0; ``device`` arguments are an index, a string such as ``"neuron:1"``, a `torch.device`, or
None for the calling thread's current device. Work on the device has ended when its call returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from neuron_backend.device import inductor
from neuron_backend.device.streams import Event, Stream, set_stream, stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

Device: TypeAlias = "torch.device | str | int | None"  # the class `device` below hides the name in this module

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


# Activation checkpointing asks for this before it keeps the state of the device's generator. There is nothing to start.
_initialized = True


def is_available() -> bool:
    """Return whether there is a device: always, once this module is registered."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the device holds or held memory in this process."""
    return bool(torch.ops.neuron_device.is_initialized())


def _is_in_bad_fork() -> bool:
    """Return whether this process was forked after its parent used the device; torch asks before it seeds."""
    return bool(torch.ops.neuron_device.is_in_bad_fork())


def device_count() -> int:
    """Return how many devices this process has (``NEURON_BACKEND_DEVICES``)."""
    return int(torch.ops.neuron_device.device_count())


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return int(torch.ops.neuron_device.current_device())


def set_device(device: Device) -> None:
    """Make ``device`` current in the calling thread; raises RuntimeError if there is no such device."""
    torch.ops.neuron_device.set_device(_index(device))


class device:  # noqa: N801 - torch calls it by this name
    """Context manager that makes a device current in the calling thread; None and negative indices change nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idx >= 0:
            set_device(self.prev_idx)


def synchronize(device: Device = None) -> None:
    """Wait for the device's work: there is none left when a call has returned, so this only checks ``device``."""
    _checked(device)


def current_stream(device: Device = None) -> torch.Stream:
    """Return the device's one stream."""
    return torch.accelerator.current_stream(_checked(device))


def default_stream(device: Device = None) -> torch.Stream:
    """Return the device's one stream."""
    return current_stream(device)


def default_generators() -> list[torch.Generator]:
    """Return each device's default random number generator, in order."""
    return [torch.ops.neuron_device.default_generator(index) for index in range(device_count())]


def manual_seed(seed: int) -> None:
    """Seed the current device's generator and begin at offset 0."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the system and return the seed."""
    return _generator(None).seed()


def seed_all() -> int:
    """Seed every device's generator with one seed from the system and return it."""
    chosen = seed()
    manual_seed_all(chosen)
    return chosen


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Return the state of the device's generator, seed and offset, as a uint8 tensor on the CPU."""
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: Device = None) -> None:
    """Set the state of the device's generator to one that `get_rng_state` returned."""
    _generator(device).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators, in order."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state_all(states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators, in order."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the element types that ``torch.autocast("neuron")`` may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Return whether bfloat16 works: it does."""
    return True


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors hold on ``device`` now."""
    return memory_stats(device)["bytes"]


def max_memory_allocated(device: Device = None) -> int:
    """Return the most bytes that tensors held on ``device`` at once, since the start or the last reset."""
    return memory_stats(device)["peak_bytes"]


def memory_reserved(device: Device = None) -> int:
    """Return the bytes that are taken from the system for ``device``: those that tensors hold, as there is no cache."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """Return the most bytes that were taken from the system at once; see `max_memory_allocated`."""
    return max_memory_allocated(device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return how many bytes ``device`` has left, and in all (``NEURON_BACKEND_MEMORY_LIMIT``, else the host's)."""
    free, total = torch.accelerator.get_memory_info(_checked(device))
    return free, total


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let `max_memory_allocated` start again from what is held now."""
    torch.ops.neuron_device.reset_peak_memory(_checked(device))


def memory_stats(device: Device = None) -> dict[str, int]:
    """Return the counters of ``device``: bytes held, their peak, blocks held, blocks ever made, refused requests."""
    names: Sequence[str] = ("bytes", "peak_bytes", "blocks", "allocations", "out_of_memory")
    return dict(zip(names, torch.ops.neuron_device.memory_stats(_checked(device)), strict=True))


def empty_cache() -> None:
    """Do nothing: memory that is freed goes back to the host at once."""


def _index(device: Device) -> int:
    if isinstance(device, int):
        return device
    if device is None:
        return current_device()
    found = torch.device(device)
    if found.type != "neuron":
        raise ValueError(f"expected a neuron device, got {found}")
    index: int | None = found.index  # torch's stub leaves None out
    return current_device() if index is None else index


def _checked(device: Device) -> int:
    """Return the index of ``device``; raises RuntimeError if there is no such device."""
    index = _index(device)
    if not 0 <= index < device_count():
        raise RuntimeError(f"there is no device neuron:{index}: this process has {device_count()}, numbered from 0")
    return index


def _generator(device: Device) -> torch.Generator:
    generator: torch.Generator = torch.ops.neuron_device.default_generator(_index(device))
    return generator


def __getattr__(name: str) -> Any:
    """Answer inductor, which looks for classes of its own here."""
    if name in inductor.CLASSES:
        return inductor.looked_for()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
