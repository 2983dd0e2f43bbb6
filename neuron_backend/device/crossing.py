"""Tensors of the device on their way to another process: what arrives is a copy, sent by way of the host.

Queues, pipes, pools, arguments of a process and workers of a DataLoader pickle with torch's reductions. Those put
memory of the CPU where both processes see it, which cannot be done with memory of this device.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import reduce_storage

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "neuron"


def register() -> None:
    """Let torch's reductions of tensors and modules take storages of the device; those of others stay as they are."""
    ForkingPickler.register(torch.UntypedStorage, _reduced)
    _refuse_to_share()


def _reduced(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    if storage.device.type != DEVICE:
        return reduce_storage(storage)  # type: ignore[no-any-return,no-untyped-call]
    # In the message itself, not in shared memory beside it: that has to outlive the start of the process it is for, and
    # is 64 MB in most containers. Views of one storage that are sent together share memory there too.
    content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy().tobytes()  # type: ignore[no-untyped-call]
    return _arrived, (content, storage.device.index)


def _arrived(content: bytes, index: int) -> torch.UntypedStorage:
    """Return the storage in this process; raises RuntimeError if it has no such device, or was forked after its use."""
    storage = torch.UntypedStorage(len(content), device=torch.device(DEVICE, index))  # type: ignore[no-untyped-call]
    if content:
        storage.copy_(torch.UntypedStorage.from_buffer(content, dtype=torch.uint8))
    return storage


def _refuse_to_share() -> None:
    """Let ``share_memory_()`` say that it cannot do what it is asked for: torch does nothing, and answers as if it had.

    A model "shared" like that is trained by every process for itself.
    """
    shared: Callable[[torch.UntypedStorage], torch.UntypedStorage] = torch.UntypedStorage.share_memory_

    def share_memory_(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if storage.device.type == DEVICE:
            raise RuntimeError(
                f"memory of {storage.device} cannot be shared between processes: a tensor sent to another process "
                "arrives there as a copy. Share a tensor of the CPU, as in tensor.cpu().share_memory_(), and copy it "
                "to the device in each process"
            )
        return shared(storage)

    torch.UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]
