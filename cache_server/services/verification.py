"""Whether a stored output is what its entry says, by reading all of it; and when what a store says can be believed.

One read is no verdict. A proxy or a store in trouble answers 200 with an error page, cuts bodies off, or sends another
object's: what is thrown away for that was sound. So a size counts only if a listing of the key says the same, and
whoever throws away something looks a second time: see `cache_server.services.suspicion`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cache_server.compression import PlainBytes
from cache_server.stores.base import Blob, StoreError
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.address import Address
    from cache_server.stores.base import Store
    from client.wire import Output


def fault(
    store: Store,
    address: Address,
    output: Output,
    *,
    fresh: bool = False,
    pace: Callable[[int], None] = lambda _size: None,
) -> str | None:
    """Return what is wrong with the stored bytes, None if they decode to the output's size and digest.

    Two looks at the same bytes return the same words. ``fresh``: past what an earlier read left on the way. ``pace`` is
    called after each piece with its size in bytes; what it raises ends the reading. `StoreError` if the bytes cannot be
    read, or the store contradicts itself: that is no verdict.
    """
    blob = Blob.of(address, output)
    opened = store.open_output(blob, fresh=fresh)
    if opened is None or opened.stored_size != output.stored_size:
        sent = None if opened is None else opened.stored_size
        if opened is not None:
            opened.close()
        check_sent(store, blob, sent)
        return "there is no such file" if sent is None else f"it holds {sent} bytes, not {output.stored_size}"
    digest, size = hashlib.sha256(), 0
    try:
        plain = PlainBytes(output.encoding, limit=output.size)
        for chunk in opened.chunks():
            for piece in plain.feed(chunk):
                digest.update(piece)
                size += len(piece)
            pace(len(chunk))
        plain.finish()
    except FormatError as error:
        return str(error)
    finally:
        opened.close()
    if size == output.size and digest.hexdigest() == output.sha256:
        return None
    return f"its {size} bytes hash to {digest.hexdigest()}"


def check_sent(store: Store, blob: Blob, sent: int | None) -> None:
    """Raise `StoreError` unless a listing of the key agrees with what was sent: a body of so many bytes, or nothing."""
    listed = next((file.size for file in store.files(blob.address) if file.name == blob.file_name), None)
    if listed != sent:
        raise StoreError(
            f"the store sends {_size(sent)} for {blob.file_name} of {blob.address}, and lists it with {_size(listed)}"
        )


def _size(size: int | None) -> str:
    return "nothing" if size is None else f"{size} bytes"
