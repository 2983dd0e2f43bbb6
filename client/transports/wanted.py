"""Which entries the caller of a transport would use: asked when an entry is known, before its program is fetched.

Said around a request, as patience is (:mod:`client.transports.patience`): a program that nobody vouches for may be
large, and would only be thrown away.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

from client.transports.base import TooLarge, Unwanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.wire import Entry, Output

    Wants: TypeAlias = Callable[[Entry], bool]

_ALWAYS = 64 << 20
"""Bytes of an output that any process may hold."""
_wants: ContextVar[Wants | None] = ContextVar("neff_cache_wants", default=None)


def check(entry: Entry) -> None:
    """Raise `Unwanted` if the caller would not use the entry; without a word it wants every one."""
    wants = _wants.get()
    if wants is not None and not wants(entry):
        raise Unwanted(entry)


def check_room(entry: Entry, output: Output) -> None:
    """Raise `TooLarge` for an output that is read into more memory than this process may give it.

    Its size is another party's word, and is not yet believed.
    """
    if output.size <= _ALWAYS:
        return
    from client import encoding  # noqa: PLC0415 - the import of the cache is light

    if output.size > encoding.largest():
        raise TooLarge(
            f"{output.name} of {entry.kind}/{entry.key} is said to hold {output.size} bytes, and this process reads"
            f" {encoding.largest()} at most: an eighth of the memory that it may use"
        )


@contextmanager
def wanting(wants: Wants) -> Iterator[None]:
    """Let the requests in the ``with`` block fetch only what ``wants`` accepts."""
    before = _wants.set(wants)
    try:
        yield
    finally:
        _wants.reset(before)
