"""Whether a stored output is what its entry says, by reading all of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cache_server.compression import PlainBytes
from cache_server.stores.base import Blob
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.address import Address
    from cache_server.stores.base import Store
    from client.wire import Output


def hashes_right(
    store: Store, address: Address, output: Output, *, pace: Callable[[int], None] = lambda _size: None
) -> bool:
    """Return whether the stored bytes decode to the output's size and digest; False too if they are gone.

    ``pace`` is called after each piece with its size in bytes; what it raises ends the reading. `StoreError` if the
    bytes cannot be read: that is no verdict.
    """
    opened = store.open_output(Blob.of(address, output))
    if opened is None:
        return False
    digest, size = hashlib.sha256(), 0
    try:
        plain = PlainBytes(output.encoding, limit=output.size)
        for chunk in opened.chunks():
            for piece in plain.feed(chunk):
                digest.update(piece)
                size += len(piece)
            pace(len(chunk))
        plain.finish()
    except FormatError:
        return False
    finally:
        opened.close()
    return size == output.size and digest.hexdigest() == output.sha256
