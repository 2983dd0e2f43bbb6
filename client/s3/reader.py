"""The bytes of one object, from one answer of the store; asked for again from where a connection broke off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.s3.errors import Reason, S3Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 1 << 20
"""Bytes handed out at once."""

_RESUMPTIONS = 2


class ObjectReader:
    """An object held open. What it hands out belongs to one state of the object, or it raises `S3Error`.

    The whole object is asked for at once, because that is what most readers want; a part of it costs another request.
    """

    def __init__(
        self,
        body: Any,
        size: int,
        *,
        read_on: Callable[[int, int], Any],
        read: Callable[[Any, int], bytes],
    ) -> None:
        """``read_on`` opens bytes ``start`` to ``stop`` of the same state; ``read`` takes some from an open body."""
        self.size = size
        self._body = body
        self._position = 0
        self._end = size
        self._read_on = read_on
        self._read = read

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield bytes ``start`` to ``stop`` in pieces of at most `CHUNK`; raises `S3Error` if they end early."""
        position = start
        end = self.size if stop is None else min(stop, self.size)
        resumptions = 0
        while position < end:
            try:
                if self._body is None or self._position != position or self._end != end:
                    self._open(position, end)
                piece = self._read(self._body, min(CHUNK, end - position))
                if not piece:
                    raise S3Error("an object's bytes ended early", Reason.UNREACHABLE)  # noqa: TRY301 - joins the others
            except S3Error as error:
                self.close()
                if resumptions == _RESUMPTIONS or not error.reason.is_passing:
                    raise
                resumptions += 1
                continue
            position += len(piece)
            self._position = position
            yield piece

    def _open(self, start: int, stop: int) -> None:
        self.close()
        self._body = self._read_on(start, stop)
        self._position, self._end = start, stop

    def close(self) -> None:
        """Give up what is held open; may be called twice."""
        body, self._body = self._body, None
        if body is not None:
            body.close()
