"""Objects below ``s3://bucket/prefix``, as another cache (the Neuron Persistent Cache) keeps its entries there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, Denied, TransportError, Unreachable
from client.foreign.tree import MAX_FILE, Listed, UnreadableError
from client.s3.bucket import Bucket
from client.s3.errors import Reason, S3Error
from client.s3.url import BucketUrl

if TYPE_CHECKING:
    from collections.abc import Iterator


class BucketTree:
    """See `client.foreign.tree.Tree`. Who may write to the bucket is the bucket's own affair."""

    def __init__(self, url: str) -> None:
        """Raise `ConfigurationError` for a malformed URL, and if boto3 is missing."""
        self._bucket = Bucket(BucketUrl.parse(url))

    @property
    def address(self) -> str:
        """See `Tree.address`."""
        return str(self._bucket.url)

    def files(self, start: str = "") -> Iterator[Listed]:
        """See `Tree.files`; with ``start``, only those whose paths begin so."""
        with _translated():
            for item in self._bucket.objects(start):
                if not item.name.endswith("/"):  # consoles make folders of such empty objects
                    refusal = f"is larger than {MAX_FILE} bytes" if item.size > MAX_FILE else ""
                    yield Listed(item.name, item.size, item.modified, refusal)

    def read(self, file: Listed) -> bytes:
        """See `Tree.read`."""
        with _translated():
            reader = self._bucket.open(file.path)
            if reader is None:
                raise UnreadableError(f"{file.path} is not there any more")
            try:
                if reader.size != file.size:
                    raise UnreadableError(f"{file.path} changed while it was read")
                return b"".join(reader.chunks())
            finally:
                reader.close()

    def close(self) -> None:
        """See `Tree.close`."""
        self._bucket.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except S3Error as error:
        raise _as_transports_say(error) from error


def _as_transports_say(error: S3Error) -> TransportError | ConfigurationError:
    if error.reason.is_passing:
        return Unreachable(str(error))
    return Denied(str(error)) if error.reason in {Reason.DENIED, Reason.EXPIRED} else ConfigurationError(str(error))
